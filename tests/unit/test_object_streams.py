"""Objects written as streams in chunks of any size."""

import asyncio

import pytest

from tallybook.archive.objects.cloud import streamed_upload, streamed_writes
from tallybook.archive.objects.cloud.streamed_upload import StreamedUpload, UploadAborted
from tallybook.archive.objects.cloud.streamed_writes import StreamedWrites
from tallybook.core.errors import ArchiveUnavailable, InvariantViolation
from tallybook.core.limits import MIB
from tallybook.runtime.tasks import Tasks

KEY = "ledgers/1"


class Taker:
    """A ``StreamStore`` that accepts pieces when the test permits, and fails before a given piece."""

    def __init__(self, *, max_bytes: int = 64 * MIB, fails_before: int = -1) -> None:
        self.max_bytes = max_bytes
        self.fails_before = fails_before
        self.wholes: list[bytes] = []
        self.taken: list[bytes] = []
        self.given_up = False
        self.may_take = asyncio.Event()
        self.may_take.set()
        self.tasks: list[asyncio.Task[None]] = []

    async def whole(self, key: str, data: bytes) -> None:
        self.wholes.append(data)

    def begin(self, upload: StreamedUpload) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(self._take(upload)))

    async def _take(self, upload: StreamedUpload) -> None:
        error = None
        try:
            async for piece in upload.pieces():
                if len(self.taken) == self.fails_before:
                    error = ArchiveUnavailable("no room")
                    break
                await self.may_take.wait()
                self.taken.append(piece)
        except UploadAborted:
            self.given_up = True
        upload.ended(error)


async def test_a_large_object_is_one_stream_with_no_byte_lost():
    store = Taker()
    upload = StreamedUpload(store, KEY)
    data = bytes(range(251)) * (50_000)
    for at in range(0, len(data), 700_001):
        await upload.write(data[at : at + 700_001])
    await upload.finish()
    assert b"".join(store.taken) == data
    assert store.wholes == []
    assert max(map(len, store.taken)) <= streamed_upload.WHOLE_BYTES + MIB


async def test_writes_wait_until_the_piece_before_was_taken():
    store = Taker()
    store.may_take.clear()
    upload = StreamedUpload(store, KEY)
    await upload.write(bytes(9 * MIB))
    await asyncio.wait_for(upload.write(bytes(MIB)), 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(upload.write(bytes(MIB)), 0.05)
    store.may_take.set()
    await upload.finish()
    assert sum(map(len, store.taken)) == 11 * MIB


async def test_what_a_cancelled_write_has_gathered_is_not_lost():
    store = Taker()
    store.may_take.clear()
    upload = StreamedUpload(store, KEY)
    for _ in range(2):
        await upload.write(bytes(9 * MIB))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(upload.write(b"x" * MIB), 0.05)
    store.may_take.set()
    await upload.finish()
    assert b"".join(store.taken) == bytes(18 * MIB) + b"x" * MIB


@pytest.mark.parametrize("fails_before", [0, 1])
async def test_a_failure_is_raised_by_the_next_write_or_finish(fails_before):
    store = Taker(fails_before=fails_before)
    upload = StreamedUpload(store, KEY)

    async def write_on() -> None:
        for _ in range(4):
            await upload.write(bytes(9 * MIB))

    with pytest.raises(ArchiveUnavailable, match="no room"):
        await write_on()
    with pytest.raises(ArchiveUnavailable, match="no room"):
        await upload.finish()
    await upload.abort()


async def test_an_abort_lets_the_stream_raise_and_waits_for_its_end():
    store = Taker()
    upload = StreamedUpload(store, KEY)
    await upload.write(bytes(9 * MIB))
    await upload.abort()
    assert store.given_up
    with pytest.raises(InvariantViolation, match="has ended"):
        await upload.write(b"x")
    with pytest.raises(InvariantViolation, match="has ended"):
        await upload.finish()


@pytest.mark.parametrize("end", ["abort", "finish"])
async def test_a_small_object_is_never_a_stream(end):
    store = Taker()
    upload = StreamedUpload(store, KEY)
    await upload.write(b"a")
    await upload.write(memoryview(b"bc"))
    await (upload.finish() if end == "finish" else upload.abort())
    assert (store.wholes, store.tasks) == ([b"abc"] if end == "finish" else [], [])


async def test_an_object_that_the_store_cannot_hold_is_refused_before_it_is_sent():
    store = Taker(max_bytes=10 * MIB)
    upload = StreamedUpload(store, KEY)
    await upload.write(bytes(10 * MIB))
    with pytest.raises(ArchiveUnavailable, match="at most 10485760 bytes"):
        await upload.write(b"x")
    await upload.abort()
    assert store.given_up


async def test_an_abort_waits_for_its_parts_no_longer_than_it_may(monkeypatch):
    monkeypatch.setattr(streamed_upload, "ABORT_SECONDS", 0.01)
    store = Taker()
    store.may_take.clear()
    upload = StreamedUpload(store, KEY)
    await upload.write(bytes(9 * MIB))
    await asyncio.sleep(0)
    await asyncio.wait_for(upload.abort(), 5)
    assert not store.given_up
    store.may_take.set()
    await asyncio.gather(*store.tasks)
    assert store.given_up, "once the store answers"


async def writes_with_two_uploads(monkeypatch, send):
    """A store with two uploads in flight, each of which is sent by ``send``."""
    monkeypatch.setattr(streamed_writes.obstore, "put_async", send)
    tasks = Tasks("test", lambda name, error: None)
    writes = StreamedWrites(None, None, "gs://bucket", None, tasks, max_parts=10)
    uploads = [writes.upload(f"ledgers/{number}") for number in range(2)]
    for upload in uploads:
        await upload.write(bytes(9 * MIB))
    return writes


async def test_unfinished_uploads_are_aborted_concurrently(monkeypatch):
    given_up, ended, all_given_up = [], [], asyncio.Event()

    async def send(_source, key, pieces, **_):
        try:
            async for _piece in pieces:
                pass
        except UploadAborted:
            given_up.append(key)
            if len(given_up) == 2:
                all_given_up.set()
            await all_given_up.wait()
            ended.append(key)
            raise

    writes = await writes_with_two_uploads(monkeypatch, send)
    await asyncio.wait_for(writes.close(), 5)
    assert sorted(ended) == ["ledgers/0", "ledgers/1"]


async def test_uploads_that_a_store_does_not_let_go_are_cut_off(monkeypatch):
    monkeypatch.setattr(streamed_upload, "ABORT_SECONDS", 0.01)
    cut_off = []

    async def send(_source, key, _pieces, **_):
        try:
            await asyncio.Event().wait()
        finally:
            cut_off.append(key)

    writes = await writes_with_two_uploads(monkeypatch, send)
    await asyncio.sleep(0)
    await asyncio.wait_for(writes.close(), 5)
    assert sorted(cut_off) == ["ledgers/0", "ledgers/1"]

"""``archive/objects/cloud/s3_writes.py``: part sizes, parts in flight, and cleanup after failures."""

import asyncio
from contextlib import asynccontextmanager, nullcontext
from functools import partial

import pytest

from tallybook.archive.objects.cloud import s3_writes
from tallybook.archive.objects.cloud.s3_writes import IN_FLIGHT_BYTES, MAX_PARTS, MultipartUpload, part_bytes
from tallybook.core.errors import ArchiveUnavailable, TallybookError
from tallybook.runtime.tasks import Tasks

from ..simulated import on_stage

MIB = 1 << 20
KEY = "ledgers/1"


class Parts:
    """A ``PartStore`` in memory that takes its time."""

    def __init__(self, clock, *, seconds=1.0, failing=()) -> None:
        self.clock = clock
        self.seconds = seconds
        self.failing = set(failing)
        self.open = {}
        self.objects = {}
        self.under_way = 0
        self.most_under_way = 0
        self.began = 0

    async def whole(self, key, data) -> None:
        self.objects[key] = bytes(data)

    async def begin(self, key) -> str:
        self.began += 1
        self.open[str(self.began)] = {}
        return str(self.began)

    async def part(self, key, upload_id, number, data) -> str:
        self.under_way += len(data)
        self.most_under_way = max(self.most_under_way, self.under_way)
        # The later a part, the sooner it arrives.
        await self.clock.sleep(self.seconds / number)
        self.under_way -= len(data)
        if number in self.failing:
            raise ArchiveUnavailable(f"part {number} failed")
        self.open.setdefault(upload_id, {})[number] = bytes(data)
        return f"tag {number}"

    async def complete(self, key, upload_id, tags, size) -> None:
        parts = self.open.pop(upload_id)
        assert tags == [f"tag {number}" for number in range(1, len(parts) + 1)]
        self.objects[key] = b"".join(parts[number] for number in sorted(parts))
        assert len(self.objects[key]) == size

    async def take_back(self, key, upload_id) -> None:
        if "take back" in self.failing:
            raise ArchiveUnavailable("no answer")
        self.open.pop(upload_id)


@asynccontextmanager
async def new_upload(world, **options):
    tasks = Tasks("s3", lambda name, error: pytest.fail(f"{name}: {error}"))
    parts = Parts(world.clock, **options)
    yield {"parts": parts, "upload": MultipartUpload(parts, KEY, tasks)}
    await tasks.close()


uploading = partial(on_stage, new_upload)


def test_ten_thousand_parts_hold_the_largest_object_there_may_be():
    sizes = [part_bytes(number) for number in range(1, MAX_PARTS + 1)]
    assert sizes[0] == 8 * MIB
    assert sizes == sorted(sizes)
    assert sum(sizes) >= 5 << 40
    assert max(sizes) <= 5 << 30
    assert sum(sizes[:200]) < 4 << 30, "memory grows slowly"


@uploading()
async def test_an_object_of_one_part_is_put_whole(parts, upload):
    await upload.write(b"abc")
    await upload.write(bytearray(b"def"))
    await upload.finish()
    assert (parts.objects, parts.began) == ({KEY: b"abcdef"}, 0)


@uploading()
async def test_parts_are_cut_wherever_the_writes_end(parts, upload, *, monkeypatch):
    monkeypatch.setattr(s3_writes, "FIRST_PART_BYTES", 10)
    monkeypatch.setattr(s3_writes, "GROWS_EVERY", 2)
    data = bytes(range(256)) * 2
    at, step = 0, 1
    while at < len(data):
        await upload.write(data[at : at + step])
        at, step = at + step, step * 2
    await upload.finish()
    assert parts.objects == {KEY: data}


@uploading()
async def test_writes_wait_while_much_is_under_way(world, parts, upload):
    for _ in range(12):
        await upload.write(bytes(8 * MIB))
    await upload.finish()
    assert parts.most_under_way == IN_FLIGHT_BYTES
    assert world.clock.monotonic() >= 1


@uploading()
async def test_parts_larger_than_the_limit_are_sent_two_at_a_time(parts, upload, *, monkeypatch):
    monkeypatch.setattr(s3_writes, "IN_FLIGHT_BYTES", 10)
    for _ in range(4):
        await upload.write(bytes(8 * MIB))
    await upload.finish()
    assert parts.most_under_way == 16 * MIB


@pytest.mark.parametrize(("size", "fails"), [(80 * MIB, 2), (17 * MIB, 3)])
@uploading()
async def test_a_part_that_cannot_be_sent_fails_the_upload_and_its_abort_leaves_nothing(parts, upload, *, size, fails):
    parts.failing = [fails]
    with pytest.raises(ArchiveUnavailable, match=f"part {fails}"):  # noqa: PT012 - the last part fails the finish
        await upload.write(bytes(size))
        await upload.finish()
    await upload.abort()
    assert (parts.open, parts.objects, parts.under_way) == ({}, {}, 0)


@pytest.mark.parametrize("timeout_s", [5, 0.1])
@uploading()
async def test_an_abort_waits_for_parts_in_flight_and_is_done_even_if_its_caller_is_cancelled(
    world, parts, upload, *, timeout_s
):
    await upload.write(bytes(16 * MIB))
    await asyncio.sleep(0)
    assert parts.under_way
    with pytest.raises(TimeoutError) if timeout_s < 1 else nullcontext():
        await asyncio.wait_for(upload.abort(), timeout_s)
        assert (parts.open, parts.under_way) == ({}, 0)
    await world.clock.sleep(5)
    assert parts.open == {}


@uploading(failing=["take back"])
async def test_an_abort_that_fails_raises_nothing(parts, upload):
    await upload.write(bytes(16 * MIB))
    await upload.abort()
    assert len(parts.open) == 1


@uploading()
async def test_an_upload_that_has_ended_takes_no_more(parts, upload):
    await upload.abort()
    with pytest.raises(TallybookError):
        await upload.write(b"x")
    with pytest.raises(TallybookError):
        await upload.finish()

"""Concurrent runs that encrypt plain objects: no object is lost in any order of their requests.

Each request waits until the schedule lets it take effect. A run may be stopped between any two requests; then a request
that it had sent takes effect at any later time, or never.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.archive.format.schema import object_key
from tallybook.archive.objects.encryption.format import FRAME_BYTES
from tallybook.archive.objects.encryption.store import EncryptedStore
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.archive.objects.port import UnfinishedUpload, Upload
from tallybook.core.errors import TallybookError
from tallybook.offload import rekey as rekeying
from tallybook.offload.rekey import FAILED, rekey
from tallybook.runtime.clock import RealClock
from tallybook.runtime.tasks import InlineWorkers

from ..support.archive_keys import InMemoryKeys

KEY = object_key("00000000-0000-4000-8000-000000000001", [1])
TEXT = bytes(range(256)) * 300
COPY_KEY = bytes(range(32))
OLD = InMemoryKeys(1).keys.keys

Effect = Callable[[], Awaitable[Any]]


class Turns:
    """The store of one run: each request waits for ``step``."""

    def __init__(self, below: MemoryObjectStore) -> None:
        self.below = below
        self.url = below.url
        self.waiting: tuple[Effect, asyncio.Future[Any]] | None = None
        self.stopped = False

    async def _turn(self, effect: Effect) -> Any:
        if self.stopped:
            raise asyncio.CancelledError
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting = (effect, answer)
        return await answer

    async def step(self) -> None:
        """The pending request takes effect, and is answered."""
        assert self.waiting is not None
        (effect, answer), self.waiting = self.waiting, None
        try:
            answer.set_result(await effect())
        except TallybookError as error:
            answer.set_exception(error)

    async def put(self, key: str, data: bytes) -> None:
        await self._turn(lambda: self.below.put(key, data))

    async def read(self, key: str, offset: int, size: int) -> bytes:
        return bytes(await self._turn(lambda: self.below.read(key, offset, size)))

    async def read_many(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return list(await self._turn(lambda: self.below.read_many(key, ranges)))

    async def info(self, key: str) -> Any:
        return await self._turn(lambda: self.below.info(key))

    async def delete(self, key: str) -> None:
        await self._turn(lambda: self.below.delete(key))

    def upload(self, key: str) -> Upload:
        return _TurnsUpload(self, self.below.upload(key))

    def list(self, prefix: str = "", after: str = "") -> Any:
        return self.below.list(prefix, after)

    async def unfinished_uploads(self) -> Sequence[UnfinishedUpload]:
        return await self.below.unfinished_uploads()

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        await self._turn(lambda: self.below.abort_upload(upload))

    async def close(self) -> None:
        pass


class _TurnsUpload:
    def __init__(self, turns: Turns, upload: Any) -> None:
        self.turns, self.inner = turns, upload

    async def write(self, data: Any) -> None:
        await self.inner.write(bytes(data))

    async def finish(self) -> None:
        await self.turns._turn(self.inner.finish)

    async def abort(self) -> None:
        if not self.turns.stopped:
            await self.inner.abort()


class Race:
    """Several runs, one request at a time. After each step, the object can be read."""

    def __init__(self, below: MemoryObjectStore) -> None:
        self.below = below
        self.runs: list[tuple[Turns, asyncio.Task[Any]]] = []
        self.late: list[Effect] = []

    def start(self, work: Callable[[EncryptedStore], Coroutine[Any, Any, Any]], keys: InMemoryKeys) -> None:
        turns = Turns(self.below)
        self.runs.append((turns, asyncio.create_task(work(EncryptedStore(turns, InlineWorkers(), keys)))))

    async def go(self, choices: Sequence[int]) -> None:
        """The schedule: which of what is possible comes next, time and again. All that it leaves open is done."""
        left = list(choices)
        while True:
            for _ in range(20):
                await asyncio.sleep(0)
            moves = [move for turns, task in self.runs if not task.done() for move in self._moves(turns, task)]
            moves += [("late", effect, None) for effect in self.late]
            if not moves:
                break
            choice = left.pop(0) if left else 0
            await self._do(*moves[choice % len(moves)])
            assert await self._content() == TEXT
        await asyncio.gather(*(task for _, task in self.runs), return_exceptions=True)

    def _moves(self, turns: Turns, task: asyncio.Task[Any]) -> list[tuple[str, Any, Any]]:
        assert turns.waiting is not None, "a run waits for something else"
        return [("step", turns, task), ("stop", turns, task)]

    async def _do(self, kind: str, what: Any, task: Any) -> None:
        if kind == "late":
            self.late.remove(what)
            try:
                await what()
            except TallybookError:
                return  # no caller waits for the answer
        elif kind == "step":
            await what.step()
        else:
            what.stopped = True
            self.late.append(what.waiting[0])
            task.cancel()

    async def _content(self) -> bytes:
        reader = EncryptedStore(self.below, InlineWorkers(), InMemoryKeys(2, others=OLD))
        return await reader.read(KEY, 0, len(TEXT))


async def seal(store: EncryptedStore) -> list[str]:
    current = await store.current_key()
    return [done.outcome async for done in rekey(store, current, change=True, seal_plain=True, copy_key=COPY_KEY)]


async def collect(store: EncryptedStore) -> None:
    """Abort unfinished encrypted objects, as an offloader does."""
    for upload in await store.unfinished_uploads():
        await store.abort_upload(upload)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(rekeying, "PIECE_BYTES", FRAME_BYTES)


async def race(choices: Sequence[int], *, rotate: bool, others: int) -> None:
    below = MemoryObjectStore(RealClock())
    await below.put(KEY, TEXT)
    found = Race(below)
    newer = InMemoryKeys(2, others=OLD)
    found.start(seal, InMemoryKeys(1, others=newer.keys.keys))
    found.start(seal, newer if rotate else InMemoryKeys(1))
    for number in range(others):
        found.start(collect if number % 2 else seal, newer)
    await found.go(choices)
    # The last run finds it encrypted, and nothing plain is left behind.
    last = EncryptedStore(below, InlineWorkers(), newer)
    assert FAILED not in await seal(last)
    assert FAILED not in await seal(last)
    keys = [found.key async for page in below.list() for found in page]
    assert keys == [f"sealed/keys/{KEY}", f"sealed/objects/{KEY}"]


@given(st.lists(st.integers(0, 11), max_size=60), st.booleans(), st.integers(0, 2))
def test_no_order_of_requests_and_no_stop_loses_an_object(run, choices, rotate, others):
    run(race(choices, rotate=rotate, others=others))


@pytest.mark.parametrize("steps", range(14))
async def test_a_run_that_stopped_after_any_request_spoils_nothing_that_another_has_encrypted(steps):
    """The first run gets so far, the second does all of its work, and then the first one's last request arrives."""
    await race([0] * steps + [1] + [0] * 40, rotate=False, others=0)

"""Contract of ``Pump``, the write thread of a disk. ``conftest.py`` lists the disks."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

import pytest

from tallybook.core.errors import DiskFailed, InvalidArgument, InvariantViolation
from tallybook.core.limits import BLOCK_BYTES
from tallybook.runtime.disk.port import Disk, DiskFile, PlannedWrite

DEADLINE_SECONDS = 20


def block(letter: bytes, blocks: int = 1) -> bytes:
    return letter * (BLOCK_BYTES * blocks)


@dataclass
class Source:
    """Hands out what was put in, one write at a time, and remembers what became of it."""

    disk: Disk
    ready: deque[PlannedWrite] = field(default_factory=deque)
    taken: list[object] = field(default_factory=list)
    finished: list[object] = field(default_factory=list)
    errors: list[tuple[object, Exception]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    raising: dict[str, Exception] = field(default_factory=dict)
    """Errors that methods raise at their next call."""

    def put(self, file: DiskFile, offset: int, data: bytes, token: object) -> None:
        buffer = self.disk.buffer(len(data))
        buffer[:] = data
        self.ready.append(PlannedWrite(file, offset, buffer, token))

    def take(self) -> PlannedWrite | None:
        if not self.ready:
            return None
        if "take" in self.raising:
            raise self.raising["take"]
        write = self.ready.popleft()
        self.taken.append(write.token)
        return write

    def done(self, write: PlannedWrite) -> None:
        asyncio.get_running_loop()
        if "done" in self.raising:
            raise self.raising["done"]
        self.finished.append(write.token)
        self.changed.set()

    def failed(self, write: PlannedWrite | None, error: Exception) -> None:
        asyncio.get_running_loop()
        self.errors.append((write and write.token, error))
        self.changed.set()

    async def until(self, finished: int = 0, failed: int = 0) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(self.finished) < finished or len(self.errors) < failed:
                self.changed.clear()
                await self.changed.wait()


async def test_a_pump_writes_and_reports_in_the_order_of_take(place) -> None:
    file = await place.file("f", block(b"-", 100), durable=True)
    source = Source(place.disk)
    for index in range(100):
        source.put(file, index * BLOCK_BYTES, bytes([index]) * BLOCK_BYTES, index)
    pump = place.disk.pump(source, name="test")
    pump.kick()
    await source.until(finished=100)
    await pump.close()
    assert source.taken == source.finished == list(range(100))
    assert await file.read(0, 100 * BLOCK_BYTES) == b"".join(bytes([index]) * BLOCK_BYTES for index in range(100))
    await file.close()


async def test_a_pump_wakes_for_every_kick(place) -> None:
    file = await place.file("f", block(b"-"), durable=True)
    source = Source(place.disk)
    pump = place.disk.pump(source, name="test")
    for index in range(300):
        source.put(file, 0, index.to_bytes(2, "big") * (BLOCK_BYTES // 2), index)
        pump.kick()
        await source.until(finished=index + 1)
    await pump.close()
    assert await file.read(0, 2) == (299).to_bytes(2, "big")
    await file.close()


async def test_a_pump_loses_no_kick_that_comes_as_it_falls_asleep(place) -> None:
    file = await place.file("f", block(b"-", 2), durable=True)
    source = Source(place.disk)
    pump = place.disk.pump(source, name="test")
    # The test does not wait for the first write of a pair: the second kick may meet the pump in any state.
    for index in range(0, 400, 2):
        for turn in (0, 1):
            source.put(file, turn * BLOCK_BYTES, block(b"x"), index + turn)
            pump.kick()
            for _ in range(index % 7):
                await asyncio.sleep(0)
        await source.until(finished=index + 2)
    await pump.close()
    assert source.finished == list(range(400))
    await file.close()


async def test_a_pump_started_with_work_waiting_needs_no_second_kick(place) -> None:
    file = await place.file("f", block(b"-"), durable=True)
    source = Source(place.disk)
    pump = place.disk.pump(source, name="test")
    source.put(file, 0, block(b"x"), "first")
    for _ in range(5):
        pump.kick()
    await source.until(finished=1)
    await pump.close()
    assert source.finished == ["first"]
    await file.close()


async def test_closing_a_pump_finishes_what_was_taken_and_takes_nothing_more(place) -> None:
    file = await place.file("f", block(b"-", 500), durable=True)
    source = Source(place.disk)
    pump = place.disk.pump(source, name="test")
    for index in range(500):
        source.put(file, index * BLOCK_BYTES, block(b"x"), index)
    pump.kick()
    await source.until(finished=1)
    await pump.close()
    assert source.finished == source.taken
    left = len(source.ready)
    assert left == 500 - len(source.taken)
    pump.kick()
    await asyncio.sleep(0)
    assert len(source.ready) == left
    await file.close()


async def test_an_idle_pump_closes_at_once_and_may_be_closed_again(place) -> None:
    source = Source(place.disk)
    pump = place.disk.pump(source, name="test")
    await pump.close()
    await pump.close()
    assert source.taken == []


async def test_a_pump_stops_for_good_at_the_first_failure(place) -> None:
    file = await place.file("f", block(b"-", 4), durable=True)
    closed = await place.file("closed", block(b"-"), durable=True)
    await closed.close()
    source = Source(place.disk)
    source.put(file, 0, block(b"a"), "good")
    source.put(closed, 0, block(b"b"), "bad")
    source.put(file, BLOCK_BYTES, block(b"c"), "never")
    pump = place.disk.pump(source, name="test")
    pump.kick()
    await source.until(failed=1)
    pump.kick()
    await pump.close()
    assert source.finished == ["good"]
    assert [token for token, _ in source.errors] == ["bad"]
    assert isinstance(source.errors[0][1], DiskFailed)
    assert source.taken == ["good", "bad"]
    assert await file.read(0, 2 * BLOCK_BYTES) == block(b"a") + block(b"-")
    await file.close()


async def test_two_pumps_of_one_disk_do_not_mix(place) -> None:
    sources = [Source(place.disk), Source(place.disk)]
    files = [await place.file(name, block(b"-", 20), durable=True) for name in ("f", "g")]
    pumps = [place.disk.pump(source, name=f"test-{n}") for n, source in enumerate(sources)]
    for index in range(20):
        for source, file, letter in zip(sources, files, (b"f", b"g"), strict=True):
            source.put(file, index * BLOCK_BYTES, block(letter), index)
    for pump in pumps:
        pump.kick()
    for source, pump, file, letter in zip(sources, pumps, files, (b"f", b"g"), strict=True):
        await source.until(finished=20)
        await pump.close()
        assert await file.read(0, 20 * BLOCK_BYTES) == block(letter, 20)
        await file.close()


@pytest.mark.parametrize("method", ["take", "done"])
async def test_a_source_that_raises_is_notified_once_that_the_pump_has_stopped(place, method: str) -> None:
    """Otherwise a bookie whose journal thread had ended would stay registered, and never ack again."""
    file = await place.file("f", block(b"-", 3), durable=True)
    source = Source(place.disk)
    pump = place.disk.pump(source, name="test")
    source.put(file, 0, block(b"a"), "good")
    pump.kick()
    await source.until(finished=1)
    source.raising[method] = MemoryError("planted")
    for index in (1, 2):
        source.put(file, index * BLOCK_BYTES, block(b"b"), index)
        pump.kick()
    await source.until(failed=1)
    source.raising.clear()
    pump.kick()
    await pump.close()
    assert source.finished == ["good"]
    [(token, error)] = source.errors
    assert token is None
    assert isinstance(error, InvariantViolation)
    assert isinstance(error.__cause__, MemoryError)
    await file.close()


async def test_a_buffer_is_zeroed_and_of_whole_blocks(place) -> None:
    buffer = place.disk.buffer(3 * BLOCK_BYTES)
    assert bytes(buffer) == bytes(3 * BLOCK_BYTES)
    assert not buffer.readonly
    for size in (0, -BLOCK_BYTES, BLOCK_BYTES + 1):
        with pytest.raises(InvalidArgument, match=str(size)):
            place.disk.buffer(size)

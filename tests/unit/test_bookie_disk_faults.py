"""A bookie whose disk fails, or is full, at each operation in turn. Test names carry ids of docs/project/lessons.md.

``Life`` is a short life that uses every part: boot, adds, a fence, a LAC, checkpoints, reads from storage, stop. The
bookie's answers are recorded, and compared with the next boot, on a disk that works again.
"""

import asyncio
import logging
from collections.abc import Callable

import pytest

from tallybook.core.errors import BookieReadOnly, BookieUnavailable, Busy, EntryUnknown, LedgerFenced, StorageError
from tallybook.core.limits import KIB
from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import DiskOperation, Effect, SimDisk, World
from tallybook.sim.deterministic.crash import CHANGING
from tallybook.sim.deterministic.world import run_untraced
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..sampling import sample

SETTINGS = tiny_settings(write_cache_bytes=32 * KIB, segment_bytes=32 * KIB, flush_interval_ms=1_000)
WRITES = frozenset({"create", "mkdir", "truncate", "write", "write-durable"})
AGAIN = (Busy.wire_code, BookieReadOnly.wire_code)


class Life:
    """Does everything once; records the answers, and the errors."""

    def __init__(self, world: World, disk: SimDisk) -> None:
        self.node = DiskBookie(disk, world.clock, KnownMetadata(), SETTINGS)
        self.clock = world.clock
        self.acked: list[tuple[int, int, bytes]] = []
        self.fenced: list[int] = []
        self.lacs: dict[int, int] = {}
        self.heard: list[str] = []
        self.ended: tuple[str, ...] = ()
        """Why the node ended itself, if it did."""

    async def live(self) -> None:
        """A whole life, with another one after it that reads; an error ends it, and must be one that is declared."""
        try:
            await self.node.boot()
            await self._work()
            await self._read()
            await self.node.stop()
            if not self.node.failures:  # or else the process ends, and keeps the directory until then
                await self.node.boot()
                await self._read()
                await self.node.stop()
        except (StorageError, BookieUnavailable) as error:
            self.heard.append(repr(error))
        self.ended = tuple(self.node.failures)
        self.heard += self.ended

    async def _work(self) -> None:
        for ledger_id in (1, 2):
            for number in range(3):
                await self._add(batch_of(number, ledger_id=ledger_id, payload=bytes(2 * KIB)), ledger_id, number)
        await self.node.bookie.fence(1, b"")
        self.fenced.append(1)
        await self.node.bookie.write_lac(2, 2, b"")
        self.lacs[2] = 2
        await self.node.bookie.flush()
        for number in range(3, 6):
            await self._add(batch_of(number, ledger_id=2, payload=bytes(2 * KIB)), 2, number)
        await self.clock.sleep(2)

    async def _add(self, batch: bytes, ledger_id: int, first: int) -> None:
        for _ in range(100):
            code = (await self.node.add(batch)).code
            if code not in AGAIN:
                break
            await self.clock.sleep(0.1)
        if code == 0:
            self.acked.append((ledger_id, first, batch))
        else:
            self.heard.append(f"add answered {code}")

    async def _read(self) -> None:
        for ledger_id, first, batch in self.acked:
            try:
                assert (await self.node.bookie.read_batches(ledger_id, first, first, 1)).batches == (batch,)
            except EntryUnknown as error:
                self.heard.append(repr(error))

    async def again(self) -> None:
        """Power off; on a disk that works: it boots, and everything that was acked is there."""
        await self.node.lose_power()
        self.node.disk.faults.clear()
        self.node.disk.capacity_bytes = 1 << 30
        await self.node.boot()
        heard = len(self.heard)
        await self._read()
        assert len(self.heard) == heard, self.heard[heard:]
        for ledger_id in self.fenced:
            assert (await self.node.add(batch_of(50, ledger_id=ledger_id))).code == LedgerFenced.wire_code
        for ledger_id, lac in self.lacs.items():
            assert (await self.node.bookie.read_lac(ledger_id)).lac >= lac
        await self.node.stop()
        assert self.node.failures == []


def fault(nth: int, effect: Effect) -> Callable[[SimDisk], None]:
    return lambda disk: disk.fail("*", nth=nth, effect=effect)


def lived(prepare: Callable[[SimDisk], None], check: Callable[[Life], None] | None = None) -> Life:
    """A life on a disk that was prepared for trouble, and the one after it."""

    async def scenario(world: World) -> Life:
        disk = SimDisk(SeededRng(7))
        prepare(disk)
        life = Life(world, disk)
        await life.live()
        if check is not None:
            check(life)
        if life.node._tasks is not None:
            await life.node.kill()
        await life.again()
        return life

    return run_untraced(1, scenario, deadline_seconds=3600)[1]


def operations() -> list[DiskOperation]:
    """The disk operations of a life without errors."""
    disks: list[SimDisk] = []
    told: list[DiskOperation] = []
    life = lived(disks.append, lambda _: told.extend(disks[0].trace))
    assert life.heard == []
    assert len(life.acked) == 9
    assert [operation.number for operation in told] == list(range(1, len(told) + 1))
    return told


OPERATIONS = operations()


@pytest.mark.parametrize("effect", [Effect.NOTHING, Effect.IN_FLIGHT, Effect.CACHE_ONLY], ids=lambda e: e.name.lower())
def test_j11_j14_an_error_at_any_disk_operation_is_reported_and_takes_nothing_that_was_answered(
    effect: Effect, caplog: pytest.LogCaptureFixture
) -> None:
    """Reported to the caller; by the end of the node; or, where a boot goes on without the file, in the log."""
    silent = []
    chosen = [each for each in OPERATIONS if effect is Effect.NOTHING or each.name in CHANGING]
    for operation in sample(chosen):
        caplog.clear()
        life = lived(fault(operation.number, effect))
        if not life.heard and not any(record.levelno >= logging.ERROR for record in caplog.records):
            silent.append(operation)
    assert not silent, "\n".join(map(str, silent))


def test_j17_j27_a_disk_that_is_full_from_any_operation_on_delays_and_takes_nothing_that_was_answered() -> None:
    """It has space again three seconds later. Only a start or a stop in between reports an error."""

    def full_from(number: int) -> Callable[[SimDisk], None]:
        def free(disk: SimDisk) -> None:
            disk.capacity_bytes = 1 << 30

        def look(disk: SimDisk, operation: DiskOperation) -> None:
            if operation.number == number:
                disk.capacity_bytes = disk.state.used_bytes()
                asyncio.get_running_loop().call_later(3.0, free, disk)

        def prepare(disk: SimDisk) -> None:
            disk.on_submit = lambda operation: look(disk, operation)

        return prepare

    for operation in sample([each for each in OPERATIONS if each.name in WRITES]):
        life = lived(full_from(operation.number))
        assert not life.ended, (operation, life.ended)
        assert all("DiskFull" in heard for heard in life.heard), (operation, life.heard)

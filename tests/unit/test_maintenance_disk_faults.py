"""Maintenance of a bookie on a disk that fails, or is full, at one operation, for each in turn: checkpoints, journal
rolls, dropped ledgers, compaction, the index and the scrub. Test names carry ids of docs/project/lessons.md.

``Chores`` is a life in which all of them happen. After any failure the bookie goes on or ends itself. The next life, on
a disk that works, boots, has everything that was acked, finishes what was begun, and has freed the dropped space.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.core.errors import BookieReadOnly, BookieUnavailable, Busy, DiskFull, NoSuchLedger, StorageError
from tallybook.core.ids import NO_ENTRY
from tallybook.core.limits import KIB
from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import DiskOperation, Effect, SimDisk, World, run_seed
from tallybook.sim.deterministic.crash import CHANGING
from tallybook.sim.deterministic.world import run_untraced
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..sampling import sample

KEPT, DROPPED = 1, 2
OLD_ENTRIES, NEW_ENTRIES = 6, 9
FILES = {"FORMAT", "LOCK", "cookie", "index", "journal", "ledgers", "limbo", "scrub"}
AGAIN = (Busy.wire_code, BookieReadOnly.wire_code)
SETTINGS = tiny_settings(
    entry_log_bytes=16 * KIB,
    segment_bytes=32 * KIB,
    write_cache_bytes=32 * KIB,
    flush_interval_ms=400,
    collect_interval_ms=500,
    compact_below_percent=100,
    scrub_period_s=1,
)
AT_REST = tiny_settings(entry_log_bytes=16 * KIB, segment_bytes=32 * KIB, compact_below_percent=100)
"""It runs maintenance only when the test starts it."""
WHILE_ALL_IS_DONE_SECONDS = 0.7
PATIENCE_SECONDS = 60.0
FULL_SECONDS = 3.0


def batch(ledger_id: int, entry_id: int) -> bytes:
    return batch_of(entry_id, ledger_id=ledger_id, payload=b"x" * (900 if entry_id < OLD_ENTRIES else 5 * KIB))


def filled() -> tuple[SimDisk, bytes]:
    """The disk of a bookie with two ledgers side by side in each of its logs, and its cookie."""

    async def scenario(world: World) -> tuple[SimDisk, bytes]:
        node = DiskBookie(SimDisk(SeededRng(7)), world.clock, None, AT_REST)
        await node.boot()
        for entry_id in range(OLD_ENTRIES):
            for ledger_id in (DROPPED, KEPT):
                assert (await node.add(batch(ledger_id, entry_id))).code == 0
            await node.bookie.flush()
            await world.clock.sleep(0.1)
        await node.stop()
        return node.disk, node.metadata.cookies["b1"]

    return run_seed(1, scenario).value


FILLED, COOKIE = filled()


class Chores:
    """A life in which a ledger is dropped, logs are compacted and scrubbed, and the journal turns."""

    def __init__(self, world: World, disk: SimDisk) -> None:
        metadata = KnownMetadata(cookies={"b1": COOKIE}, dispositions={DROPPED: LedgerDisposition.RELEASED})
        self.node = DiskBookie(disk, world.clock, metadata, SETTINGS)
        self.clock = world.clock
        self.acked = list(range(OLD_ENTRIES))
        self.heard: list[str] = []
        self.chores: dict[str, float] = {}
        self.segment = 0
        self.ended: tuple[str, ...] = ()
        """Why the node ended itself, if it did."""

    async def live(self) -> None:
        """Run the whole life; an error ends it, and must be a documented one."""
        try:
            await self.node.boot()
            await self._work()
            if not self.node.failures:  # or else the process has ended
                await self._read()
                self.chores = dict(self.node.bookie.stats())
                self.segment = self.node.parts.journals.durable_marks()[0].segment
                await self.node.stop()
        except (StorageError, BookieUnavailable) as error:
            self.heard.append(repr(error))
        self.ended = tuple(self.node.failures)

    async def _work(self) -> None:
        for entry_id in range(OLD_ENTRIES, OLD_ENTRIES + NEW_ENTRIES):
            if not self.node.failures:
                await self._add(entry_id)
                await self.clock.sleep(0.1)
        await self.clock.sleep(WHILE_ALL_IS_DONE_SECONDS)

    async def _add(self, entry_id: int) -> None:
        deadline = self.clock.monotonic() + PATIENCE_SECONDS
        while (code := (await self.node.add(batch(KEPT, entry_id))).code) in AGAIN:
            assert self.clock.monotonic() < deadline, "it never has room again"
            await self.clock.sleep(0.1)
        if code == 0:
            self.acked.append(entry_id)
        else:
            self.heard.append(f"add answered {code}")

    async def _read(self) -> None:
        for entry_id in self.acked:
            answer = await self.node.bookie.read_batches(KEPT, entry_id, entry_id, 1)
            assert answer.batches == (batch(KEPT, entry_id),)

    async def again(self) -> None:
        """Power off; on a disk that works: nothing is lost, what was begun is ended, and all that can go is gone."""
        await self.node.lose_power()
        self.node.settings = AT_REST
        self.node.disk.faults.clear()
        self.node.disk.capacity_bytes = 1 << 30
        await self.node.boot()
        await self._read()
        await self.node.bookie.flush()
        parts = self.node.parts
        for _ in range(2):
            await parts.scrub.run_pass()  # it finds out, too, what was written again elsewhere
            await self.node.bookie.collect()
        await self._read()
        with pytest.raises(NoSuchLedger):
            await self.node.bookie.read_batches(DROPPED, 0, 0, 1)
        assert await parts.index.ledgers_with_rows(NO_ENTRY, 100) == [KEPT]
        for log_id in parts.logs.settled_log_ids:
            found = await parts.collector.reclaimer.contents.measure(log_id)
            assert found.live_bytes == found.all_bytes, f"the room of what was dropped stays in log {log_id}"
        assert await self.node.bookie.damaged((-1, -1), 100) == ()
        await self.node.stop()
        assert self.node.failures == []
        assert set(self.node.disk.state.names(ROOT)) <= FILES


def lived(prepare: Callable[[SimDisk], object], check: Callable[[Chores], None] | None = None) -> Chores:
    """A life on a disk that was prepared for trouble, and the one after it."""

    async def scenario(world: World) -> Chores:
        disk = FILLED.fork()
        prepare(disk)
        life = Chores(world, disk)
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
    told: list[DiskOperation] = []
    disks: list[SimDisk] = []
    life = lived(disks.append, lambda _: told.extend(disks[0].trace))
    assert (life.heard, life.ended) == ([], ())
    assert len(life.acked) == OLD_ENTRIES + NEW_ENTRIES
    assert life.chores["ledgers_dropped_total"] == 1
    assert life.chores["compacted_bytes_total"] > 0
    assert life.chores["entry_logs_removed_total"] >= 2
    assert life.chores["scrub_rounds_total"] >= 1
    assert life.chores["checkpoints_total"] >= 3
    assert life.segment >= 3, "the journal turns"
    return told


OPERATIONS = operations()
WRITES = frozenset({"create", "mkdir", "truncate", "write", "write-durable"})
OPERATIONS_THAT_WRITE = [operation for operation in OPERATIONS if operation.name in WRITES]
EFFECTS = {
    Effect.NOTHING: frozenset(operation.name for operation in OPERATIONS),
    Effect.IN_FLIGHT: CHANGING,
    Effect.PART: frozenset({"write", "write-durable"}),
    Effect.CACHE_ONLY: frozenset({"sync", "write", "write-durable"}),
}
"""Effects that a failing operation may still have, and the kinds of operations that have them."""


def test_the_life_does_all_its_chores() -> None:
    done = {(operation.name, operation.path.split("/")[3]) for operation in OPERATIONS if operation.path.count("/") > 2}
    assert {
        ("write", "ledgers"),
        ("sync", "ledgers"),
        ("create", "ledgers"),
        ("unlink", "ledgers"),
        ("sync-directory", "ledgers"),
        ("read", "ledgers"),
        ("write", "index"),
        ("sync", "index"),
        ("write-durable", "journal"),
        ("rename", "scrub.tmp"),
    } <= done


@pytest.mark.parametrize("effect", list(EFFECTS), ids=lambda effect: effect.name.lower())
def test_j11_j14_e02_an_error_at_any_disk_operation_of_a_chore_takes_nothing_and_the_next_life_ends_the_chore(
    effect: Effect,
) -> None:
    for operation in sample([operation for operation in OPERATIONS if operation.name in EFFECTS[effect]]):
        with told_of(operation):
            lived(lambda disk, number=operation.number: disk.fail("*", nth=number, effect=effect))


def test_j17_e04_a_write_for_which_there_is_no_space_delays_a_chore_and_takes_nothing() -> None:
    """The bookie does not end for it. The space of its journal is preallocated: a device that refuses it is broken."""
    for operation in sample(OPERATIONS_THAT_WRITE):
        with told_of(operation):
            life = lived(lambda disk, number=operation.number: disk.fail("*", nth=number, error=DiskFull))
            assert not life.ended or operation.name == "write-durable", life.ended
            assert life.ended or all("DiskFull" in heard for heard in life.heard), life.heard


def test_j17_e04_a_disk_that_is_full_from_any_operation_of_a_chore_on_delays_it_until_there_is_space() -> None:
    """Only a start or a stop in between reports an error."""
    for operation in sample(OPERATIONS_THAT_WRITE):
        with told_of(operation):
            life = lived(lambda disk, number=operation.number: full_from(disk, number))
            assert not life.ended
            assert all("DiskFull" in heard for heard in life.heard), life.heard


def full_from(disk: SimDisk, number: int) -> None:
    """Full from an operation on, for a while."""

    def free() -> None:
        disk.capacity_bytes = 1 << 30

    def look(operation: DiskOperation) -> None:
        if operation.number == number:
            disk.capacity_bytes = disk.state.used_bytes()
            asyncio.get_running_loop().call_later(FULL_SECONDS, free)

    disk.on_submit = look


@contextmanager
def told_of(operation: DiskOperation) -> Iterator[None]:
    """Say which operation it was, where the life after it is not as it has to be."""
    try:
        yield
    except Exception as error:
        error.add_note(f"after trouble with {operation}")
        raise

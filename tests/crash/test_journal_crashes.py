"""Power failures at any time in the journal: no acked record is lost, every boot succeeds, no old record returns.

A ``Node`` is the smallest bookie that can use a journal: it numbers its records, and its "storage" is one file with
the highest checkpointed number. It promises what a client would be acked. ``check`` boots from the crashed disk and
compares. Then it appends and boots again, and the enumerator loses power in the middle of that, too.
"""

import asyncio
import hashlib
import struct
from collections.abc import Callable

import pytest

from tallybook.bookie.journal import replay, superblock_file
from tallybook.bookie.journal.format import (
    BatchRecord,
    DeleteRecord,
    ExplicitLacRecord,
    FenceRecord,
    JournalMark,
    JournalRecord,
    LedgerIdentityRecord,
    LedgerKeyRecord,
)
from tallybook.bookie.journal.group_commit import GroupCommit, Queued
from tallybook.bookie.journal.journal import Journal, RecoveredJournal
from tallybook.bookie.journal.segment_recycler import SegmentRecycler
from tallybook.core.limits import KIB
from tallybook.core.settings import JournalSettings
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import Tasks
from tallybook.sim.deterministic import CrashOptions, Promises, SimClock, SimDisk, enumerate_crashes
from tallybook.sim.deterministic.crash import CrashFound

DIRECTORY = "/bookie/journal"
CHECKPOINT = "/bookie/checkpoint"
SETTINGS = JournalSettings(segment_bytes=16 * KIB, segment_count=4, max_commit_bytes=8 * KIB, seal_after_ms=50)
OPTIONS = CrashOptions(subsets=6, tear_points=7)
NUMBER = struct.Struct("<qqI")


def batch(boot: int, number: int, size: int) -> BatchRecord:
    """A record that says which life wrote it, which number it has, and whether a byte of it is wrong."""
    filler = hashlib.shake_128(f"{boot}/{number}".encode()).digest(size)
    return BatchRecord(NUMBER.pack(boot, number, size) + filler, recovery=number % 2 == 1)


def number_of(record: JournalRecord, boot: int) -> int:
    """The record's number, once it is certain that life ``boot`` wrote exactly this."""
    if isinstance(record, BatchRecord):
        found_boot, number, size = NUMBER.unpack_from(record.batch)
        assert record == batch(found_boot, number, size), "wrong bytes were replayed"
        assert found_boot == boot, f"a record of life {found_boot} came back in life {boot}"
        return number
    assert record == small_record(record.ledger_id), "wrong bytes were replayed"
    return record.ledger_id


def small_record(number: int) -> JournalRecord:
    """A record of one of the other kinds."""
    verifier = hashlib.sha256(str(number).encode()).digest()
    return (
        FenceRecord(number, verifier),
        LedgerKeyRecord(number, verifier),
        LedgerIdentityRecord(number, verifier, verifier[:16]),
        ExplicitLacRecord(number, number - 1),
        DeleteRecord(number),
    )[number % 5]


class Failed(AssertionError):
    """The journal gave up in a run without disk errors."""


class Node:
    """One incarnation of a journal's owner. Numbers increase by one, over all incarnations."""

    def __init__(self, disk: SimDisk, promises: Promises) -> None:
        self.disk = disk
        self.promises = promises
        self.journal: Journal | None = None
        self.boot = 0
        self.next = 0
        self.acked = -1

    async def start(self, settings: JournalSettings = SETTINGS, *, look_twice: bool = False) -> list[int]:
        """Recover, check what came back, checkpoint it, start. Returns the numbers that were replayed."""
        clock = SimClock()
        recovered = await Journal.recover(self.disk, DIRECTORY, settings, SeededRng("journal"))
        numbers = await replayed(recovered)
        if look_twice:
            again = await Journal.recover(self.disk, DIRECTORY, settings, SeededRng("journal"))
            assert (again.boot, again.clean, await replayed(again)) == (recovered.boot, recovered.clean, numbers)
        checkpointed = await read_checkpoint(self.disk)
        self.next = max([checkpointed, *numbers]) + 1
        self.acked = self.next - 1
        await write_checkpoint(self.disk, self.acked)
        self.journal = await recovered.start(clock, Tasks("node", fatal), failed, on_space=lambda: None)
        self.boot = recovered.boot
        self.promises.add(("boot", self.boot))
        return numbers

    def append(self, size: int = 100, *, small: bool = False) -> None:
        """Journal the next record; the client is acked when it is durable."""
        number, self.next = self.next, self.next + 1
        record = small_record(number) if small else batch(self.boot, number, size)
        self.promises.add(("appended", number))

        def durable() -> None:
            assert self.acked == number - 1, "acked out of order"
            self.acked = number
            self.promises.add(("acked", number))

        self.journal.append(record, durable)

    async def drained(self) -> None:
        assert await self.journal.drained(10.0), f"no room for the workload: {self.journal.space_bytes(urgent=True)}"

    def mark(self) -> tuple[JournalMark, int]:
        """The position of the journal, and the last durable number there."""
        return self.journal.durable_mark(), self.acked

    async def checkpoint(self, marked: tuple[JournalMark, int] | None = None) -> None:
        """Checkpoint first, then trim."""
        mark, upto = marked or self.mark()
        await write_checkpoint(self.disk, upto)
        await self.journal.trim(mark)
        self.promises.add(("trimmed", upto))

    async def silence(self) -> None:
        """Long enough for a seal."""
        await SimClock().sleep(0.2)

    async def stop(self, *, clean: bool) -> None:
        await self.journal.close(clean=clean)
        if clean:
            self.promises.add(("stopped", self.boot))


async def read_checkpoint(disk: SimDisk) -> int:
    data = await disk.read_file(CHECKPOINT, 64)
    return -1 if data is None else int(data)


async def write_checkpoint(disk: SimDisk, upto: int) -> None:
    await disk.make_directory("/bookie")
    if await read_checkpoint(disk) < upto:
        await disk.replace_file(CHECKPOINT, str(upto).encode())


def fatal(task: str, error: BaseException) -> None:
    raise Failed(task) from error


def failed(error: Exception) -> None:
    raise Failed(str(error)) from error


async def replayed(recovered: RecoveredJournal) -> list[int]:
    """The replayed numbers: consecutive, all of the last incarnation, all with the right bytes."""
    assert recovered.damage == ()
    numbers = [number_of(record, recovered.boot - 1) async for record in recovered.records()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
    return numbers


async def check(disk: SimDisk, promises: tuple[object, ...]) -> None:
    """Check the state after a crash, and that the journal can be used."""
    last = dict(promises)
    node = Node(disk, Promises(lambda: None))
    before = await read_checkpoint(disk)
    numbers = await node.start(look_twice=True)
    have = max([before, *numbers])
    assert last.get("acked", -1) <= have, f"acked {last['acked']}, but only {have} is there"
    assert not numbers or numbers[0] <= before + 1, f"a gap between checkpoint {before} and {numbers[0]}"
    assert not numbers or numbers[0] > last.get("trimmed", -1), "what was trimmed came back"
    assert node.boot > last.get("boot", 0), "a boot number was used twice"
    if promises and promises[-1] == ("stopped", node.boot - 1):
        assert not numbers, "a clean stop leaves nothing to replay"
    expected = list(range(node.next, node.next + 3))
    node.append(3000)
    node.append(small=True)
    node.append(6000)
    await node.drained()
    await node.stop(clean=False)
    assert await node.start() == expected, "records of a life after the crash"
    await node.stop(clean=True)
    assert await node.start() == [], "a clean stop leaves nothing to replay"
    await node.stop(clean=False)


# -- workloads ------------------------------------------------------------------------------


async def fresh_creation(disk: SimDisk, promises: Promises) -> None:
    node = Node(disk, promises)
    await node.start()
    for size in (1, 3940, 3941):
        node.append(size)
        await node.drained()
    await node.stop(clean=False)


async def group_commits(disk: SimDisk, promises: Promises) -> None:
    node = Node(disk, promises)
    await node.start()
    for _ in range(3):
        for _ in range(9):
            node.append(700)
            node.append(small=True)
        await node.drained()
        await node.checkpoint()
    await node.stop(clean=False)


async def roll_and_recycle(disk: SimDisk, promises: Promises) -> None:
    node = Node(disk, promises)
    await node.start()
    for size in (7000, 3000, 5000, 100, 8000, 6000, 2000, 7500):
        node.append(size)
        await node.drained()
        if size in {100, 6000, 7500}:
            await node.checkpoint()
    segment = node.journal.durable_mark().segment
    assert segment > SETTINGS.segment_count, "the ring went round"
    await node.stop(clean=False)


async def three_times_round(disk: SimDisk, promises: Promises) -> None:
    """Every file of the ring is used again and again, always with the oldest segment not yet free when it is wanted."""
    node = Node(disk, promises)
    await node.start()
    for number in range(24):
        before = node.mark()
        node.append(7500)
        await node.drained()
        if number % 2:
            await node.checkpoint(before)
    segment = node.journal.durable_mark().segment
    assert segment > 3 * SETTINGS.segment_count, f"the ring is at segment {segment}"
    await node.stop(clean=False)


async def trim_beside_appends(disk: SimDisk, promises: Promises) -> None:
    node = Node(disk, promises)
    await node.start()
    tasks = Tasks("trims", fatal)
    for round_number in range(3):
        for size in (3000, 5000, 200):
            node.append(size)
        await node.drained()
        marked = node.mark()
        trim = tasks.spawn(node.checkpoint(marked), name=f"trim {round_number}")
        node.append(2500)
        node.append(small=True)
        await trim
        await node.drained()
    await node.stop(clean=False)


async def seals(disk: SimDisk, promises: Promises) -> None:
    node = Node(disk, promises)
    await node.start()
    for _ in range(4):
        node.append(2000)
        node.append(3000)
        await node.drained()
        await node.silence()
    await node.checkpoint()
    node.append(10)
    await node.drained()
    await node.stop(clean=False)


async def clean_stops(disk: SimDisk, promises: Promises) -> None:
    node = Node(disk, promises)
    for _ in range(2):
        await node.start()
        node.append(5000)
        node.append(1000)
        await node.drained()
        await node.checkpoint()
        await node.stop(clean=True)
    await node.start()
    await node.stop(clean=True)


async def unclean_boots(disk: SimDisk, promises: Promises) -> None:
    node = Node(disk, promises)
    for count in (3, 1, 0, 2):
        await node.start()
        for _ in range(count):
            node.append(3500)
        await node.drained()
        await node.stop(clean=False)


async def another_geometry(disk: SimDisk, promises: Promises) -> None:
    larger = SETTINGS.model_copy(update={"segment_bytes": 24 * KIB, "segment_count": 5})
    node = Node(disk, promises)
    for settings in (larger, SETTINGS, larger):
        await node.start(settings)
        node.append(4000)
        node.append(7000)
        await node.drained()
        await node.stop(clean=False)


LEAST_STATES = {
    fresh_creation: 350,
    group_commits: 900,
    roll_and_recycle: 1_150,
    three_times_round: 600,
    trim_beside_appends: 1_200,
    seals: 900,
    clean_stops: 1_000,
    unclean_boots: 1_250,
    another_geometry: 1_200,
}
"""Least distinct crash states of each workload: with fewer, the enumeration has lost its teeth, and proves little."""


THIN = {three_times_round: CrashOptions(subsets=1, singles=2, torn_writes=1, tear_points=2)}
"""Workloads too long for ``OPTIONS`` in an ordinary run."""


@pytest.mark.parametrize("workload", LEAST_STATES, ids=lambda workload: workload.__name__)
def test_j02_j05_j06_no_power_loss_loses_an_acked_record_or_stops_a_boot(workload, crashes) -> None:
    report = crashes(workload, check, options=THIN.get(workload, OPTIONS), doubles=100)
    assert report.distinct >= LEAST_STATES[workload]
    assert report.doubles


def test_the_workloads_together_go_through_five_thousand_states_and_more() -> None:
    assert sum(LEAST_STATES.values()) >= 5_000


# -- planted bugs: the enumeration is worth something only if it finds each of them -----------


def ack_before_durable(patch: pytest.MonkeyPatch) -> None:
    put = GroupCommit.put

    def put_and_ack(self: GroupCommit, queued: Queued) -> None:
        header, body, charge, on_durable, since = queued
        asyncio.get_running_loop().call_soon(on_durable)
        put(self, (header, body, charge, lambda: None, since))

    patch.setattr(GroupCommit, "put", put_and_ack)


def fence_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    append = Journal.append

    def append_others(self: Journal, record: JournalRecord, on_durable: Callable[[], None]) -> None:
        if isinstance(record, FenceRecord):
            # Answered when what came before is durable, as if it were itself.
            records = self._source._open._records
            told = records[-1].on_durable
            records[-1] = records[-1]._replace(on_durable=lambda: (told(), on_durable()))
        else:
            append(self, record, on_durable)

    patch.setattr(Journal, "append", append_others)


def recycled_early(patch: pytest.MonkeyPatch) -> None:
    def next_is_free(self: SegmentRecycler) -> bool:
        return self.facts.prepared + 1 - self.facts.geometry.segment_count < self.facts.trim.segment + 1

    patch.setattr(SegmentRecycler, "_next_is_free", next_is_free)


def directory_not_synced(patch: pytest.MonkeyPatch) -> None:
    sync_directory = SimDisk.sync_directory

    async def sync_others(self: SimDisk, path: str) -> None:
        if path != DIRECTORY:
            await sync_directory(self, path)

    patch.setattr(SimDisk, "sync_directory", sync_others)


def superblock_in_one_slot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(superblock_file, "slot_offset", lambda _: 0)


def torn_tail_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replay, "body_is_intact", lambda *_: True)


async def a_few_kinds(disk: SimDisk, promises: Promises) -> None:
    node = Node(disk, promises)
    await node.start()
    node.append(3500)
    for _ in range(5):
        node.append(small=True)
    await node.drained()
    await node.stop(clean=False)


async def a_full_ring(disk: SimDisk, promises: Promises) -> None:
    node = Node(disk, promises)
    await node.start()
    await node.silence()
    for size in (8000, 7000, 8000):
        node.append(size)
    await node.drained()
    await node.checkpoint()
    for size in (8000, 7000, 3000, 8000):
        node.append(size)
    await node.drained()
    await node.silence()
    await node.stop(clean=False)


FEW = CrashOptions(subsets=1, singles=2, torn_writes=1, tear_points=2)


@pytest.mark.parametrize(
    ("plant", "workload"),
    [
        (ack_before_durable, a_few_kinds),
        (fence_in_memory_only, a_few_kinds),
        (recycled_early, a_full_ring),
        (directory_not_synced, a_few_kinds),
        (superblock_in_one_slot, unclean_boots),
        (torn_tail_accepted, fresh_creation),
    ],
    ids=lambda part: part.__name__,
)
def test_a_planted_bug_of_the_journal_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], workload
) -> None:
    plant(monkeypatch)
    with pytest.raises(CrashFound) as found:
        enumerate_crashes(workload, check, options=FEW, max_failures=1)
    print(f"{plant.__name__}: {found.value}")

"""A whole bookie, with a power failure at every disk operation, and another one during the next boot.

After any crash, the bookie boots, every acked entry is readable with the same bytes, every answered fence holds, every
accepted LAC is remembered, deleted ledgers stay deleted, and a second boot gives the same state as the first.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from tallybook.bookie.journal.journals import JournalMarks, Journals, journal_of
from tallybook.bookie.storage.checkpoint import Checkpointer
from tallybook.core.add_kind import AddKind
from tallybook.core.errors import EntryAbsent, LedgerFenced, NoSuchLedger
from tallybook.core.limits import KIB
from tallybook.core.settings import BookieSettings
from tallybook.runtime.clock import Clock
from tallybook.sim.deterministic import CrashFound, CrashOptions, SimClock, SimDisk, World, enumerate_crashes, run_seed
from tallybook.sim.deterministic.crash import CrashWorkload, Promises
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..sampling import SAMPLE

LEDGERS = (1, 2, 3)
LAST_ENTRY = 100
SETTINGS = tiny_settings(segment_bytes=32 * KIB)
WIDE = tiny_settings(
    segment_bytes=32 * KIB,
    entry_log_bytes=4 * KIB,
    journal_directories=[f"{ROOT}/journal", "/disk2/journal"],
    ledger_directories=[f"{ROOT}/ledgers", "/disk2/ledgers"],
)
"""Two journals, and two directories of entry logs, that are used in turns."""
FEW = CrashOptions(subsets=4, singles=8, torn_writes=2, tear_points=2)
FEWEST = CrashOptions(subsets=1, singles=1, torn_writes=1, tear_points=1)


class Acked(NamedTuple):
    batch: bytes
    ledger_id: int
    first: int


class Fenced(NamedTuple):
    ledger_id: int


class Lac(NamedTuple):
    ledger_id: int
    lac: int


class Deleting(NamedTuple):
    ledger_id: int


class Deleted(NamedTuple):
    ledger_id: int


class Cookie(NamedTuple):
    data: bytes


class Registry(KnownMetadata):
    """Metadata that promises, at once, that a cookie was recorded."""

    promises: Promises | None = None

    async def write_cookie(self, bookie_id: str, cookie: bytes, *, replace: bool = False) -> None:
        await super().write_cookie(bookie_id, cookie, replace=replace)
        if self.promises is not None:
            self.promises.add(Cookie(cookie))


class Client:
    """Does things to a bookie, and promises what was answered."""

    def __init__(self, node: DiskBookie, promises: Promises) -> None:
        self.node = node
        self._promises = promises

    async def add(self, *firsts: int, ledger_id: int = 1, size: int = 10, recovery: bool = False) -> None:
        batches = [(batch_of(first, 2, ledger_id=ledger_id, payload=bytes(size)), first) for first in firsts]
        answers = [
            self.node.add(batch, kind=AddKind.RECOVERY if recovery else AddKind.ORDINARY) for batch, _ in batches
        ]
        for (batch, first), answer in zip(batches, answers, strict=True):
            code = (await answer).code
            assert code in (0, LedgerFenced.wire_code)
            if code == 0:
                self._promises.add(Acked(batch, ledger_id, first))

    async def fence(self, ledger_id: int) -> None:
        await self.node.bookie.fence(ledger_id, b"")
        self._promises.add(Fenced(ledger_id))

    async def lac(self, ledger_id: int, lac: int) -> None:
        await self.node.bookie.write_lac(ledger_id, lac, b"")
        self._promises.add(Lac(ledger_id, lac))

    async def delete(self, ledger_id: int) -> None:
        self._promises.add(Deleting(ledger_id))
        await self.node.bookie.delete_ledger(ledger_id)
        self._promises.add(Deleted(ledger_id))


async def snapshot(node: DiskBookie) -> dict[int, object]:
    """Everything that can be read."""
    found: dict[int, object] = {}
    for ledger_id in LEDGERS:
        try:
            ranges = (await node.bookie.held(ledger_id, 0, LAST_ENTRY)).ranges
        except NoSuchLedger:
            found[ledger_id] = NoSuchLedger
            continue
        batches = [await node.bookie.read_batches(ledger_id, first, last, 1 << 20) for first, last in ranges]
        try:
            lac: object = await node.bookie.read_lac(ledger_id)
        except EntryAbsent as error:
            lac = type(error)
        found[ledger_id] = ([bytes(batch) for answer in batches for batch in answer.batches], lac)
    return found


async def is_gone(node: DiskBookie, ledger_id: int) -> bool:
    try:
        await node.bookie.read_batches(ledger_id, LAST_ENTRY, LAST_ENTRY, 1)
    except EntryAbsent:
        return False
    except NoSuchLedger:
        return True
    return False


async def keeps(node: DiskBookie, promises: tuple[object, ...]) -> None:
    """Check the guarantees of the running bookie."""
    deleted = {promise.ledger_id for promise in promises if isinstance(promise, Deleted)}
    deleting = {promise.ledger_id for promise in promises if isinstance(promise, Deleting)} - deleted
    # These were not acknowledged yet: each is there completely, or it is gone.
    gone = [ledger_id for ledger_id in sorted(deleting) if await is_gone(node, ledger_id)]
    deleted.update(gone)
    for promise in promises:
        match promise:
            case Acked(batch, ledger_id, first) if ledger_id not in deleted:
                answer = await node.bookie.read_batches(ledger_id, first, first, 1)
                assert answer.batches == (batch,)
            case Fenced(ledger_id):
                refused = await node.add(batch_of(1_000, ledger_id=ledger_id))
                assert refused.code in (LedgerFenced.wire_code, NoSuchLedger.wire_code)
            case Lac(ledger_id, lac) if ledger_id not in deleted:
                assert (await node.bookie.read_lac(ledger_id)).lac >= lac
            case Deleted(ledger_id):
                refused = await node.add(batch_of(1_000, ledger_id=ledger_id), kind=AddKind.RECOVERY)
                assert refused.code == NoSuchLedger.wire_code


async def check(disk: SimDisk, promises: tuple[object, ...], settings: BookieSettings = SETTINGS) -> None:
    """Boots, keeps its promises, takes new work; and a second boot finds what the first one found."""
    told = next((promise.data for promise in promises if isinstance(promise, Cookie)), None)
    told = told or await disk.read_file(f"{ROOT}/cookie", 4 * KIB)
    metadata = KnownMetadata(cookies={} if told is None else {"b1": told})
    node = DiskBookie(disk, SimClock(), metadata, settings)
    await node.boot()
    await keeps(node, promises)
    before = await snapshot(node)
    await node.kill()
    await node.boot()
    assert await snapshot(node) == before
    await keeps(node, promises)
    assert (await node.add(batch_of(0, ledger_id=500))).code == 0
    await node.stop()
    assert node.failures == []


async def check_wide(disk: SimDisk, promises: tuple[object, ...]) -> None:
    await check(disk, promises, WIDE)


def booted(settings: BookieSettings = SETTINGS) -> SimDisk:
    """The disk of a bookie that was booted once and stopped."""

    async def scenario(world: World) -> SimDisk:
        node = DiskBookie(SimDisk(world.rng), world.clock, None, settings)
        await node.boot()
        await world.clock.sleep(1)
        await node.stop()
        return node.disk

    return run_seed(1, scenario).value


Work = Callable[[Client, Clock], Awaitable[None]]


def workload_of(work: Work, settings: BookieSettings = SETTINGS) -> CrashWorkload:
    """``work``, done to a bookie that was booted before."""

    async def workload(disk: SimDisk, promises: Promises) -> None:
        cookie = await disk.read_file(f"{ROOT}/cookie", 4 * KIB)
        assert cookie is not None
        promises.add(Cookie(cookie))
        node = DiskBookie(disk, SimClock(), KnownMetadata(cookies={"b1": cookie}), settings)
        await node.boot()
        await work(Client(node, promises), SimClock())
        if node._bookie is not None:
            await node.stop()
        assert node.failures == []

    return workload


def test_the_first_boot_survives_a_crash_at_every_disk_operation(crashes) -> None:
    async def workload(disk: SimDisk, promises: Promises) -> None:
        metadata = Registry()
        metadata.promises = promises
        node = DiskBookie(disk, SimClock(), metadata, SETTINGS)
        await node.boot()
        await Client(node, promises).add(0)
        await node.stop()

    assert crashes(workload, check, options=FEW, doubles=50).distinct > 100


async def group_commits(client: Client, clock: Clock) -> None:
    await client.add(0, size=700)
    await asyncio.gather(*(client.add(0, 2, 4, 6, ledger_id=ledger_id, size=700) for ledger_id in LEDGERS))
    await client.add(8, 10, 12, size=3000)
    await clock.sleep(0.2)
    await client.add(2, size=700)


async def fences_lacs_and_deletions(client: Client, clock: Clock) -> None:
    recovered = client.add(0, ledger_id=2, recovery=True)
    await asyncio.gather(client.add(0, 2), client.fence(1), client.fence(2), recovered)
    await client.lac(3, 7)
    await client.add(4, 2, recovery=True)
    await client.node.bookie.flush()
    await client.lac(3, 9)
    await client.delete(2)
    await client.fence(3)


async def checkpoints(client: Client, clock: Clock) -> None:
    await client.add(0, 2, size=500)
    await asyncio.gather(client.node.bookie.flush(), client.add(0, 2, 4, ledger_id=2), client.fence(3))
    await client.add(10, 12, recovery=True)
    await asyncio.gather(client.node.bookie.flush(), client.fence(1), client.lac(2, 5))
    await client.add(8, 6, recovery=True)
    await client.node.bookie.flush()


async def checkpoints_of_states_alone(client: Client, clock: Clock) -> None:
    """Fences, LACs and a deletion are all that is newer than the mark; no batch comes with them, or after."""
    await client.add(0, size=500)
    await client.node.bookie.flush()
    await client.fence(2)
    await client.lac(3, 5)
    await client.node.bookie.flush()
    await asyncio.gather(client.node.bookie.flush(), client.lac(3, 8), client.fence(1))
    await client.delete(2)
    await client.lac(3, 9)
    await client.node.bookie.flush()


async def an_unclean_stop(client: Client, clock: Clock) -> None:
    await client.add(0, 2, 4)
    await client.fence(2)
    await client.node.stop(clean=False)
    await client.node.boot()
    await client.add(6)
    await client.add(0, ledger_id=3)


@pytest.mark.parametrize(
    ("work", "least"),
    [
        (group_commits, 200),
        (fences_lacs_and_deletions, 200),
        (checkpoints, 300),
        (checkpoints_of_states_alone, 150),
        (an_unclean_stop, 150),
    ],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_j02_j04_j25_no_power_loss_takes_what_was_answered_or_stops_a_boot(work: Work, least: int, crashes) -> None:
    report = crashes(workload_of(work), check, options=FEW, doubles=100, disk=booted())
    assert report.distinct > least
    assert report.doubles


@pytest.mark.parametrize(
    ("work", "least"),
    [(fences_lacs_and_deletions, 500), (checkpoints, 600), (an_unclean_stop, 500)],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_j01_j03_j24_no_power_loss_takes_anything_from_two_journals_and_two_directories_of_entry_logs(
    work: Work, least: int, crashes
) -> None:
    async def uses_all(client: Client, clock: Clock) -> None:
        await work(client, clock)
        await client.add(0, ledger_id=4, size=3000)
        await client.add(0, ledger_id=6, size=3000)
        await client.node.bookie.flush()
        await client.add(2, ledger_id=4, size=3000)
        await client.node.bookie.flush()
        disk, parts = client.node.disk, client.node.parts
        assert all(any(name.endswith(".log") for name in disk.state.names(path)) for path in WIDE.ledger_directories)
        assert all(journal.commits for journal in parts.journals.each)

    assert {journal_of(ledger_id, 2) for ledger_id in LEDGERS} == {0, 1}
    report = crashes(workload_of(uses_all, WIDE), check_wide, options=FEWEST, doubles=20, full=FEW, disk=booted(WIDE))
    assert report.distinct > least
    assert report.doubles


def test_journals_and_directories_may_be_added_with_a_crash_at_every_disk_operation(crashes) -> None:
    async def work(client: Client, clock: Clock) -> None:
        await client.add(0, 2)
        await client.add(0, ledger_id=2)

    report = crashes(workload_of(work, WIDE), check_wide, options=FEWEST, doubles=20, full=FEW, disk=booted())
    assert report.distinct > 150


@pytest.mark.parametrize("bug", ["marks before flush", "one mark for all"])
def test_the_enumeration_finds_marks_of_two_journals_that_are_wrong(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, trim = Checkpointer._checkpoint, Journals.trim

    async def marks_first(self: Checkpointer) -> None:
        await self._journals.trim(self._journals.durable_marks())
        await checkpoint(self)

    async def all_they_have(self: Journals, marks: JournalMarks) -> None:
        # As if one mark stood for all: what came to the second one meanwhile goes with what was flushed.
        await trim(self, (marks[0], self.durable_marks()[1]))

    async def work(client: Client, clock: Clock) -> None:
        await client.add(0, ledger_id=2)
        await asyncio.gather(client.node.bookie.flush(), client.add(0, 2, 4), client.add(2, ledger_id=2))

    if bug == "marks before flush":
        monkeypatch.setattr(Checkpointer, "_checkpoint", marks_first)
    else:
        monkeypatch.setattr(Journals, "trim", all_they_have)
    with pytest.raises(CrashFound, match="crash states fail"):
        enumerate_crashes(
            workload_of(work, WIDE), check_wide, disk=booted(WIDE), options=FEW, sample=SAMPLE, max_failures=1
        )


def test_j05_a_full_cache_and_a_turning_journal_survive_every_crash(crashes) -> None:
    rounds, least_segment = (14, 6) if crashes.thorough else (7, 3)

    async def work(client: Client, clock: Clock) -> None:
        for number in range(rounds):
            await client.add(4 * number, 4 * number + 2, ledger_id=1 + number % 3, size=3000)
        segment = client.node.parts.journals.durable_marks()[0].segment
        assert segment >= least_segment, f"the journal is in segment {segment}"

    small = tiny_settings(write_cache_bytes=32 * KIB, segment_bytes=32 * KIB)
    report = crashes(workload_of(work, small), check, options=FEWEST, doubles=100, full=FEWEST, disk=booted())
    assert report.distinct > 300


@pytest.mark.parametrize("bug", ["mark before flush", "no index sync"])
def test_the_enumeration_finds_a_checkpoint_in_the_wrong_order(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpointer._checkpoint

    async def mark_first(self: Checkpointer) -> None:
        await self._journals.trim(self._journals.durable_marks())
        await checkpoint(self)

    async def nothing(self: object) -> None:
        await asyncio.sleep(0)

    if bug == "mark before flush":
        monkeypatch.setattr(Checkpointer, "_checkpoint", mark_first)
    else:
        monkeypatch.setattr("tallybook.sim.memory_bookie.index.MemoryIndex.sync", nothing)
    with pytest.raises(CrashFound, match="crash states fail"):
        enumerate_crashes(workload_of(checkpoints), check, disk=booted(), options=FEW, sample=SAMPLE, max_failures=1)

"""A metadata store restored from an older copy: bookies detect it, raise its id counter, and drop nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from tallybook.bookie.directories import disk_monitor
from tallybook.bookie.gc.plan import GarbagePolicy, GcDelays
from tallybook.bookie.journal import journal
from tallybook.bookie.ledgers.disposition import LedgerDisposition, disposition_of
from tallybook.core.errors import Conflict, MetadataUnavailable, OtherLedger
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata
from tallybook.metadata.memory import MemoryMetadata, MemoryMetadataStore
from tallybook.metadata.records.restored_store import RECORD, RestoreRecord, RestoreRecordStore, decode_restore_record
from tallybook.metadata.store import Versioned
from tallybook.sim.deterministic import Latency, SimDisk, World
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..simulated import Parts, on_stage
from ..support.log_lines import line_of


def ledger(ledger_id: int, token: str = "creator", bookies: tuple[str, ...] = ("b1",)) -> LedgerMetadata:
    return LedgerMetadata(ledger_id, Quorum(1, 1, 1), (Fragment(0, bookies),), token, 0)


class Around:
    """A bookie beside a metadata store in memory, which a test can put back to an older copy."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.metadata = MemoryMetadata(world.rng.fork("metadata"))
        self.store: MemoryMetadataStore = self.metadata.client().store
        self.known = KnownMetadata()
        self.known.disposition_of = self._disposition_of  # type: ignore[method-assign]
        self.known.read_id_counter = self.store.id_counter  # type: ignore[method-assign]
        settings = tiny_settings(flush_interval_ms=600_000)
        disk = SimDisk(world.rng, latency=Latency(mean_seconds=0.001))
        self.node = DiskBookie(disk, world.clock, self.known, settings)
        self.node.behind = RestoreRecordStore(self.store, world.clock, world.rng)

    async def _disposition_of(self, ledger_id: int, bookie_id: str = "", identity: bytes = b"") -> LedgerDisposition:
        return await disposition_of(self.store, ledger_id, bookie_id, identity)

    async def create(self, token: str = "creator") -> int:
        """A ledger with an entry at the bookie."""
        ledger_id = await self.store.next_ledger_id()
        metadata = (await self.store.create_ledger(ledger(ledger_id, token))).value
        self.known.identities[ledger_id] = metadata.identity
        assert (await self.node.add(batch_of(0, ledger_id=ledger_id), identity=metadata.identity)).code == 0
        return ledger_id

    async def forget(self, counter: int, *ledger_ids: int) -> None:
        """The store is a copy from before these ledgers were made."""
        shared = self.metadata
        shared.id_counter = counter
        for ledger_id in ledger_ids:
            del shared.ledgers[ledger_id]

    async def held(self) -> list[int]:
        """Ledgers of which the bookie holds something."""
        return [each.ledger_id for each in (await self.node.bookie.held_ledgers(-1, 10)).ledgers]

    async def found(self) -> RestoreRecord:
        """The record that the store is behind."""
        record = await self.store.read_record(RECORD)
        assert record is not None
        return decode_restore_record(RECORD, record.value)

    async def collect(self, times: int = 1, *, hours: float = 0) -> None:
        """Run garbage collections, each with this time after it."""
        for _ in range(times):
            await self.node.bookie.collect()
            await self.world.clock.sleep(3600 * hours)

    @contextmanager
    def away(self, method: str, *only: object) -> Iterator[None]:
        """The store does not answer calls of one method, or those with these arguments alone."""
        answers = getattr(self.store, method)

        async def call(*given: object, **how: object) -> object:
            if not only or given == only:
                raise MetadataUnavailable("the store is away")
            return await answers(*given, **how)

        setattr(self.store, method, call)
        yield
        setattr(self.store, method, answers)

    async def restart(self) -> None:
        await self.node.stop()
        await self.node.boot()
        await self.node.bookie.compare_store()


@pytest.fixture(autouse=True)
def polls_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the bookie poll its disks and its journal rarely, because simulated days pass in these tests."""
    monkeypatch.setattr(disk_monitor, "POLL_SECONDS", 600.0)
    monkeypatch.setattr(journal, "WATCH_SECONDS", 600.0)


@asynccontextmanager
async def bookie_beside_a_store(world: World) -> AsyncIterator[Parts]:
    around = Around(world)
    await around.node.boot()
    yield {"around": around}
    await around.node.stop()
    assert around.node.failures == []


beside_a_store = on_stage(bookie_beside_a_store, deadline_seconds=100_000)


@beside_a_store
async def test_a_bookie_that_holds_a_ledger_above_the_counter_raises_it_and_notes_that_the_store_is_behind(
    around: Around,
) -> None:
    ledger_ids = [await around.create() for _ in range(3)]
    await around.forget(1, *ledger_ids[1:])
    await around.restart()
    assert await around.store.id_counter() == ledger_ids[-1] + 1
    found = await around.found()
    assert (found.id_counter, found.highest_id, found.bookie_id) == (1, ledger_ids[-1], "b1")
    assert found.pauses
    assert around.node.bookie.stats()["metadata_behind"] == 1


@beside_a_store
async def test_a_ledger_above_the_counter_that_the_store_has_or_has_deleted_says_nothing_of_it(around: Around) -> None:
    kept, deleted = await around.create(), await around.create()
    await around.store.delete_ledger(deleted, 1)
    await around.forget(0)
    await around.restart()
    assert kept < deleted
    assert await around.store.id_counter() == 0
    assert await around.store.read_record(RECORD) is None


@beside_a_store
async def test_nothing_is_dropped_beside_a_store_that_was_behind_until_an_operator_approves(around: Around) -> None:
    deleted, forgotten = await around.create(), await around.create()
    await around.store.delete_ledger(deleted, 1)
    await around.forget(1, forgotten)
    await around.restart()
    bookie = around.node.bookie
    await around.collect(5, hours=5)
    assert await around.held() == [deleted, forgotten]
    await bookie.approve_store()
    await around.collect(2)
    assert bookie.stats()["metadata_behind"] == 0
    assert await around.store.id_counter() == forgotten + 1, "and stays so"
    assert await around.held() == [forgotten]


@beside_a_store
async def test_to_go_on_with_a_store_is_no_approval_of_what_is_missing_and_its_time_begins_anew(around: Around) -> None:
    forgotten = await around.create()
    await around.forget(forgotten, forgotten)
    await around.restart()
    bookie, clock = around.node.bookie, around.world.clock

    async def held_after(*, hours: float, approved: Callable[[], Awaitable[None]] | None = None) -> bool:
        await clock.sleep(hours * 3600)
        if approved is not None:
            await approved()
        await bookie.collect()
        return bool(await around.held())

    for _ in range(3):
        assert await held_after(hours=5)
    assert await held_after(hours=5, approved=bookie.approve_store)
    with pytest.raises(Conflict, match="may be dropped before 14400 seconds from now"):
        await bookie.approve_drop()
    assert await held_after(hours=5), "nobody has approved it in this round"
    assert not await held_after(hours=0, approved=bookie.approve_drop)


@beside_a_store
async def test_an_approval_to_drop_is_refused_where_nothing_waits_or_the_store_was_found_behind_meanwhile(
    around: Around,
) -> None:
    missing, kept = await around.create(), await around.create()
    bookie, record = around.node.bookie, around.node.behind
    assert isinstance(record, RestoreRecordStore)
    await bookie.flush()
    await bookie.collect()
    with pytest.raises(Conflict, match="waits for an operator"):
        await bookie.approve_drop()
    with pytest.raises(Conflict, match="not found to be behind"):
        await bookie.approve_store()
    await around.forget(kept + 1, missing)
    await around.collect(hours=5)
    # The operator examines the missing ledgers; another bookie finds out why they are missing.
    await record.report("b2", missing, missing)
    with pytest.raises(Conflict, match="older copy"):
        await bookie.approve_drop()
    await bookie.collect()
    assert (await around.found()).pauses, "nobody has approved the store"


@beside_a_store
async def test_an_approved_pass_tells_what_it_has_dropped_and_what_it_has_left(
    around: Around, *, caplog: pytest.LogCaptureFixture
) -> None:
    early, late, kept = [await around.create() for _ in range(3)]
    bookie = around.node.bookie
    await bookie.flush()
    await around.forget(kept + 1, early)
    await around.collect(hours=3)
    await around.forget(kept + 1, late)
    await around.collect(hours=1)
    with caplog.at_level("WARNING"):
        await bookie.approve_drop()
        await bookie.collect()
    [told] = [line_of(each) for each in caplog.records if "operator approved" in each.getMessage()]
    assert "ledger_count=1 left_count=1" in told
    with pytest.raises(Conflict, match="may be dropped before"):
        await bookie.approve_drop()


@pytest.mark.parametrize("fails", ["the store is away", "another bookie finds the store behind"])
@beside_a_store
async def test_an_approval_to_drop_ends_with_the_next_pass_also_where_that_drops_nothing(
    around: Around, *, fails: str
) -> None:
    missing, kept = await around.create(), await around.create()
    await around.forget(kept + 1, missing)
    bookie, record = around.node.bookie, around.node.behind
    assert isinstance(record, RestoreRecordStore)
    await bookie.flush()
    await around.collect(hours=5)
    await bookie.approve_drop()
    if fails == "the store is away":
        with around.away("read_record"):
            await bookie.collect()
    else:
        await record.report("b2", missing, missing)
        await bookie.collect()
        await bookie.approve_store()
    await around.collect(3, hours=5)
    assert await around.held() == [missing, kept]


@beside_a_store
async def test_a_bookie_that_has_seen_a_higher_counter_finds_an_older_store_and_raises_the_counter(
    around: Around,
) -> None:
    await around.create()
    await around.store.raise_id_counter(700)
    await around.node.bookie.collect()
    await around.forget(100)
    await around.restart()
    assert await around.store.id_counter() == 700
    found = await around.found()
    assert (found.id_counter, found.highest_id, found.pauses) == (100, 699, True)


async def collects(around: Around, _held: int) -> None:
    await around.node.bookie.flush()
    await around.node.bookie.collect()


async def adds(around: Around, held: int) -> None:
    answer = await around.node.add(batch_of(0, ledger_id=held), identity=b"sixteen bytes, x")
    assert answer.code == OtherLedger.wire_code


async def reads(around: Around, held: int) -> None:
    with pytest.raises(OtherLedger):
        async with around.node.bookie.identified(held, b"sixteen bytes, x"):
            pass


@pytest.mark.parametrize("meet", [collects, adds, reads])
@beside_a_store
async def test_another_ledger_under_the_id_of_one_that_is_held_shows_that_the_store_is_behind(
    around: Around, *, meet: Callable[[Around, int], Awaitable[None]]
) -> None:
    held = await around.create()
    # The counter has passed by now what it was before the store went back.
    await around.forget(held + 50, held)
    await around.store.create_ledger(ledger(held, "another creator", ("b2",)))
    await meet(around, held)
    await around.world.clock.sleep(10)
    assert around.node.bookie.stats()["metadata_behind"] == 1
    found = await around.found()
    assert (found.id_counter, found.highest_id) == (held, held + 49)


@beside_a_store
async def test_a_request_of_a_wrong_identity_says_nothing_of_the_store(around: Around) -> None:
    held = await around.create()
    await reads(around, held)
    await around.world.clock.sleep(10)
    assert around.node.bookie.stats()["metadata_behind"] == 0


@beside_a_store
async def test_two_concurrent_polls_record_a_grown_counter_one_after_the_other(around: Around) -> None:
    await around.store.raise_id_counter(700)
    bookie = around.node.bookie
    await asyncio.gather(bookie.collect(), bookie.compare_store(), bookie.compare_store())
    await around.forget(100)
    await around.restart()
    assert await around.store.id_counter() == 700


@beside_a_store
async def test_requests_of_wrong_identities_have_the_metadata_asked_once_in_a_while(around: Around) -> None:
    held = [await around.create() for _ in range(3)]
    read, asked = around.store.read_ledger, 0

    async def counted(ledger_id: int, *, linearizable: bool = False) -> Versioned:
        nonlocal asked
        asked += 1
        return await read(ledger_id, linearizable=linearizable)

    around.store.read_ledger = counted  # type: ignore[method-assign]
    for _ in range(100):
        for each in held:
            await reads(around, each)
        await around.world.clock.sleep(1)
    assert asked == len(held)


@beside_a_store
async def test_the_time_that_ledgers_are_missing_restarts_after_an_approval_despite_requests_meanwhile(
    around: Around,
) -> None:
    forgotten, kept = await around.create(), await around.create()
    await around.forget(kept + 1, forgotten)
    bookie = around.node.bookie
    await bookie.flush()
    await bookie.collect()
    # Another bookie finds it, and an operator goes on.
    await around.node.behind.report("b2", forgotten, forgotten)
    await around.node.behind.approve()
    await reads(around, kept)
    await around.world.clock.sleep(5 * 3600)
    await bookie.approve_drop()
    await bookie.collect()
    assert await around.held() == [forgotten, kept]


@pytest.mark.parametrize("shown_by", ["a request", "the round, of a suspect", "the round, after many suspects"])
@beside_a_store
async def test_a_pass_that_runs_when_another_ledger_is_met_drops_nothing_from_then_on(
    around: Around, *, shown_by: str
) -> None:
    first, other, deleted = [await around.create() for _ in range(3)]
    bookie, clock = around.node.bookie, around.world.clock
    await around.store.delete_ledger(deleted, 1)
    await bookie.flush()
    await bookie.collect()
    read = around.store.read_ledger

    async def goes_back(ledger_id: int, *, linearizable: bool = False) -> Versioned:
        """While the pass reads the metadata of the first ledger, the store turns out to be an older copy."""
        around.store.read_ledger = read  # type: ignore[method-assign]
        await around.forget(deleted + 50, other)
        await around.store.create_ledger(ledger(other, "another creator", ("b2",)))
        if shown_by == "a request":
            await reads(around, other)
        else:
            suspects = [other] if shown_by == "the round, of a suspect" else range(1_000, 1_200)
            for each in suspects:
                around.node.parts.collector.check.suspect(each)
        await clock.sleep(5)
        return await read(ledger_id, linearizable=linearizable)

    around.store.read_ledger = goes_back  # type: ignore[method-assign]
    await bookie.collect()
    assert around.store.read_ledger == read
    assert await around.held() == [first, other, deleted]
    assert bookie.stats()["metadata_behind"] == 1


@beside_a_store
async def test_an_approved_store_is_not_found_behind_again_for_ledgers_that_the_operator_knew_of(
    around: Around,
) -> None:
    first, second = await around.create(), await around.create()
    await around.forget(second + 50, first, second)
    for held in (first, second):
        await around.store.create_ledger(ledger(held, "another creator", ("b2",)))
    bookie = around.node.bookie
    await bookie.flush()
    await bookie.collect()
    await bookie.approve_store()
    await around.collect(3)
    assert bookie.stats()["metadata_behind"] == 0
    assert bookie.stats()["ledgers_missing"] == 2


@beside_a_store
async def test_while_it_is_unknown_whether_the_store_is_behind_nothing_is_dropped(around: Around) -> None:
    deleted = await around.create()
    await around.store.delete_ledger(deleted, 1)
    with around.away("read_record"):
        await around.collect(3, hours=5)
    assert await around.held() == [deleted]
    await around.collect(2, hours=5)
    assert await around.held() == []


@beside_a_store
async def test_metadata_of_another_ledger_of_the_same_id_are_no_reason_to_drop_what_is_held(around: Around) -> None:
    held = await around.create()
    await around.forget(0, held)
    await around.store.create_ledger(ledger(held, "another creator", ("b2",)))
    metadata = (await around.store.read_ledger(held)).value
    assert await around._disposition_of(held, "b1", metadata.identity) is LedgerDisposition.KEPT
    assert await around._disposition_of(held, "b1", b"sixteen bytes, x") is LedgerDisposition.OTHER
    assert await around._disposition_of(held, "b1") is LedgerDisposition.KEPT, "an earlier version met it"


@beside_a_store
async def test_the_deletion_of_another_ledger_of_the_same_id_is_no_reason_to_drop_what_is_held(around: Around) -> None:
    held, deleted = await around.create(), await around.create()
    await around.forget(held + 2, held)
    again = await around.store.create_ledger(ledger(held, "another creator"))
    await around.store.delete_ledger(held, again.version, again.value.identity)
    found = await around.store.read_ledger(deleted)
    await around.store.delete_ledger(deleted, found.version, found.value.identity)
    bookie = around.node.bookie
    await bookie.flush()
    await around.collect(3)
    assert bookie.stats()["metadata_behind"] == 1
    await bookie.approve_store()
    await around.collect(2)
    assert await around.held() == [held]


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b"\xff"])
@beside_a_store
async def test_a_damaged_record_counts_as_behind_and_the_bookie_serves_until_an_operator_approves(
    around: Around, *, value: bytes
) -> None:
    deleted = await around.create()
    await around.store.delete_ledger(deleted, 1)
    await around.store.write_record(RECORD, value, None)
    await around.restart()
    bookie = around.node.bookie
    kept = await around.create()
    await around.collect(5, hours=5)
    assert await around.held() == [deleted, kept]
    assert bookie.stats()["metadata_behind"] == 1
    await bookie.approve_store()
    await around.collect(2)
    assert await around.held() == [kept]
    assert bookie.stats()["metadata_behind"] == 0
    assert not (await around.found()).pauses


@beside_a_store
async def test_what_a_bookie_finds_takes_the_place_of_a_damaged_record_and_raises_the_counter(around: Around) -> None:
    ledger_id = await around.create()
    await around.forget(0, ledger_id)
    await around.store.write_record(RECORD, b"{}", None)
    await around.restart()
    assert await around.store.id_counter() == ledger_id + 1
    assert (await around.found()).pauses


def test_a_paused_pass_drops_nothing_with_any_metadata() -> None:
    judge = GarbagePolicy(GcDelays(0, 0, 1.0))
    for paused in (True, True, False):
        judge.begin(10, 100.0, short_of_space=True, approved=True)
        if paused:
            judge.pause()
        dropped = [
            judge.is_garbage(number, fate)
            for number, fate in enumerate([LedgerDisposition.RELEASED, LedgerDisposition.DELETED])
        ]
        assert dropped == [not paused] * 2


@beside_a_store
async def test_while_a_ledger_above_the_counter_is_unresolved_nothing_is_dropped(around: Around) -> None:
    deleted, above = await around.create(), await around.create()
    await around.store.delete_ledger(deleted, 1)
    around.metadata.id_counter = above
    await around.node.bookie.flush()
    with around.away("read_ledger", above):
        await around.collect(3)
    assert await around.held() == [deleted, above]
    await around.collect(2)
    assert await around.held() == [above]


@pytest.mark.parametrize(("answer_seconds", "told"), [(3_600.0, 0), (5.0, 32), (0.01, 100)])
@beside_a_store
async def test_the_time_of_all_lookups_before_a_bookie_is_registered_is_bounded(
    around: Around, *, answer_seconds: float, told: int
) -> None:
    ledger_ids = [await around.create() for _ in range(100)]
    around.metadata.id_counter = ledger_ids[0]
    read = around.store.read_ledger

    async def slow(ledger_id: int, *, linearizable: bool = False) -> Versioned:
        await around.world.clock.sleep(answer_seconds)
        return await read(ledger_id, linearizable=linearizable)

    around.store.read_ledger = slow  # type: ignore[method-assign]
    begun = around.world.clock.monotonic()
    await around.node.bookie.compare_store()
    assert around.world.clock.monotonic() - begun < 60
    not_checked = around.node.parts.collector.check.not_checked
    assert (not_checked == 0) == (told == len(ledger_ids))
    assert len(ledger_ids) - not_checked >= told


@beside_a_store
async def test_a_ledger_that_is_held_without_an_identity_is_given_none_by_a_store_that_is_behind(
    around: Around,
) -> None:
    held, forgotten = await around.create(""), await around.create()
    await around.node.bookie.flush()
    await around.forget(forgotten, held, forgotten)
    again = (await around.store.create_ledger(ledger(held, "another creator"))).value
    around.known.identities[held] = again.identity
    await around.node.bookie.collect()
    found = {each.ledger_id: each.identity for each in (await around.node.bookie.held_ledgers(-1, 10)).ledgers}
    assert found[held] == b""


@beside_a_store
async def test_an_id_that_may_have_been_handed_out_twice_is_given_no_identity_also_after_an_approval(
    around: Around,
) -> None:
    async def identity_of(ledger_id: int) -> bytes:
        page = await around.node.bookie.held_ledgers(-1, 10)
        return next(each.identity for each in page.ledgers if each.ledger_id == ledger_id)

    store, add = around.store, around.node.add
    held = await store.next_ledger_id()
    await store.create_ledger(ledger(held))
    assert (await add(batch_of(0, ledger_id=held))).code == 0
    await around.forget(held, held)
    again = (await store.create_ledger(ledger(held, "another creator"))).value
    around.known.identities[held] = again.identity
    await around.node.behind.report("b2", held, held)
    later = await store.next_ledger_id()
    assert (await add(batch_of(0, ledger_id=later))).code == 0
    around.known.identities[later] = (await store.create_ledger(ledger(later))).value.identity
    await around.node.bookie.flush()
    await around.node.bookie.approve_store()
    await around.collect(2)
    assert await identity_of(held) == b"", "it may be the earlier ledger"
    assert await identity_of(later) == around.known.identities[later]

"""Identities lost with an index, and ids that may be in use twice: a repair proves which ledger entries belong to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tallybook.bookie.ledgers.confirmed_prefix import AssignedEntries, ConfirmedPrefix
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.ledgers.verified_copies import VerifiedCopies
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import DamagedBatch, EntryRange, HeldAnswer, ReadAnswer
from tallybook.core.errors import Conflict, EntryUnknown, TallybookError
from tallybook.core.ids import ledger_identity
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.metadata.records.restored_store import UNREADABLE, RestoreRecord
from tallybook.repair.copier import Copier
from tallybook.repair.needs import replicas_of
from tallybook.runtime.concurrency.rate_limit import RateLimiter
from tallybook.runtime.rng import SystemRng
from tallybook.sim.deterministic import NO_LATENCY, SimClock, SimDisk, World
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of

from ..simulated import Parts, on_stage
from .loss_parts import empty
from .test_loss_bound import Notes
from .test_store_check import Around, beside_a_store, ledger

OLD, NEW = ledger_identity("created before"), ledger_identity("created after the metadata were restored")
LEDGER = 40
LAST = 2


@asynccontextmanager
async def bookie_in_doubt(world: World) -> AsyncIterator[Parts]:
    """A bookie has a ledger; the metadata are restored from before its creation; its index is lost and rebuilt."""
    metadata = KnownMetadata(id_counter=50, identities={LEDGER: OLD})
    node = DiskBookie(SimDisk(world.rng, latency=NO_LATENCY), world.clock, metadata)
    node.behind = notes = Notes(metadata)
    await node.boot()
    for entry_id in range(LAST + 1):
        assert (await node.add(batch_of(entry_id, ledger_id=LEDGER), identity=OLD)).code == 0
    share = AssignedEntries(node.bookie.bookie_id, Quorum(1, 1, 1), 0, 0, LAST)
    metadata.confirmed_prefixes[LEDGER] = ConfirmedPrefix(LAST, closed=True, shares=(share,))
    await node.stop()
    await empty(node.disk, f"{ROOT}/index")
    notes.found = RestoreRecord(10, LEDGER, "b2", 1, 1)
    await start(node)
    yield {"node": node, "notes": notes}
    await node.stop()
    assert node.failures == []


in_doubt = on_stage(bookie_in_doubt)


async def start(node: DiskBookie) -> None:
    await node.boot()
    await node.bookie.compare_store()


async def said_to(node: DiskBookie, identity: bytes, entry_id: int = 0) -> str:
    try:
        async with node.bookie.identified(LEDGER, identity):
            answer = await node.bookie.read_batches(LEDGER, entry_id, entry_id, 1)
    except TallybookError as error:
        return type(error).__name__
    assert answer.batches == (batch_of(entry_id, ledger_id=LEDGER),)
    return "held"


async def give(node: DiskBookie, entry_id: int, identity: bytes = OLD, payload: bytes = b"entry") -> int:
    batch = batch_of(entry_id, ledger_id=LEDGER, payload=payload)
    return (await node.add(batch, kind=AddKind.REPAIR, identity=identity)).code


async def held(node: DiskBookie, identity: bytes = OLD) -> tuple[EntryRange, ...]:
    async with node.bookie.identified(LEDGER, identity, for_repair=True):
        answer = await node.bookie.held(LEDGER, 0, 9)
    assert answer.limbo
    return answer.ranges


async def end_limbo(node: DiskBookie) -> None:
    async with node.bookie.identified(LEDGER, OLD, for_repair=True):
        await node.bookie.end_limbo(LEDGER)


@pytest.mark.parametrize("identity", [OLD, NEW])
@in_doubt
async def test_nothing_is_said_of_a_ledger_whose_id_may_have_been_handed_out_twice(node, *, identity):
    assert await said_to(node, identity) == "EntryUnknown"
    assert await held(node, identity) == ()
    batch = batch_of(LAST + 1, ledger_id=LEDGER)
    for kind in (AddKind.ORDINARY, AddKind.RECOVERY):
        assert (await node.add(batch, identity=identity, kind=kind)).code == EntryUnknown.wire_code
    with pytest.raises(EntryUnknown):
        async with node.bookie.identified(LEDGER, identity):
            await node.bookie.fence(LEDGER, b"")


@in_doubt
async def test_a_repair_that_gives_all_once_more_proves_whose_entries_they_are(node):
    for entry_id in range(LAST):
        assert await give(node, entry_id) == 0
    assert await held(node) == (EntryRange(0, LAST - 1),)
    with pytest.raises(EntryUnknown):
        await end_limbo(node)
    assert await said_to(node, OLD) == "EntryUnknown"
    assert await give(node, LAST) == 0
    await end_limbo(node)
    for _ in range(2):
        assert await said_to(node, OLD) == "held"
        assert await said_to(node, OLD, LAST + 1) == "EntryAbsent"
        assert await said_to(node, NEW) == "OtherLedger"
        await node.stop()
        await start(node)


@pytest.mark.parametrize("restarts", [False, True])
@in_doubt
async def test_a_record_that_cannot_be_read_lifts_no_doubt_until_a_repair_or_what_is_written_in_its_place_does(
    node, notes, *, restarts
):
    notes.found = UNREADABLE
    if restarts:
        await node.stop()
        await start(node)
    else:
        await node.bookie.compare_store()
    assert await said_to(node, OLD) == "EntryUnknown"
    answer = await node.add(batch_of(LAST + 1, ledger_id=LEDGER), identity=NEW, kind=AddKind.RECOVERY)
    assert answer.code == EntryUnknown.wire_code
    notes.found = RestoreRecord(10, LEDGER - 1, "b2", 1)
    await node.bookie.compare_store()
    assert await said_to(node, OLD) == "held", "its id was not handed out again"
    notes.found = UNREADABLE
    await node.bookie.compare_store()
    for entry_id in range(LAST + 1):
        assert await give(node, entry_id) == 0
    await end_limbo(node)
    assert await said_to(node, OLD) == "held"
    assert await said_to(node, NEW) == "OtherLedger"


@in_doubt
async def test_a_ledger_that_comes_to_be_in_doubt_while_the_end_of_its_limbo_is_written_stays_in_limbo(node, notes):
    notes.found = RestoreRecord(10, LEDGER - 1, "b2", 1)
    await node.bookie.compare_store()
    assert await said_to(node, OLD) == "held", "its id was not handed out again"
    node.disk.fail("sync", error=None, delay_seconds=2)
    ending = asyncio.ensure_future(end_limbo(node))
    await SimClock().sleep(1)
    notes.found = RestoreRecord(10, LEDGER, "b2", 2)
    await node.bookie.compare_store()
    with pytest.raises(EntryUnknown, match="handed out twice"):
        await ending
    for _ in range(2):
        assert await said_to(node, OLD) == "EntryUnknown"
        await node.stop()
        await start(node)
    for entry_id in range(LAST + 1):
        assert await give(node, entry_id) == 0
    await end_limbo(node)
    assert await said_to(node, OLD) == "held"


class Target:
    """A connection of a repair to the bookie."""

    bookie_id = "b1"

    def __init__(self, node: DiskBookie) -> None:
        self._node = node
        self.max_batch_bytes = node.bookie.max_batch_bytes

    async def held(self, ledger_id: int, first: int, last: int, *, identity: bytes) -> HeldAnswer:
        async with self._node.bookie.identified(ledger_id, identity, for_repair=True):
            return await self._node.bookie.held(ledger_id, first, last)

    async def damaged(self, after: tuple[int, int], limit: int) -> tuple[DamagedBatch, ...]:
        return await self._node.bookie.damaged(after, limit)

    async def repair_add(self, batch: bytes, *, identity: bytes) -> None:
        assert (await self._node.add(batch, kind=AddKind.REPAIR, identity=identity)).code == 0


class Source:
    """A connection to a bookie that has the ledger, and knows which one it is."""

    bookie_id = "b2"

    async def read_batches(self, ledger_id: int, first: int, *_: int, identity: bytes, background: bool) -> ReadAnswer:
        assert identity == OLD
        return ReadAnswer((batch_of(first, ledger_id=ledger_id),), LAST)


class Both:
    def __init__(self, node: DiskBookie) -> None:
        self._all = {"b1": Target(node), "b2": Source()}

    async def get(self, bookie_id: str) -> Target | Source:
        return self._all[bookie_id]


@in_doubt
async def test_the_repair_of_a_bookie_that_lost_its_index_ends_the_doubt(node):
    metadata = LedgerMetadata(
        LEDGER, Quorum(2, 2, 1), (Fragment(0, ("b1", "b2")),), "created before", 0,
        state=LedgerState.CLOSED, last_entry_id=LAST, length=LAST + 1,
    )  # fmt: skip
    assert metadata.identity == OLD
    copier = Copier(Both(node), RateLimiter(node._clock, 0), node._clock, SystemRng())
    copied = await copier.complete(metadata, next(iter(replicas_of(metadata))), "b1")
    assert (copied.batches, copied.limbo) == (LAST + 1, True)
    await end_limbo(node)
    assert [await said_to(node, OLD, entry_id) for entry_id in range(LAST + 1)] == ["held"] * (LAST + 1)


@in_doubt
async def test_entries_of_the_earlier_ledger_are_never_proven_to_be_the_later_ones(node):
    node.metadata.identities[LEDGER] = NEW
    for entry_id in range(LAST + 1):
        assert await give(node, entry_id, NEW, b"new") == Conflict.wire_code
    with pytest.raises(EntryUnknown):
        async with node.bookie.identified(LEDGER, NEW, for_repair=True):
            await node.bookie.end_limbo(LEDGER)
    assert await said_to(node, NEW) == "EntryUnknown"
    # A repair that still has the metadata of before proves nothing about the ledger that there is now.
    for entry_id in range(LAST + 1):
        assert await give(node, entry_id, OLD) == 0
    with pytest.raises(EntryUnknown):
        await end_limbo(node)


@pytest.mark.parametrize(
    "shares",
    [(), (AssignedEntries("b2", Quorum(1, 1, 1), 0, 0, LAST),), (AssignedEntries("b1", Quorum(1, 1, 1), 0, 0, -1),)],
    ids=["released", "others", "empty"],
)
@in_doubt
async def test_metadata_that_name_a_bookie_for_nothing_prove_nothing_of_what_it_holds(node, *, shares):
    assert node.bookie.bookie_id == "b1"
    node.metadata.identities[LEDGER] = NEW
    node.metadata.confirmed_prefixes[LEDGER] = ConfirmedPrefix(LAST, closed=True, shares=shares)
    with pytest.raises(EntryUnknown):
        async with node.bookie.identified(LEDGER, NEW, for_repair=True):
            await node.bookie.end_limbo(LEDGER)
    assert await said_to(node, NEW) == "EntryUnknown"
    assert await held(node, NEW) == ()


@in_doubt
async def test_the_doubt_ends_when_the_right_copy_of_the_metadata_is_back(node, notes):
    assert await said_to(node, OLD) == "EntryUnknown"
    notes.found = None
    await node.bookie.compare_store()
    assert await said_to(node, OLD) == "held"
    assert await said_to(node, OLD, LAST + 1) == "EntryUnknown"
    notes.found = RestoreRecord(10, LEDGER - 1, "b2", 1)
    await node.bookie.compare_store()
    assert await said_to(node, OLD) == "held", "its id was not handed out again"


@pytest.mark.parametrize("says", ["released", "unnamed", "deleted"])
@beside_a_store
async def test_what_the_metadata_say_of_a_later_ledger_lets_no_copies_of_an_earlier_one_go_without_an_operator(
    around: Around, *, says
) -> None:
    node, store, record = around.node, around.store, around.node.behind
    earlier = await around.create()
    await node.bookie.flush()
    await around.forget(earlier, earlier)
    later = await store.create_ledger(ledger(earlier, "another creator", ("b2",)))
    if says == "deleted":
        await store.delete_ledger(earlier, later.version)
    elif says == "unnamed":
        closed = replace(later.value, state=LedgerState.CLOSED, last_entry_id=-1, length=0)
        await store.update_ledger(closed, later.version)
    else:
        around.known.disposition_of = released
    await record.report("b2", earlier, earlier)
    await node.stop()
    await empty(node.disk, f"{ROOT}/index")
    await start(node)
    await node.bookie.approve_store()
    for _ in range(3):
        await node.bookie.collect()
        await around.world.clock.sleep(4 * 3600)
    assert node.bookie.stats()["ledgers_missing"] == 1
    answer = await node.bookie.read_batches(earlier, 0, 0, 1)
    assert len(answer.batches) == 1
    await node.bookie.approve_drop()
    await node.bookie.collect()
    assert node.bookie.stats()["ledgers_dropped_total"] == 1


async def released(_ledger_id: int, _bookie_id: str = "", _identity: bytes = b"") -> LedgerDisposition:
    return LedgerDisposition.RELEASED


def test_what_is_proven_of_ledgers_is_joined_and_that_of_the_ledger_longest_without_news_is_forgotten_first() -> None:
    verified = VerifiedCopies(max_ranges=3)
    for first, last in [(0, 1), (6, 7), (4, 4), (2, 3)]:
        verified.note(1, OLD, first, last)
    wanted = [EntryRange(0, 9)]
    assert verified.of(wanted, 1) == [EntryRange(0, 4), EntryRange(6, 7)]
    assert verified.are_all([EntryRange(1, 4)], 1, OLD)
    assert not verified.are_all([EntryRange(1, 4)], 1, NEW)
    assert not verified.are_all([EntryRange(1, 5)], 1, OLD)
    verified.note(2, OLD, 0, 0)
    assert verified.of(wanted, 1)
    verified.note(2, OLD, 5, 5)
    assert verified.of(wanted, 1) == []
    assert verified.of(wanted, 2) == [EntryRange(0, 0), EntryRange(5, 5)]
    verified.note(2, NEW, 7, 7)
    assert verified.of(wanted, 2) == [EntryRange(7, 7)]

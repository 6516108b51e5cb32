"""Over-replicated copies: when they are dropped, which stay, and how a repair may restore them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.ledgers.over_replicated import OverReplicationPolicy, RepairVisits
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import AddAnswer, EntryRange
from tallybook.core.errors import Busy, EntryAbsent, LedgerFenced
from tallybook.core.ids import NO_ENTRY
from tallybook.core.limits import KIB
from tallybook.sim.deterministic import SimClock, World
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, batch_of

from ..simulated import Parts, on_stage, simulated
from .bookie_parts import booted

LEDGER, OTHER = 1, 2
DELAY = 60
ENTRIES = 5


def one_moved() -> KnownMetadata:
    return KnownMetadata(
        dispositions={LEDGER: LedgerDisposition.UNNAMED},
        confirmed_prefixes=dict.fromkeys((LEDGER, OTHER), ConfirmedPrefix(ENTRIES - 1, closed=True)),
    )


@asynccontextmanager
async def two_ledgers(world: World) -> AsyncIterator[Parts]:
    """A bookie with five entries each of two closed ledgers, of which one names others by now."""
    async with booted(world, metadata=one_moved, unnamed_delay_s=DELAY, entry_log_bytes=4 * KIB) as parts:
        node = parts["node"]
        for ledger_id in (OTHER, LEDGER):
            for entry_id in range(ENTRIES):
                assert (await node.add(batch(entry_id, ledger_id))).code == 0
            await node.bookie.flush()
        yield parts


with_two_ledgers = on_stage(two_ledgers, deadline_seconds=3600)


def batch(entry_id: int, ledger_id: int = LEDGER) -> bytes:
    return batch_of(entry_id, ledger_id=ledger_id, payload=bytes(900))


async def with_rows(node: DiskBookie) -> list[int]:
    return await node.parts.index.ledgers_with_rows(NO_ENTRY, 100)


async def collected_after(node: DiskBookie, world: World, *pauses: float) -> list[int]:
    """Rounds, each after a pause; which ledgers have copies then."""
    for seconds in pauses:
        await world.clock.sleep(seconds)
        await node.bookie.collect()
    return await with_rows(node)


async def is_read(node: DiskBookie, entry_id: int, ledger_id: int = LEDGER) -> bool:
    try:
        answer = await node.bookie.read_batches(ledger_id, entry_id, entry_id, 1)
    except EntryAbsent:
        return False
    assert answer.batches == (batch(entry_id, ledger_id),)
    return True


@pytest.mark.parametrize("unclean", [False, True])
@with_two_ledgers
async def test_over_replicated_copies_are_dropped_after_the_delay_and_the_fence_stays_for_ever(
    node: DiskBookie, world: World, *, unclean: bool
) -> None:
    before = await node.bookie.read_lac(LEDGER)
    assert await is_read(node, 0)
    assert not before.fenced
    assert await collected_after(node, world, 100, DELAY - 0.5) == [LEDGER, OTHER]
    assert await collected_after(node, world, 0.5) == [OTHER]
    assert node.bookie.stats()["leftovers_dropped_total"] == 1
    assert node.bookie.stats()["entry_logs_removed_total"] >= 1
    for _ in range(2):
        # After a power loss they may be back, for the rounds of the next life.
        assert unclean or not await is_read(node, 0)
        assert await is_read(node, 0, OTHER)
        assert await node.bookie.read_lac(LEDGER) == before._replace(fenced=True)
        for late in (0, ENTRIES, 50):
            assert (await node.add(batch(late))).code == LedgerFenced.wire_code
        await (node.lose_power() if unclean else node.stop())
        await node.boot()


@pytest.mark.parametrize(
    ("before", "meanwhile", "left_s"),
    [
        (LedgerDisposition.UNNAMED, LedgerDisposition.KEPT, DELAY),  # it begins anew
        (LedgerDisposition.UNNAMED, LedgerDisposition.MISSING, DELAY),
        (LedgerDisposition.UNNAMED, LedgerDisposition.UNKNOWN, 0),  # it goes on while the metadata do not answer
        (LedgerDisposition.KEPT, LedgerDisposition.UNKNOWN, DELAY),  # it never began
    ],
)
@with_two_ledgers
async def test_nothing_goes_while_the_metadata_say_something_else_or_nothing(
    node: DiskBookie, world: World, *, before: LedgerDisposition, meanwhile: LedgerDisposition, left_s: float
) -> None:
    node.metadata.dispositions[LEDGER] = before
    await collected_after(node, world, 0)
    node.metadata.dispositions[LEDGER] = meanwhile
    assert await collected_after(node, world, DELAY) == [LEDGER, OTHER]
    node.metadata.dispositions[LEDGER] = LedgerDisposition.UNNAMED
    if left_s:
        assert await collected_after(node, world, 1, left_s - 1) == [LEDGER, OTHER]
    assert await collected_after(node, world, 1) == [OTHER]


@with_two_ledgers
async def test_a_restart_begins_the_delay_anew(node: DiskBookie, world: World) -> None:
    await collected_after(node, world, 0, DELAY - 1)
    await node.stop()
    await node.boot()
    assert await collected_after(node, world, 1, DELAY - 1) == [LEDGER, OTHER]
    assert await collected_after(node, world, 1) == [OTHER]


@with_two_ledgers
async def test_copies_in_use_wait_for_a_later_pass(node: DiskBookie, world: World) -> None:
    await collected_after(node, world, 0)
    async with node.parts.table.using(LEDGER):
        assert await collected_after(node, world, DELAY) == [LEDGER, OTHER]
    assert await collected_after(node, world, 0) == [OTHER]


@with_two_ledgers
async def test_what_a_repair_adds_to_old_copies_keeps_all_of_them(node: DiskBookie, world: World) -> None:
    node.metadata.confirmed_prefixes[LEDGER] = ConfirmedPrefix(ENTRIES, closed=True)
    await collected_after(node, world, 0, DELAY - 1)
    assert (await node.add(batch(ENTRIES), kind=AddKind.REPAIR)).code == 0
    await node.bookie.flush()
    assert await collected_after(node, world, 1, DELAY - 2) == [LEDGER, OTHER]


@pytest.mark.parametrize("asks", [False, True])
@with_two_ledgers
async def test_a_repair_that_was_here_keeps_the_copies_for_another_delay(
    node: DiskBookie, world: World, *, asks: bool
) -> None:
    await collected_after(node, world, 0, DELAY - 1)
    if asks:
        assert (await node.bookie.held(LEDGER, 0, 4)).ranges == (EntryRange(0, 4),)
    else:
        assert (await node.add(batch(2), kind=AddKind.REPAIR)).code == 0
    assert await collected_after(node, world, 1, DELAY - 2) == [LEDGER, OTHER]
    assert await collected_after(node, world, 1) == [OTHER]


@pytest.mark.parametrize("unclean", [False, True])
@with_two_ledgers
async def test_a_repair_brings_copies_back_after_they_went(node: DiskBookie, world: World, *, unclean: bool) -> None:
    assert await collected_after(node, world, 0, DELAY) == [OTHER]
    assert (await node.bookie.held(LEDGER, 0, 4)).ranges == ()
    for entry_id in range(ENTRIES):
        assert (await node.add(batch(entry_id), kind=AddKind.REPAIR)).code == 0
    await node.bookie.flush()
    assert await collected_after(node, world, 0, DELAY - 1) == [LEDGER, OTHER], "no metadata name them yet"
    assert (await node.bookie.held(LEDGER, 0, 4)).ranges == (EntryRange(0, 4),)
    node.metadata.dispositions[LEDGER] = LedgerDisposition.KEPT
    await (node.lose_power() if unclean else node.stop())
    await node.boot()
    assert all([await is_read(node, entry_id) for entry_id in range(ENTRIES)])
    assert await collected_after(node, world, 0, DELAY, DELAY) == [LEDGER, OTHER]
    assert (await node.add(batch(ENTRIES))).code == LedgerFenced.wire_code


@with_two_ledgers
async def test_a_repair_that_comes_while_copies_go_is_sent_away_and_one_just_before_keeps_them(
    node: DiskBookie, world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = node.parts.index
    reclaimer = node.parts.collector.reclaimer
    answers: list[object] = []
    apply, data_of = index.apply, reclaimer.data_of

    async def applied(*args: object, **named: object) -> None:
        if not named.get("drop_rows"):
            return await apply(*args, **named)  # type: ignore[arg-type]
        asked = asyncio.ensure_future(node.bookie.held(LEDGER, 0, 4))
        given = node.add(batch(1), kind=AddKind.REPAIR)
        await asyncio.sleep(0)
        await apply(*args, **named)  # type: ignore[arg-type]
        answers.extend(await asyncio.gather(given, asked, return_exceptions=True))
        return None

    async def measured(ledger_ids: list[int]) -> object:
        await node.bookie.held(LEDGER, 0, 4)
        return await data_of(ledger_ids)

    await collected_after(node, world, 0)
    with monkeypatch.context() as patched:
        patched.setattr(reclaimer, "data_of", measured)
        assert await collected_after(node, world, DELAY) == [LEDGER, OTHER]
    with monkeypatch.context() as patched:
        patched.setattr(index, "apply", applied)
        assert await collected_after(node, world, DELAY) == [OTHER]
    given, asked = answers
    assert isinstance(given, AddAnswer)
    assert given.code == Busy.wire_code
    assert isinstance(asked, Busy)
    assert (await node.bookie.held(LEDGER, 0, 4)).ranges == ()


@with_two_ledgers
async def test_copies_on_their_way_to_the_disk_wait_for_a_later_pass(node: DiskBookie, world: World) -> None:
    await collected_after(node, world, 0)
    await world.clock.sleep(DELAY)
    # Not a repair: a recovery that does not know yet that the ledger is closed.
    assert (await node.add(batch(ENTRIES), kind=AddKind.RECOVERY)).code == 0
    assert await collected_after(node, world, 0) == [LEDGER, OTHER]
    await node.bookie.flush()
    assert await collected_after(node, world, 0) == [OTHER]
    assert not await is_read(node, ENTRIES)


@with_two_ledgers
async def test_nothing_goes_before_the_fence_is_durable(
    node: DiskBookie, world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def exhausted(ledger_id: int) -> None:
        raise Busy("no room in the journal", retry_after_ms=1)

    await collected_after(node, world, 0)
    with monkeypatch.context() as patched:
        patched.setattr(node.parts.fences, "fence_closed", exhausted)
        assert await collected_after(node, world, DELAY) == [LEDGER, OTHER]
    assert await collected_after(node, world, 0) == [OTHER]


@simulated
async def test_what_is_not_remembered_of_repairs_counts_as_lately(world: World) -> None:
    clock = SimClock()
    visits = RepairVisits(clock, max_remembered=2)
    leftovers = OverReplicationPolicy(visits, clock, DELAY)
    assert leftovers.is_unvisited(1)
    for ledger_id in (1, 2):
        visits.note(ledger_id)
    await world.clock.sleep(DELAY / 2)
    for ledger_id in (1, 3):
        visits.note(ledger_id)
    await world.clock.sleep(DELAY / 2)
    assert [leftovers.is_unvisited(ledger_id) for ledger_id in (1, 2, 3, 4)] == [False, True, False, True]
    for ledger_id in (5, 6):
        visits.note(ledger_id)
    await world.clock.sleep(DELAY / 2 - 1)
    assert not any(leftovers.is_unvisited(ledger_id) for ledger_id in range(7))

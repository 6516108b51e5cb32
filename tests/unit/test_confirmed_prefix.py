"""Confirmed prefixes: what a bookie asks the metadata before it accepts a copy without a key, and what it caches."""

import pytest

from tallybook.bookie.ledgers import confirmed_prefix as settled_module
from tallybook.bookie.ledgers.confirmed_prefix import (
    AssignedEntries,
    ConfirmedPrefix,
    ConfirmedPrefixes,
    confirmed_prefix_of,
)
from tallybook.core.errors import MetadataUnavailable, NoSuchLedger, Unauthorized
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.metadata.memory import MemoryMetadata
from tallybook.runtime.rng import SeededRng
from tallybook.sim.stage.disk_bookie import KnownMetadata

from ..simulated import simulated

BOOKIES = ("b1", "b2", "b3")


def metadata_of(ledger_id: int, firsts: tuple[int, ...], state: LedgerState, last: int = -1) -> LedgerMetadata:
    fragments = tuple(Fragment(first, BOOKIES) for first in firsts)
    return LedgerMetadata(
        ledger_id, Quorum(3, 3, 2), fragments, "creator", 0, state, last, last + 1 if last >= 0 else 0
    )


@pytest.mark.parametrize(
    ("firsts", "state", "last", "settled", "ends"),
    [
        ((0,), LedgerState.OPEN, -1, ConfirmedPrefix(-1, closed=False, growing=BOOKIES), []),
        ((0, 7, 20), LedgerState.OPEN, -1, ConfirmedPrefix(19, closed=False, growing=BOOKIES), [6, 19]),
        ((0, 7), LedgerState.IN_RECOVERY, -1, ConfirmedPrefix(6, closed=False), []),
        ((0, 7), LedgerState.CLOSED, 30, ConfirmedPrefix(30, closed=True), [6, 30]),
        ((0, 7), LedgerState.CLOSED, 6, ConfirmedPrefix(6, closed=True), [6, 6]),
        ((0,), LedgerState.CLOSED, -1, ConfirmedPrefix(-1, closed=True), [-1]),
    ],
)
async def test_the_confirmed_prefix_of_a_closed_ledger_is_all_of_it_and_of_another_up_to_its_last_fragment(
    firsts, state, last, settled, ends
) -> None:
    client = MemoryMetadata(SeededRng(1)).client()
    await client.store.create_ledger(metadata_of(5, firsts, state, last))
    found = await confirmed_prefix_of(client.store, 5)
    assert found._replace(shares=()) == settled
    firsts_and_ends = list(zip(firsts, ends, strict=False))
    assert found.shares == tuple(
        AssignedEntries(bookie_id, Quorum(3, 3, 2), position, first, end)
        for first, end in firsts_and_ends
        for position, bookie_id in enumerate(BOOKIES)
    )
    with pytest.raises(NoSuchLedger):
        await confirmed_prefix_of(client.store, 6)
    await client.close()


async def test_an_open_ledger_has_a_confirmed_prefix_only_at_bookies_where_it_grows_no_more() -> None:
    elsewhere = ConfirmedPrefix(9, closed=False, growing=("b2", "b3"))
    in_recovery = ConfirmedPrefix(9, closed=False)
    ledgers = ConfirmedPrefixes(KnownMetadata(confirmed_prefixes={1: elsewhere, 2: in_recovery}).confirmed_prefix_of)
    assert await ledgers.confirmed_at(1, "b1") == elsewhere
    for ledger_id, name in ((1, "b2"), (2, "b1")):
        with pytest.raises(Unauthorized):
            await ledgers.confirmed_at(ledger_id, name)


async def test_the_read_is_linearizable() -> None:
    class Store:
        async def read_ledger(self, ledger_id: int, *, linearizable: bool = False) -> None:
            assert linearizable
            raise NoSuchLedger

    with pytest.raises(NoSuchLedger):
        await confirmed_prefix_of(Store(), 5)  # type: ignore[arg-type]


async def test_what_allows_something_is_remembered_and_what_does_not_is_asked_anew() -> None:
    metadata = KnownMetadata(confirmed_prefixes={1: ConfirmedPrefix(9, closed=False)})
    ledgers = ConfirmedPrefixes(metadata.confirmed_prefix_of)
    for entry_id in (0, 9, 4):
        await ledgers.check_entry(1, entry_id)
    assert metadata.confirmed_prefix_lookups == 1
    for lookups in (2, 3):
        with pytest.raises(Unauthorized):
            await ledgers.check_entry(1, 10)
        assert metadata.confirmed_prefix_lookups == lookups
    with pytest.raises(Unauthorized):
        await ledgers.confirmed_at(1, "b1")
    metadata.confirmed_prefixes[1] = ConfirmedPrefix(12, closed=True)
    await ledgers.check_entry(1, 12)
    await ledgers.confirmed_at(1, "b1")
    metadata.away = True
    with pytest.raises(MetadataUnavailable):
        await ledgers.confirmed_at(1, "b1")
    await ledgers.check_entry(1, 3)
    assert (ledgers.hits, ledgers.lookups, len(ledgers)) == (3, 7, 1)
    with pytest.raises(MetadataUnavailable):
        await ledgers.check_entry(1, 13)
    with pytest.raises(MetadataUnavailable):
        await ledgers.check_entry(2, 0)


async def test_what_is_remembered_is_bounded_and_what_was_used_last_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled_module, "MAX_REMEMBERED", 3)

    metadata = KnownMetadata(confirmed_prefixes={each: ConfirmedPrefix(9, closed=True) for each in range(5)})
    ledgers = ConfirmedPrefixes(metadata.confirmed_prefix_of)
    for ledger_id in (0, 1, 2, 0, 3):
        await ledgers.check_entry(ledger_id, 0)
    assert metadata.confirmed_prefix_lookups == 4
    metadata.away = True
    for ledger_id in (0, 2, 3):
        await ledgers.check_entry(ledger_id, 0)
    with pytest.raises(MetadataUnavailable):
        await ledgers.check_entry(1, 0)


@simulated
async def test_metadata_that_do_not_answer_are_given_up_in_time(world):
    async def hangs(_ledger_id: int) -> ConfirmedPrefix:
        await world.clock.sleep(1e6)
        raise AssertionError

    began = world.clock.monotonic()
    with pytest.raises(MetadataUnavailable):
        await ConfirmedPrefixes(hangs).check_entry(1, 0)
    assert world.clock.monotonic() - began == pytest.approx(settled_module.LOOKUP_SECONDS)

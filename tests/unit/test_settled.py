"""What a bookie asks the metadata before it takes a copy without a key, and what it remembers of their answers."""

from collections.abc import Callable

import pytest

from tallybook.bookie import settled as settled_module
from tallybook.bookie.settled import Settled, SettledLedgers, Share, closed_up_to
from tallybook.core.errors import MetadataUnavailable, NoSuchLedger, Unauthorized
from tallybook.core.quorum import Quorum
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.model import Fragment, LedgerMetadata, LedgerState
from tallybook.runtime.deterministic import World, run_seed
from tallybook.runtime.rng import SeededRng
from tallybook.sim.stage.disk_bookie import KnownMetadata

BOOKIES = ("b1", "b2", "b3")


def metadata_of(ledger_id: int, firsts: tuple[int, ...], state: LedgerState, last: int = -1) -> LedgerMetadata:
    fragments = tuple(Fragment(first, BOOKIES) for first in firsts)
    return LedgerMetadata(
        ledger_id, Quorum(3, 3, 2), fragments, "creator", 0, state, last, last + 1 if last >= 0 else 0
    )


@pytest.mark.parametrize(
    ("firsts", "state", "last", "settled", "ends"),
    [
        ((0,), LedgerState.OPEN, -1, Settled(-1, closed=False, growing=BOOKIES), []),
        ((0, 7, 20), LedgerState.OPEN, -1, Settled(19, closed=False, growing=BOOKIES), [6, 19]),
        ((0, 7), LedgerState.IN_RECOVERY, -1, Settled(6, closed=False), []),
        ((0, 7), LedgerState.CLOSED, 30, Settled(30, closed=True), [6, 30]),
        ((0, 7), LedgerState.CLOSED, 6, Settled(6, closed=True), [6, 6]),
        ((0,), LedgerState.CLOSED, -1, Settled(-1, closed=True), [-1]),
    ],
)
def test_a_closed_ledger_is_settled_up_to_its_end_and_another_up_to_its_last_fragment(
    firsts: tuple[int, ...], state: LedgerState, last: int, settled: Settled, ends: list[int], run: Callable
) -> None:
    async def scenario() -> None:
        client = MemoryMetadata(SeededRng(1)).client()
        await client.store.create_ledger(metadata_of(5, firsts, state, last))
        found = await closed_up_to(client.store, 5)
        assert found._replace(shares=()) == settled
        firsts_and_ends = list(zip(firsts, ends, strict=False))
        assert found.shares == tuple(
            Share(bookie_id, Quorum(3, 3, 2), position, first, end)
            for first, end in firsts_and_ends
            for position, bookie_id in enumerate(BOOKIES)
        )
        with pytest.raises(NoSuchLedger):
            await closed_up_to(client.store, 6)
        await client.close()

    run(scenario())


def test_a_ledger_that_is_open_is_settled_only_at_bookies_where_it_grows_no_more(run: Callable) -> None:
    async def scenario() -> None:
        elsewhere = Settled(9, closed=False, growing=("b2", "b3"))
        in_recovery = Settled(9, closed=False)
        ledgers = SettledLedgers(KnownMetadata(settled={1: elsewhere, 2: in_recovery}).closed_up_to)
        assert await ledgers.settled_at(1, "b1") == elsewhere
        for ledger_id, name in ((1, "b2"), (2, "b1")):
            with pytest.raises(Unauthorized):
                await ledgers.settled_at(ledger_id, name)

    run(scenario())


def test_the_look_is_a_linearizable_one(run: Callable) -> None:
    asked = []

    class Store:
        async def read_ledger(self, ledger_id: int, *, linearizable: bool = False) -> None:
            asked.append((ledger_id, linearizable))
            raise NoSuchLedger

    with pytest.raises(NoSuchLedger):
        run(closed_up_to(Store(), 5))  # type: ignore[arg-type]
    assert asked == [(5, True)]


def test_what_allows_something_is_remembered_and_what_does_not_is_asked_anew(run: Callable) -> None:
    async def scenario() -> None:
        metadata = KnownMetadata(settled={1: Settled(9, closed=False)})
        ledgers = SettledLedgers(metadata.closed_up_to)
        for entry_id in (0, 9, 4):
            await ledgers.check_entry(1, entry_id)
        assert metadata.settled_lookups == 1
        for lookups in (2, 3):
            with pytest.raises(Unauthorized):
                await ledgers.check_entry(1, 10)
            assert metadata.settled_lookups == lookups
        with pytest.raises(Unauthorized):
            await ledgers.settled_at(1, "b1")
        metadata.settled[1] = Settled(12, closed=True)
        await ledgers.check_entry(1, 12)
        await ledgers.settled_at(1, "b1")
        metadata.away = True
        with pytest.raises(MetadataUnavailable):
            await ledgers.settled_at(1, "b1")
        await ledgers.check_entry(1, 3)
        assert (ledgers.hits, ledgers.lookups, len(ledgers)) == (3, 7, 1)
        with pytest.raises(MetadataUnavailable):
            await ledgers.check_entry(1, 13)
        with pytest.raises(MetadataUnavailable):
            await ledgers.check_entry(2, 0)

    run(scenario())


def test_what_is_remembered_is_bounded_and_what_was_used_last_stays(
    run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settled_module, "MAX_REMEMBERED", 3)

    async def scenario() -> None:
        metadata = KnownMetadata(settled={each: Settled(9, closed=True) for each in range(5)})
        ledgers = SettledLedgers(metadata.closed_up_to)
        for ledger_id in (0, 1, 2, 0, 3):
            await ledgers.check_entry(ledger_id, 0)
        assert metadata.settled_lookups == 4
        metadata.away = True
        for ledger_id in (0, 2, 3):
            await ledgers.check_entry(ledger_id, 0)
        with pytest.raises(MetadataUnavailable):
            await ledgers.check_entry(1, 0)

    run(scenario())


def test_metadata_that_do_not_answer_are_given_up_in_time() -> None:
    async def scenario(world: World) -> None:
        async def hangs(_ledger_id: int) -> Settled:
            await world.clock.sleep(1e6)
            raise AssertionError

        began = world.clock.monotonic()
        with pytest.raises(MetadataUnavailable):
            await SettledLedgers(hangs).check_entry(1, 0)
        assert world.clock.monotonic() - began == pytest.approx(settled_module.LOOKUP_SECONDS)

    run_seed(1, scenario)

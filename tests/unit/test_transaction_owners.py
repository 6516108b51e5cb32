"""Whose the numbers of a sink are, and what of an old transaction is still there."""

import pytest

from tallybook.core.errors import Conflict
from tallybook.core.quorum import Quorum
from tallybook.metadata.commits import abandon, commit, was_committed
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.model import Fragment, LedgerMetadata, LedgerState
from tallybook.metadata.transactions import Transaction, last_committed, read_view
from tallybook.metadata.update import LedgerUpdater
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng


class Sinks:
    """A metadata store, and ledgers written by transactions."""

    def __init__(self) -> None:
        self.store = MemoryMetadata(SeededRng(1)).client().store
        self.updater = LedgerUpdater(self.store, RealClock(), SeededRng(2))

    async def write(self, transaction: Transaction) -> int:
        """A closed ledger, pending."""
        ledger_id = await self.store.next_ledger_id()
        fragments = (Fragment(0, ("b1",)),)
        await self.store.create_ledger(
            LedgerMetadata(
                ledger_id, Quorum(1, 1, 1), fragments, "creator", 0, custom=transaction.marks,
                state=LedgerState.CLOSED, last_entry_id=9, length=90,
            )
        )  # fmt: skip
        return ledger_id

    async def commit(self, transaction: Transaction) -> bool:
        """Write one ledger and commit it."""
        return await commit(self.store, self.updater, transaction, [await self.write(transaction)])

    async def visible(self) -> list[int]:
        """Ledgers in view."""
        view, page = await read_view(self.store), await self.store.list_ledgers()
        return [each for each in page.ledger_ids if view.sees((await self.store.read_ledger(each)).value)]


@pytest.mark.parametrize("number", [0, 4, 5])
async def test_a_sink_belongs_to_who_wrote_it_first(number: int) -> None:
    sinks = Sinks()
    assert await sinks.commit(Transaction("sales", 4, "query"))
    before = await sinks.visible()
    theirs = Transaction("sales", number, "another")
    attempt = await sinks.write(theirs)
    with pytest.raises(Conflict, match="belongs to another writer"):
        await commit(sinks.store, sinks.updater, theirs, [attempt])
    await abandon(sinks.store, sinks.updater, theirs, [attempt])
    assert await sinks.visible() == before
    assert await sinks.commit(Transaction("sales", 5, "query"))
    last = await last_committed(sinks.store, "sales")
    assert last is not None
    assert (last.number, last.owner) == (5, "query")
    assert len(await sinks.visible()) == 2


async def test_an_old_transaction_that_was_committed_is_told_from_one_that_never_was() -> None:
    sinks = Sinks()
    for number in (3, 7):
        assert await sinks.commit(Transaction("daily", number))
    assert not await sinks.commit(Transaction("daily", 3))
    assert not await sinks.commit(Transaction("daily", 5))
    assert await was_committed(sinks.store, Transaction("daily", 3))
    assert not await was_committed(sinks.store, Transaction("daily", 5))
    assert not await was_committed(sinks.store, Transaction("weekly", 3))

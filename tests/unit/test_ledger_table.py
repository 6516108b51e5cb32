"""The ledger table: one object per ledger, kept while it is needed, evicted when idle; keys verified once."""

import asyncio

import pytest

from tallybook.bookie.directories.limbo import Limbo
from tallybook.bookie.ledgers.key_verification import (
    KeyVerification,
    LedgerFacts,
    verifier_from_record,
    verifier_to_record,
)
from tallybook.bookie.ledgers.state import Ledger, LedgerRow
from tallybook.bookie.ledgers.table import LedgerTable
from tallybook.core.errors import DiskFailed, InvariantViolation, MetadataUnavailable, NoSuchLedger, Unauthorized
from tallybook.core.keys import key_verifier
from tallybook.sim.deterministic import World

from ..simulated import simulated


class Rows:
    """State rows, each read when the test opens the gate."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.rows: dict[int, LedgerRow] = {}

    async def load(self, ledger_id: int) -> LedgerRow | None:
        self.reads.append(ledger_id)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.rows.get(ledger_id)


async def held(table: LedgerTable, ledger_id: int, order: list[int] | None = None) -> Ledger:
    async with table.using(ledger_id) as ledger:
        if order is not None:
            order.append(len(order))
        return ledger


async def test_concurrent_users_of_a_ledger_share_one_read_and_one_object() -> None:
    rows = Rows()
    rows.gate.clear()
    table = LedgerTable(rows.load, Limbo(), max_idle=10)
    waiting = [asyncio.create_task(held(table, 7)) for _ in range(5)]
    await asyncio.sleep(0)
    rows.gate.set()
    ledgers = await asyncio.gather(*waiting)
    assert all(ledger is ledgers[0] for ledger in ledgers)
    assert rows.reads == [7]


async def test_a_failed_read_fails_for_all_waiters_and_the_next_one_tries_again() -> None:
    rows = Rows()
    rows.gate.clear()
    rows.error = DiskFailed("no")
    table = LedgerTable(rows.load, Limbo(), max_idle=10)
    waiting = [asyncio.create_task(held(table, 7)) for _ in range(3)]
    await asyncio.sleep(0)
    rows.gate.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [DiskFailed] * 3
    assert rows.reads == [7]
    rows.error = None
    assert (await held(table, 7)).ledger_id == 7


async def test_a_caller_that_cancels_a_load_does_not_cancel_the_others() -> None:
    rows = Rows()
    rows.gate.clear()
    table = LedgerTable(rows.load, Limbo(), max_idle=10)
    first = asyncio.create_task(held(table, 7))
    await asyncio.sleep(0)
    second = asyncio.create_task(held(table, 7))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    rows.gate.set()
    assert (await second).ledger_id == 7
    assert first.cancelled()


async def test_idle_ledgers_are_forgotten_the_longest_unused_first() -> None:
    rows = Rows()
    table = LedgerTable(rows.load, Limbo(), max_idle=2)
    for ledger_id in (1, 2, 1, 3):
        await held(table, ledger_id)
    assert [ledger.ledger_id for ledger in table] == [1, 3]


async def test_a_ledger_that_is_dirty_flushing_or_in_use_is_never_forgotten() -> None:
    table = LedgerTable(Rows().load, Limbo(), max_idle=1)
    dirty = await held(table, 1)
    table.mark_dirty(dirty)
    async with table.using(2) as used:
        for ledger_id in range(10, 20):
            await held(table, 1)
            await held(table, ledger_id)
        assert table.get(1) is dirty
        assert table.get(2) is used
        assert len(table) == 3
        assert table.begin_flush() == 1
        assert list(table.flushing_rows(0, 10)) == [1]
        await held(table, 30)
        assert table.get(1) is dirty
        table.end_flush()
    await held(table, 31)
    assert [ledger.ledger_id for ledger in table] == [31]


async def test_a_ledger_that_changes_during_its_flush_is_written_again_by_the_next_one() -> None:
    table = LedgerTable(Rows().load, Limbo(), max_idle=1)
    ledger = await held(table, 1)
    table.mark_dirty(ledger)
    table.begin_flush()
    table.mark_dirty(ledger)
    with pytest.raises(InvariantViolation):
        table.begin_flush()
    assert table.dirty_count == 2
    table.end_flush()
    assert table.get(1) is ledger
    assert table.begin_flush() == 1
    table.end_flush()
    assert table.begin_flush() == 0


async def test_the_ledgers_of_a_flush_are_let_go_of_in_pieces_and_none_is_forgotten_before() -> None:
    table = LedgerTable(Rows().load, Limbo(), max_idle=1)
    for ledger_id in range(5):
        async with table.using(ledger_id) as ledger:
            table.mark_dirty(ledger)
    assert table.begin_flush() == 5
    assert [(table.end_flush(2), len(table)) for _ in range(3)] == [(3, 4), (1, 2), (0, 1)]
    assert table.begin_flush() == 0


async def test_ledgers_that_existed_when_the_journal_was_damaged_come_up_in_limbo_until_repaired() -> None:
    rows = Rows()
    rows.rows = {2: LedgerRow(repaired_limbo=1), 3: LedgerRow(limbo=True, repaired_limbo=1)}
    table = LedgerTable(rows.load, Limbo(events=1, below=10), max_idle=10)
    assert [(await held(table, ledger_id)).limbo for ledger_id in (1, 2, 3, 9, 10)] == [True, False, True, True, False]


async def test_concurrent_users_of_an_unknown_ledger_share_one_read_of_the_metadata() -> None:
    asked: list[int] = []
    gate = asyncio.Event()

    async def lookup(ledger_id: int) -> LedgerFacts | None:
        asked.append(ledger_id)
        await gate.wait()
        return LedgerFacts(key_verifier(b"k")) if ledger_id == 1 else None

    verifiers = KeyVerification(lookup)
    known, unknown = Ledger(1, LedgerRow()), Ledger(2, LedgerRow())
    waiting = [asyncio.create_task(verifiers.authorize(known, key)) for key in (b"k", b"k", b"x")]
    lost = [asyncio.create_task(verifiers.learn(unknown)) for _ in range(2)]
    await asyncio.sleep(0)
    gate.set()
    results = await asyncio.gather(*waiting, *lost, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), type(None), Unauthorized, NoSuchLedger, NoSuchLedger]
    assert asked == [1, 2]
    assert unknown.verifier is None


@simulated
async def test_metadata_that_never_answers_is_given_up_on(world: World) -> None:
    async def lookup(ledger_id: int) -> LedgerFacts:
        await world.clock.sleep(3600)
        return LedgerFacts(b"")

    with pytest.raises(MetadataUnavailable, match="ledger 1"):
        await KeyVerification(lookup).learn(Ledger(1, LedgerRow()))
    assert world.clock.monotonic() < 60


def test_a_ledger_without_password_has_a_verifier_that_a_journal_record_can_carry() -> None:
    for verifier in (b"", key_verifier(b"k")):
        recorded = verifier_to_record(verifier)
        assert len(recorded) == 32
        assert verifier_from_record(recorded) == verifier

"""Cleanup and commits of transactions with invalid, damaged or unavailable records: the others go on."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from tallybook.core.errors import Conflict, DamagedFile, MetadataUnavailable, NewerFormat
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.transactions import (
    SinkRecord,
    Transaction,
    View,
    abandon,
    commit,
    delete_abandoned,
    forget,
    is_pending,
    read_view,
    record_attempt,
)
from tallybook.metadata.transactions.model import SINCE, transaction_of
from tallybook.metadata.transactions.sink_record import Committed
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng

from ..support.fault_script import FaultScript
from ..support.faulty_metadata import FaultyMetadataStore

TTL_S = 100
NAMED, ONCE = Transaction("sales", 3), Transaction.once("8d0c-11")


class StoppedError(Exception):
    """The process has ended here."""


class Before(FaultyMetadataStore):
    """Does something before its so-and-so-many-th call, and goes on."""

    def __init__(self, store: Any, at: int, then: Callable[[], Awaitable[None]]) -> None:
        super().__init__(store, FaultScript([]), RealClock())
        self.left, self.then, self.came = at, then, False

    async def _begin(self, operation: str) -> Any:
        self.left -= 1
        if self.left < 0 and not self.came:
            self.came = True
            await self.then()
        return await super()._begin(operation)


class AwayOnceCommitted(FaultyMetadataStore):
    """Does not answer any more once the record of a sink is written."""

    def __init__(self, store: Any) -> None:
        super().__init__(store, FaultScript([]), RealClock())
        self.away = False

    async def write_record(self, name: str, value: bytes, expected_version: int | None) -> Any:
        result = await super().write_record(name, value, expected_version)
        self.away |= name.startswith("sinks/")
        return result

    async def _begin(self, operation: str) -> Any:
        if self.away:
            raise MetadataUnavailable("it is away")
        return await super()._begin(operation)


async def stop() -> None:
    raise StoppedError


def updater_of(store: Any) -> LedgerUpdater:
    return LedgerUpdater(store, RealClock(), SeededRng(2))


class Stage:
    """A metadata store, and ledgers that were created at the beginning of time."""

    def __init__(self) -> None:
        self.shared = MemoryMetadata(SeededRng(1))
        self.store = self.shared.client().store
        self.damaged: list[str] = []

    async def write(self, transaction: Transaction, count: int = 2) -> list[int]:
        """The ledgers that the tasks of an attempt leave."""
        found = [await self.ledger(transaction.marks) for _ in range(count)]
        for ledger_id in found:
            await record_attempt(updater_of(self.store), transaction, ledger_id)
        return found

    async def ledger(self, custom: dict[str, bytes]) -> int:
        ledger_id = await self.store.next_ledger_id()
        await self.store.create_ledger(
            LedgerMetadata(
                ledger_id, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0, custom=custom,
                state=LedgerState.CLOSED, last_entry_id=9, length=90,
            )
        )  # fmt: skip
        return ledger_id

    async def tidy(self, found: Iterable[LedgerMetadata] | None = None, store: Any = None) -> int:
        """Run the cleanup of the offloader, when all ledgers are old."""
        return await delete_abandoned(
            updater_of(store or self.store), await self.ledgers() if found is None else found, ttl_s=TTL_S,
            now_ms=TTL_S * 1000, on_damaged=lambda error: self.damaged.append(error.message),
        )  # fmt: skip

    async def ledgers(self) -> list[LedgerMetadata]:
        page = await self.store.list_ledgers()
        return [(await self.store.read_ledger(each)).value for each in page.ledger_ids]

    async def visible(self) -> list[int]:
        view = await read_view(self.store)
        return [metadata.ledger_id for metadata in await self.ledgers() if view.sees(metadata)]


# --- a commit that has landed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("transaction", [NAMED, ONCE], ids=["named", "once"])
async def test_a_commit_that_has_landed_is_none_that_failed_though_the_store_is_away_then(
    transaction: Transaction,
) -> None:
    """Else Spark would run the job again, and its rows would be there twice."""
    stage = Stage()
    await stage.write(transaction, 1)
    ledgers = await stage.write(transaction)
    store = AwayOnceCommitted(stage.store)
    assert await commit(updater_of(store), transaction, ledgers) is True
    assert await stage.visible() == ledgers
    if transaction.is_once:
        await stage.tidy()
    else:
        assert await commit(updater_of(stage.store), transaction, ledgers) is True
    found = await stage.ledgers()
    assert [metadata.ledger_id for metadata in found] == await stage.visible() == ledgers
    assert not any(is_pending(metadata) for metadata in found)


async def test_a_commit_that_has_landed_is_none_that_failed_though_the_clock_is_damaged() -> None:
    stage = Stage()
    ledgers = await stage.write(ONCE)
    await stage.store.write_record("sink-clock", b"noon", None)
    assert await commit(updater_of(stage.store), ONCE, ledgers) is True
    await stage.tidy()
    assert set(stage.damaged) == {"the record sink-clock is not a number"}


async def test_an_attempt_that_came_second_tells_that_its_ledgers_could_not_be_deleted() -> None:
    async def go_away() -> None:
        raise MetadataUnavailable("it is away")

    for at in range(10):
        stage = Stage()
        assert await commit(updater_of(stage.store), NAMED, await stage.write(NAMED))
        store = Before(stage.store, at, go_away)
        with pytest.raises(MetadataUnavailable):
            await commit(updater_of(store), NAMED, await stage.write(NAMED))


# --- what is odd or damaged -------------------------------------------------------------------------------------------

ODD_MARKS = [
    b"a//b/1", b"a/b/1", b"/1", b"once//1", b"once/a/b/1", b"once/a//1", b"/once/a/1", b"a/-1", b"a/+1", b"a/1_0",
    b"x" * 600 + b"/1", b"x" * 470 + b"/" + b"1" * 19, b"once/" + b"x" * 490 + b"/0", b"a/" + b"9" * 20,
    b"a/" + b"1" * 5_000, "a/\u0663".encode(),
]  # fmt: skip


@pytest.mark.parametrize("mark", ODD_MARKS)
async def test_a_ledger_with_an_invalid_mark_belongs_to_no_transaction_and_does_not_stop_the_cleanup(
    mark: bytes,
) -> None:
    stage = Stage()
    odd = await stage.ledger({"tallybook.sink": mark, "tallybook.pending": b"1"})
    await stage.write(NAMED)
    assert await stage.tidy() == 2
    (left,) = await stage.ledgers()
    assert left.ledger_id == odd
    assert transaction_of(left) is None
    assert View({}).sees(left)


@pytest.mark.parametrize("sink", ["sales", "once", "once/8d0c", "x" * 100, "日本", "a b", ".."])
def test_what_writers_of_transactions_mark_is_understood(sink: str) -> None:
    for transaction in (Transaction(sink, 0), Transaction(sink, (1 << 63) - 1)):
        fragments = (Fragment(0, ("b1",)),)
        metadata = LedgerMetadata(1, Quorum(1, 1, 1), fragments, "creator", 0, custom=transaction.marks)
        assert transaction_of(metadata) == transaction


@pytest.mark.parametrize("value", [b"{", b'{"format": 9, "last": 1, "ledgers": []}'], ids=["damaged", "newer"])
async def test_an_unreadable_record_is_reported_and_the_other_sinks_are_cleaned_up(value: bytes) -> None:
    stage = Stage()
    theirs = [await stage.write(Transaction(sink, 3), 1) for sink in ("a", "once/a", "zoo")]
    for sink in ("a", "once/a", "zoo"):
        await stage.store.write_record(f"sinks/{sink}", value, None)
    dead, committed = await stage.write(NAMED), await stage.write(ONCE)
    await stage.store.write_record("sinks/once/8d0c-11", SinkRecord().encode(), None)
    assert await commit(updater_of(stage.store), ONCE, committed)
    assert await stage.tidy() == 2
    left = [metadata.ledger_id for metadata in await stage.ledgers()]
    assert left == [*(each for (each,) in theirs), *committed]
    assert not set(dead) & set(left)
    assert "sinks/once/8d0c-11" not in stage.shared.records
    for sink in ("a", "once/a", "zoo"):
        assert sum(f"sinks/{sink} " in told for told in stage.damaged) == 2, (
            "as its ledger is looked at, and its record"
        )
        assert stage.shared.records[f"sinks/{sink}"].value == value
    with pytest.raises(DamagedFile if value == b"{" else NewerFormat):
        await read_view(stage.store)


# --- a batch that is committed after all ------------------------------------------------------------------------------


async def test_a_batch_that_is_committed_and_forgotten_while_it_is_tidied_up_leaves_no_record() -> None:
    """Before each call of the cleanup in turn. The ledgers become visible, or are deleted: all of them."""
    outcomes, at, came = set[bool](), 0, True
    while came:
        stage = Stage()
        ledgers = await stage.write(ONCE)

        async def come_late(stage: Stage = stage, ledgers: list[int] = ledgers) -> None:
            try:
                await commit(updater_of(stage.store), ONCE, ledgers)
            except Conflict:
                outcomes.add(False)
                return
            outcomes.add(True)
            await forget(updater_of(stage.store), ONCE.sink)

        store = Before(stage.store, at, come_late)
        await stage.tidy(store=store)
        assert await stage.visible() in (ledgers, [])
        assert await stage.visible() == [metadata.ledger_id for metadata in await stage.ledgers()]
        await stage.tidy()
        assert set(stage.shared.records) <= {"sink-clock"}, at
        came, at = store.came, at + 1
    assert outcomes == {True, False}


async def give_up(stage: Stage, store: Any, ledgers: list[int]) -> None:
    await abandon(updater_of(store), ONCE, ledgers)


async def tidy_up(stage: Stage, store: Any, _ledgers: list[int]) -> None:
    await stage.tidy(store=store)


@pytest.mark.parametrize("who", [give_up, tidy_up])
async def test_ledgers_of_a_batch_lose_their_pending_mark_with_the_tick_of_any_process_that_settles_them(
    who: Any,
) -> None:
    """The commit has stopped after its compare-and-set; the next process stops before each of its calls in turn."""
    at, stopped, settled = 0, True, 0
    while stopped:
        stage = Stage()
        ledgers = await stage.write(ONCE)
        await stage.store.write_record("sinks/" + ONCE.sink, SinkRecord(Committed(0, tuple(ledgers))).encode(), None)
        store = Before(stage.store, at, stop)
        try:
            await who(stage, store, ledgers)
            stopped = False
        except StoppedError:
            at += 1
        for metadata in await stage.ledgers():
            assert is_pending(metadata) or SINCE in metadata.custom, at
            settled += not is_pending(metadata)
        assert await stage.visible() == ledgers
    assert settled > 4

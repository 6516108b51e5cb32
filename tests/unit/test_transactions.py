"""Transactions: all ledgers become visible together, exactly once, after any failure, and nothing is left."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallybook.core.errors import (
    Conflict,
    DamagedFile,
    MetadataConflict,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NewerFormat,
    NoSuchLedger,
)
from tallybook.core.quorum import Quorum
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.store import MetadataStore, Ok
from tallybook.metadata.transactions import (
    EVERYTHING,
    Transaction,
    View,
    abandon,
    commit,
    discard,
    is_pending,
    last_committed,
    read_view,
    record_attempt,
    was_committed,
)
from tallybook.metadata.transactions.model import settled, transaction_of
from tallybook.metadata.transactions.sink_record import Committed
from tallybook.offload.policy import due
from tallybook.runtime.rng import SeededRng

from ..support.fault_script import FaultScript
from ..support.faulty_metadata import FaultyMetadataStore, MetadataFault, RandomMetadataFaults

SINK = "sales"
GIVES_UP = (MetadataConflict, MetadataOutcomeUnknown, MetadataUnavailable)


class FreeClock:
    """Waiting costs nothing but the turn of others."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_us(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


class StoppedError(Exception):
    """The process has ended here."""


class FailsAt:
    """One fault, at the so-and-so-many-th operation; it counts them all."""

    def __init__(self, at: int, fault: MetadataFault) -> None:
        self.at = at
        self.fault = fault
        self.seen: list[str] = []

    def next(self, operation: str) -> MetadataFault | None:
        self.seen.append(operation)
        return self.fault if len(self.seen) - 1 == self.at else None


class StopsAt:
    """A process that ends before its so-and-so-many-th operation, and does nothing any more."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0

    def next(self, _operation: str) -> None:
        self.count += 1
        if self.count > self.at:
            raise StoppedError


class Stage:
    """A metadata store with ledgers of transactions in it."""

    def __init__(self) -> None:
        self.shared = MemoryMetadata(SeededRng(1))
        self.store: MetadataStore = self.shared.client().store
        self.next_id = 0

    def through(self, faults: Any) -> tuple[FaultyMetadataStore, LedgerUpdater]:
        store = FaultyMetadataStore(self.shared.client().store, faults, FreeClock())
        return store, LedgerUpdater(store, FreeClock(), SeededRng(2))

    async def attempt(self, number: int, count: int = 2, *, sink: str = SINK, note: bool = True) -> list[int]:
        """The results of the tasks of an attempt: closed ledgers, pending, with their record."""
        transaction, found = Transaction(sink, number), []
        for _ in range(count):
            metadata = LedgerMetadata(
                self.next_id, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0, custom=transaction.marks,
                state=LedgerState.CLOSED, last_entry_id=9, length=90,
            )  # fmt: skip
            self.next_id += 1
            await self.store.create_ledger(metadata)
            if note:
                updater = LedgerUpdater(self.store, FreeClock(), SeededRng(2))
                await record_attempt(updater, transaction, metadata.ledger_id)
            found.append(metadata.ledger_id)
        return found

    async def commit(self, number: int, ledger_ids: Iterable[int], faults: Any = None) -> bool:
        store, updater = self.through(faults or FaultScript([]))
        done = await commit(updater, Transaction(SINK, number), ledger_ids)
        await store.land_late_writes()
        return done

    async def ended(self, number: int, ledger_ids: Iterable[int], faults: Any) -> bool:
        """Commit; whether it came to its end."""
        try:
            await self.commit(number, ledger_ids, faults)
        except (*GIVES_UP, StoppedError):
            return False
        return True

    async def abandon(self, number: int, ledger_ids: Iterable[int], faults: Any = None) -> None:
        _, updater = self.through(faults or FaultScript([]))
        await abandon(updater, Transaction(SINK, number), ledger_ids)

    async def ledgers(self) -> dict[int, LedgerMetadata]:
        page = await self.store.list_ledgers()
        return {each: (await self.store.read_ledger(each)).value for each in page.ledger_ids}

    async def visible(self, view: View | None = None) -> list[int]:
        view = view or await read_view(self.store)
        return [each for each, metadata in (await self.ledgers()).items() if view.sees(metadata)]

    async def attempts(self) -> tuple[str, ...]:
        return (await self.store.list_records("sink-attempts/")).names

    async def put(self, name: str, value: bytes) -> None:
        record = await self.store.read_record(name)
        assert isinstance(await self.store.write_record(name, value, record.version if record else None), Ok)

    async def is_clean(self) -> bool:
        """Whether all existing ledgers are visible, and none waits for deletion."""
        found = await self.ledgers()
        return sorted(found) == await self.visible() and not await self.attempts()


# --- one after the other ----------------------------------------------------------------------------------------------


async def test_ledgers_of_a_transaction_come_into_view_together_and_are_pending_no_more() -> None:
    stage = Stage()
    ledgers = await stage.attempt(0, 3)
    assert await stage.visible() == []
    assert await stage.commit(0, ledgers) is True
    assert await stage.visible() == ledgers
    found = await stage.ledgers()
    assert not any(is_pending(metadata) for metadata in found.values())
    assert {transaction_of(metadata) for metadata in found.values()} == {Transaction(SINK, 0)}
    assert await last_committed(stage.store, SINK) == Committed(0, tuple(ledgers))
    assert json.loads(stage.shared.records["sinks/sales"].value) == {"format": 2, "last": 0, "ledgers": [0, 1, 1]}
    assert await last_committed(stage.store, "another") is None
    assert await stage.is_clean()


async def test_a_commit_that_is_repeated_changes_nothing_and_a_second_attempt_is_deleted() -> None:
    stage = Stage()
    failed, first = await stage.attempt(3), await stage.attempt(3)
    assert await stage.commit(3, first)
    with pytest.raises(NoSuchLedger):
        await stage.store.read_ledger(failed[0])
    before = {name: (stored.value, stored.version) for name, stored in stage.shared.records.items()}
    assert await stage.commit(3, reversed(first)) is True, "it was this one that did it"
    assert {name: (stored.value, stored.version) for name, stored in stage.shared.records.items()} == before
    assert await stage.commit(3, await stage.attempt(3)) is False
    assert await stage.visible() == first
    assert await stage.is_clean()


async def test_attempts_at_younger_transactions_and_at_other_sinks_are_left_alone() -> None:
    stage = Stage()
    good, younger = await stage.attempt(0), await stage.attempt(1)
    other = await stage.attempt(0, sink="sales-2") + await stage.attempt(0, sink="sale")
    assert await stage.commit(0, good)
    assert sorted(await stage.ledgers()) == sorted(good + younger + other)
    assert await stage.visible() == good
    assert await stage.commit(1, younger)
    assert await stage.visible() == good + younger
    assert len(await stage.attempts()) == len(other)


async def test_a_ledger_of_another_transaction_is_neither_committed_nor_deleted() -> None:
    stage = Stage()
    [other] = await stage.attempt(0, 1, sink="of-another-job")
    mine, transaction = await stage.attempt(0), Transaction(SINK, 0)
    _, updater = stage.through(FaultScript([]))
    with pytest.raises(Conflict, match=f"ledger {other} was not written by it"):
        await commit(updater, transaction, [*mine, other])
    assert await stage.visible() == []
    # A store that was restored may have it under another ledger's id.
    await record_attempt(updater, transaction, other)
    await commit(updater, transaction, mine)
    await abandon(updater, Transaction(SINK, 1), [other])
    assert sorted(await stage.ledgers()) == [other, *mine]
    assert await stage.visible() == mine


async def test_a_late_commit_is_recognized_as_its_own_and_another_attempt_at_an_older_number_is_deleted() -> None:
    stage = Stage()
    first, stray, second = await stage.attempt(0), await stage.attempt(0), await stage.attempt(5)
    assert await stage.commit(0, first)
    assert await stage.commit(5, second)
    assert await stage.commit(0, first) is True, "its answer came after the next one"
    for late in ((0, stray), (4, await stage.attempt(4))):
        assert await stage.commit(*late) is False
    assert await stage.visible() == first + second
    assert await stage.is_clean()


async def test_transactions_without_ledgers_count_and_numbers_may_be_left_out() -> None:
    stage = Stage()
    assert await stage.commit(0, [])
    ledgers = await stage.attempt(7)
    assert await stage.commit(7, ledgers)
    assert await stage.commit(9, [])
    assert await stage.visible() == ledgers
    assert await last_committed(stage.store, SINK) == Committed(9, ())


async def test_a_ledger_of_a_committed_transaction_may_be_deleted() -> None:
    stage = Stage()
    ledgers = await stage.attempt(0)
    assert await stage.commit(0, ledgers)
    _, updater = stage.through(FaultScript([]))
    await discard(updater, [ledgers[0], 12345])
    assert await stage.commit(0, ledgers)
    assert await stage.visible() == ledgers[1:]
    assert await stage.commit(1, await stage.attempt(1))


@pytest.mark.parametrize("number", [0, 4, 5])
async def test_a_sink_belongs_to_its_first_writer(number: int) -> None:
    stage = Stage()
    _, updater = stage.through(FaultScript([]))
    assert await commit(updater, Transaction(SINK, 4, "query"), await stage.attempt(4, 1, note=False))
    before = await stage.visible()
    theirs, attempt = Transaction(SINK, number, "another"), await stage.attempt(number, 1, note=False)
    with pytest.raises(Conflict, match="belongs to another writer"):
        await commit(updater, theirs, attempt)
    await abandon(updater, theirs, attempt)
    assert await stage.visible() == before
    assert await commit(updater, Transaction(SINK, 5, "query"), await stage.attempt(5, 1, note=False))
    last = await last_committed(stage.store, SINK)
    assert last is not None
    assert (last.number, last.owner, len(await stage.visible())) == (5, "query", 2)


async def test_an_old_transaction_that_was_committed_is_told_from_one_that_never_was() -> None:
    stage = Stage()
    for number in (3, 7):
        assert await stage.commit(number, await stage.attempt(number))
    for number in (3, 5):
        assert await stage.commit(number, await stage.attempt(number)) is False
    asked = [Transaction(SINK, 3), Transaction(SINK, 5), Transaction("weekly", 3)]
    assert [await was_committed(stage.store, each) for each in asked] == [True, False, False]


async def test_the_record_of_an_attempt_is_written_even_if_its_answer_is_lost() -> None:
    for fault in (MetadataFault.UNKNOWN_APPLIED, MetadataFault.UNKNOWN_LOST, MetadataFault.UNKNOWN_LATE):
        stage = Stage()
        _, updater = stage.through(FaultScript([("write_record", fault)] * 2))
        await record_attempt(updater, Transaction(SINK, 3), 17)
        await record_attempt(updater, Transaction(SINK, 3), 17)
        assert await stage.attempts() == ("sink-attempts/sales/3-17",)
    _, updater = stage.through(FaultScript([("write_record", MetadataFault.UNKNOWN_LOST)] * 100))
    with pytest.raises(MetadataOutcomeUnknown):
        await record_attempt(updater, Transaction(SINK, 3), 18)


# --- views ------------------------------------------------------------------------------------------------------------


def marked(mark: bytes | None, *, pending: bool = False, ledger_id: int = 1) -> LedgerMetadata:
    custom = ({"tallybook.sink": mark} if mark is not None else {}) | ({"tallybook.pending": b"1"} if pending else {})
    return LedgerMetadata(ledger_id, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0, custom=custom)


def test_a_view_sees_what_is_not_marked_and_what_is_committed() -> None:
    view = View({SINK: Committed(5, (1, 2))})
    for seen, metadata in [
        (True, marked(None)),
        (True, marked(None, pending=True)),  # not a mark of a transaction, but the user's own
        (True, marked(b"no mark")),
        (True, marked(b"/5")),
        (True, marked(b"sales/4")),
        (False, marked(b"sales/4", pending=True)),
        (True, marked(b"sales/5")),
        (True, marked(b"sales/5", pending=True)),  # committed, and still marked as pending
        (False, marked(b"sales/5", ledger_id=3)),
        (False, marked(b"sales/5", pending=True, ledger_id=3)),
        (False, marked(b"sales/6", pending=True)),
        (False, marked(b"sales/6")),  # committed, and unmarked after this view
        (False, marked(b"sale/0")),
        (False, marked(b"sale/0", pending=True)),
    ]:
        assert view.sees(metadata) is seen, metadata
        assert EVERYTHING.sees(metadata)


def test_a_ledger_that_is_settled_keeps_its_mark_and_all_else() -> None:
    pending = marked(b"sales/4", pending=True)
    pending = replace(pending, custom={**pending.custom, "mine": b"x"})
    assert settled(pending) == replace(pending, custom={"tallybook.sink": b"sales/4", "mine": b"x"})
    assert settled(settled(pending)) == settled(pending)


async def test_a_view_from_before_the_commit_sees_none_of_it_and_one_from_after_it_all_at_every_moment() -> None:
    """The commit ends, or pauses, before each of its operations in turn."""
    at, stopped = 0, True
    while stopped:
        stage = Stage()
        old = await stage.attempt(0)
        assert await stage.commit(0, old)
        before = await read_view(stage.store)
        new = await stage.attempt(1, 3)
        stopped = not await stage.ended(1, new, StopsAt(at))
        assert await stage.visible(before) == old
        assert await stage.visible() in (old, old + new)
        last = await last_committed(stage.store, SINK)
        assert (await stage.visible() == old + new) is (last == Committed(1, tuple(new)))
        at += 1
    assert at > 10, "reads, writes, settling and sweeping were all interrupted"


async def test_a_listing_of_sinks_that_is_cut_off_is_never_taken_for_all_of_them() -> None:
    for sinks in (1, 2, 5):
        stage = Stage()
        for sink in range(sinks):
            ledgers = await stage.attempt(0, sink=f"sink-{sink}")
            _, updater = stage.through(FaultScript([]))
            assert await commit(updater, Transaction(f"sink-{sink}", 0), ledgers)
        everything = await read_view(stage.store)
        for faults in (1, 2, 30):
            store, _ = stage.through(FaultScript([("list_records", MetadataFault.PARTIAL)] * faults))
            try:
                assert await read_view(store) == everything
            except MetadataUnavailable:
                assert (sinks, faults) != (5, 1), "what was left out comes with the next page"


@pytest.mark.parametrize(
    "value",
    [
        b"", b"{", b"[]", b"7", b"null", b'"text"', b"\xff\xfe", b"[" * 60_000, b"{}",
        b'{"format": 3, "last": 1, "ledgers": []}', b'{"format": 1, "last": -1, "ledgers": [1]}',
        b'{"format": 1, "last": 1, "ledgers": {}}', b'{"format": 1, "last": 1, "ledgers": "12"}',
        b'{"format": 1, "last": 1, "ledgers": [1.5]}', b'{"format": 1, "last": 1, "ledgers": [true]}',
        b'{"format": 1, "last": 1, "ledgers": [-1]}', b'{"format": 1, "last": "1", "ledgers": []}',
        b'{"format": 1, "last": 1, "ledgers": [9223372036854775808]}', b'{"format": 1, "last": 1}',
        b'{"format": 1, "last": -2, "ledgers": []}', b'{"format": 1, "last": true, "ledgers": []}',
    ],
)  # fmt: skip
async def test_a_damaged_record_is_reported_and_neither_believed_nor_overwritten(value: bytes) -> None:
    stage = Stage()
    await stage.put("sinks/sales", value)
    ledgers = await stage.attempt(2)
    for work in (read_view(stage.store), last_committed(stage.store, SINK), stage.commit(2, ledgers)):
        with pytest.raises(NewerFormat if b'"format": 3' in value else DamagedFile, match="sinks/sales"):
            await work
    assert stage.shared.records["sinks/sales"].value == value
    assert sorted(await stage.ledgers()) == ledgers


async def test_the_offloader_leaves_pending_ledgers_alone() -> None:
    stage = Stage()
    ledgers = await stage.attempt(0)
    found = list((await stage.ledgers()).values())
    policy = OffloadSettings(min_age_s=0, min_bytes=0)
    assert due(found, policy, 10**12) == []
    assert await stage.commit(0, ledgers)
    found = list((await stage.ledgers()).values())
    assert [each.ledger_id for each in due(found, policy, 10**12)] == ledgers


# --- faults -----------------------------------------------------------------------------------------------------------

FAULTS = (
    MetadataFault.UNAVAILABLE,
    MetadataFault.UNKNOWN_APPLIED,
    MetadataFault.UNKNOWN_LOST,
    MetadataFault.UNKNOWN_LATE,
    MetadataFault.PARTIAL,
    MetadataFault.STALE,
)


@pytest.mark.parametrize("fault", FAULTS)
async def test_after_any_failed_call_the_same_commit_settles_it_with_one_set_of_ledgers(fault: MetadataFault) -> None:
    at = 0
    while True:
        stage = Stage()
        old = await stage.attempt(0)
        assert await stage.commit(0, old)
        left, new = await stage.attempt(1), await stage.attempt(1)
        faults = FailsAt(at, fault)
        try:
            assert await stage.commit(1, new, faults) is True
        except GIVES_UP:
            assert await stage.visible() in (old, old + new)
        assert await stage.commit(1, new) is True
        assert await stage.visible() == old + new, (at, faults.seen)
        assert not set(left) & set(await stage.ledgers())
        assert await stage.is_clean()
        at += 1
        if at > len(faults.seen):
            break
    assert at > 15


@pytest.mark.parametrize("fault", [*FAULTS, None], ids=lambda fault: fault.name if fault else "stops")
async def test_after_any_failed_call_other_tasks_may_run_for_the_next_commit(fault: MetadataFault | None) -> None:
    """Spark runs the micro-batch again, and its tasks write other ledgers: one set of the two counts."""
    at = 0
    while True:
        stage = Stage()
        old = await stage.attempt(0)
        assert await stage.commit(0, old)
        first = await stage.attempt(1)
        faults: Any = FailsAt(at, fault) if fault else StopsAt(at)
        ended = await stage.ended(1, first, faults)
        second = await stage.attempt(1)
        done = await stage.commit(1, second)
        assert await stage.visible() == old + (second if done else first), at
        assert not (ended and done)
        assert await stage.is_clean()
        at += 1
        if ended and at > (len(faults.seen) if fault else faults.count):
            break


async def test_ledgers_whose_committer_stopped_half_way_survive_the_next_transaction() -> None:
    """Between its compare-and-set and the end of settling they are pending, as what is to be swept away is."""
    at, stopped = 0, True
    while stopped:
        stage = Stage()
        stray, first = await stage.attempt(0), await stage.attempt(0)
        stopped = not await stage.ended(0, first, StopsAt(at))
        committed = await last_committed(stage.store, SINK) is not None
        second = await stage.attempt(1)
        assert await stage.commit(1, second)
        assert await stage.visible() == (first if committed else []) + second, at
        assert not set(stray) & set(await stage.ledgers())
        assert await stage.is_clean()
        at += 1
    assert at > 10


async def goes_on_after_others(at: int) -> bool:
    """Commit, and let others commit the next two transactions before one of its operations; whether there is such."""
    stage, others, faults = Stage(), list[int](), FailsAt(-1, MetadataFault.UNAVAILABLE)
    first = await stage.attempt(0)
    store, updater = stage.through(faults)
    begin = store._begin

    async def paused(operation: str) -> Any:
        found = await begin(operation)
        if len(faults.seen) == at + 1 and not others:
            for number in (1, 2):
                ledgers = await stage.attempt(number)
                others.extend(ledgers)
                assert await stage.commit(number, ledgers)
            others.extend(await stage.attempt(3))
        return found

    store._begin = paused
    done = await commit(updater, Transaction(SINK, 0), first)
    assert await stage.visible() == (first if done else []) + others[:4], at
    assert set(others) <= set(await stage.ledgers())
    return bool(others)


async def test_a_committer_that_goes_on_after_others_have_committed_deletes_nothing_of_theirs() -> None:
    at = 0
    while await goes_on_after_others(at):
        at += 1
    assert at > 10


@given(st.integers(0, 2**32))
@settings(max_examples=15)
def test_two_drivers_of_one_query_never_bring_both_attempts_into_view(run, seed):
    async def play() -> None:
        stage, rng = Stage(), SeededRng(seed)
        rates = {
            MetadataFault.UNKNOWN_APPLIED: 0.1,
            MetadataFault.UNKNOWN_LOST: 0.1,
            MetadataFault.UNKNOWN_LATE: 0.1,
            MetadataFault.UNAVAILABLE: 0.02,
        }
        sets: dict[int, list[list[int]]] = {}
        done: dict[int, list[int]] = {}

        async def driver(name: str) -> None:
            faults = RandomMetadataFaults(rng.fork(name), rates)
            for number in range(4):
                ledgers = await stage.attempt(number)
                sets.setdefault(number, []).append(ledgers)
                while True:
                    try:
                        if await stage.commit(number, ledgers, faults):
                            done[number] = ledgers
                        break
                    except GIVES_UP:
                        await asyncio.sleep(0)

        await asyncio.gather(driver("one"), driver("other"))
        await stage.commit(5, [])
        assert await stage.visible() == sorted(each for ledgers in done.values() for each in ledgers)
        for number, attempts in sets.items():
            assert done.get(number) in (None, *attempts)
        assert await stage.is_clean()

    run(play())


# --- giving up --------------------------------------------------------------------------------------------------------


async def test_a_late_commit_is_not_deleted_by_the_process_that_gave_up() -> None:
    """Spark abandons a write whose commit failed: it does not know that the commit took place."""
    for fault in (MetadataFault.UNAVAILABLE, MetadataFault.UNKNOWN_APPLIED, MetadataFault.UNKNOWN_LATE, None):
        at = 0
        while True:
            stage = Stage()
            old = await stage.attempt(0)
            assert await stage.commit(0, old)
            new = await stage.attempt(1)
            faults: Any = FailsAt(at, fault) if fault else StopsAt(at)
            store, updater = stage.through(faults)
            ended = False
            try:
                await commit(updater, Transaction(SINK, 1), new)
                ended = True
            except (*GIVES_UP, StoppedError):
                pass
            await stage.abandon(1, new)
            await store.land_late_writes()
            last = await last_committed(stage.store, SINK)
            assert await stage.visible() == old + (new if last == Committed(1, tuple(new)) else []), (fault, at)
            assert not ended or last == Committed(1, tuple(new))
            again = await stage.attempt(1)
            done = await stage.commit(1, again)
            assert await stage.visible() == old + (again if done else new)
            assert await stage.is_clean()
            at += 1
            if ended and at > (len(faults.seen) if fault else faults.count):
                break


async def test_a_write_of_the_commit_that_lands_late_cannot_name_ledgers_that_were_given_up() -> None:
    for old in ([], [0]):
        stage = Stage()
        if old:
            assert await stage.commit(0, await stage.attempt(0, 1))
        new = await stage.attempt(1)
        record = await stage.store.read_record("sinks/sales")
        await stage.abandon(1, new)
        late = json.dumps({"format": 1, "last": 1, "ledgers": new}).encode()
        await stage.store.write_record("sinks/sales", late, record.version if record else None)
        assert await stage.visible() == old
        last = await last_committed(stage.store, SINK)
        assert last is None or last.number == 0

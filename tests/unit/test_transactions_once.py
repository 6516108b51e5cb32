"""Batches that are never repeated: their record is deleted, and no reader ever sees half of one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tallybook.core.errors import DamagedFile, InvalidArgument
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.transactions import (
    SinkRecord,
    Transaction,
    View,
    attempt_of,
    commit,
    forget,
    read_view,
    record_attempt,
)
from tallybook.metadata.transactions.sink_record import MAX_LEDGERS, Committed, check_fits
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng

from ..support.fault_script import FaultScript
from ..support.faulty_metadata import FaultyMetadataStore

ONCE = Transaction.once("8d0c-11")


class StoppedError(Exception):
    """The process has ended here."""


class Counting(FaultyMetadataStore):
    """Does something before one of its calls."""

    def __init__(self, store: Any, at: int, then: Callable[[], Awaitable[None]]) -> None:
        super().__init__(store, FaultScript([]), RealClock())
        self.calls, self.at, self.then = 0, at, then

    async def _begin(self, operation: str) -> Any:
        self.calls += 1
        if self.calls > self.at:
            await self.then()
        return await super()._begin(operation)


class Stage:
    """Two ledgers of one batch, and the process that commits and forgets the batch, step by step."""

    def __init__(self) -> None:
        self.shared = MemoryMetadata(SeededRng(1))
        self.store = self.shared.client().store

    async def write(self) -> None:
        for ledger_id in range(2):
            await self.store.create_ledger(
                LedgerMetadata(
                    ledger_id, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0, custom=ONCE.marks,
                    state=LedgerState.CLOSED, last_entry_id=9, length=90,
                )
            )  # fmt: skip
            await record_attempt(LedgerUpdater(self.store, RealClock(), SeededRng(2)), ONCE, ledger_id)

    async def commit_and_forget(self, stops_at: int) -> bool:
        """Whether it ended before that call."""

        async def stop() -> None:
            raise StoppedError

        store = Counting(self.store, stops_at, stop)
        updater = LedgerUpdater(store, RealClock(), SeededRng(2))
        try:
            if "sinks/once/8d0c-11" in self.shared.records or not self.ticks:
                await commit(updater, ONCE, [0, 1])
            await forget(updater, ONCE.sink)
        except StoppedError:
            return False
        return True

    @property
    def ticks(self) -> int:
        return int(self.shared.records["sink-clock"].value) if "sink-clock" in self.shared.records else 0

    async def visible(self, view: View) -> list[int]:
        return [each for each in range(2) if view.sees((await self.store.read_ledger(each)).value)]


async def look(before: int, paused: int, meanwhile: int) -> tuple[bool, bool]:
    """A reader pauses within its view; whether it got there, and whether the writer came to its end."""
    stage = Stage()
    await stage.write()
    await stage.commit_and_forget(before)
    seen_before = await stage.visible(await read_view(stage.store))
    ended = [False]

    async def go_on() -> None:
        reader.at = 1_000
        ended[0] = await stage.commit_and_forget(meanwhile)

    reader = Counting(stage.store, paused, go_on)
    view = await read_view(reader)
    assert seen_before in ([], [0, 1])
    seen = await stage.visible(view)
    assert seen in ([], [0, 1]), (before, paused, meanwhile)
    assert seen or not seen_before, (before, paused, meanwhile)
    await stage.commit_and_forget(1_000)
    assert await stage.visible(view) == seen, "a view is a moment: what it sees does not depend on when it looks"
    assert await stage.visible(await read_view(stage.store)) == [0, 1]
    assert list(stage.shared.records) == ["sink-clock"]
    return reader.at == 1_000, ended[0]


async def test_a_reader_sees_all_or_nothing_with_any_event_between_the_steps_of_its_view() -> None:
    looks = 0
    for before in range(0, 36, 3):
        for paused in range(6):
            for meanwhile in range(0, 39, 2):
                got_there, ended = await look(before, paused, meanwhile)
                looks += 1
                if ended or not got_there:
                    break
    assert looks > 300


async def test_records_are_read_side_by_side() -> None:
    stage = Stage()
    for number in range(100):
        await stage.store.write_record(f"sinks/s{number}", SinkRecord(Committed(number, ())).encode(), None)
    under_way, most = 0, 0
    read = stage.store.read_record

    async def slow(name: str, *, linearizable: bool = False) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return await read(name, linearizable=linearizable)

    stage.store.read_record = slow
    view = await read_view(stage.store)
    assert [view.committed[f"s{number}"].number for number in range(100)] == list(range(100))
    assert most == 32


def test_as_many_ledgers_as_are_allowed_fit_a_record_and_more_are_refused() -> None:
    top = (1 << 63) - 1
    most = tuple(range(top - 999 * MAX_LEDGERS, top, 999))
    assert len(most) == MAX_LEDGERS
    record = SinkRecord(check_fits(Committed(1 << 60, most, "f" * 100)), 7, tuple(range(200)))
    assert len(record.encode()) < 60 * 1024
    assert SinkRecord.decode("x", record.encode()) == record
    for far in (range(MAX_LEDGERS + 1), range(0, 9_000 * 10**9, 10**9)):
        with pytest.raises(InvalidArgument, match=str(MAX_LEDGERS)):
            check_fits(Committed(1, tuple(far)))


def test_records_of_format_1_are_decoded_and_damaged_ones_reported() -> None:
    assert SinkRecord.decode("x", b'{"format":1,"last":3,"ledgers":[4,9]}').last == Committed(3, (4, 9))
    for wrong in (b'"since":-1', b'"since":1.5', b'"given_up":[-1]', b'"given_up":{}', b'"given_up":[3,-9]'):
        with pytest.raises(DamagedFile):
            SinkRecord.decode("x", b'{"format":2,"last":3,"ledgers":[4,9],%s}' % wrong)


def test_names_of_attempts_are_distinguished() -> None:
    assert attempt_of("sink-attempts/once/3-17") == (3, 17)
    assert attempt_of("sink-attempts-once/8d0c-11-17") == (0, 17)
    for name in ("sink-attempts/x/3", "sink-attempts/x/y-3", "sink-attempts-once/8d0c"):
        assert attempt_of(name) is None

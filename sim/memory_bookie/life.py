"""Volatile state of an in-memory bookie, which dies with its process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TypeAlias

from tallybook.core.add_kind import AddKind
from tallybook.core.answers import AddAnswer, AddCallback, LacAnswer
from tallybook.core.batch import BatchHeader
from tallybook.core.errors import OtherLedger
from tallybook.core.ids import NO_ENTRY, NO_IDENTITY

from .journal import MemoryJournal
from .ledger import MemoryLedger

Waiter: TypeAlias = "asyncio.Future[None]"


@dataclass(slots=True)
class MemoryAdd:
    """An add that is not answered yet."""

    batch: bytes
    header: BatchHeader
    key: bytes
    on_answer: AddCallback
    kind: AddKind
    identity: bytes = NO_IDENTITY

    @property
    def recovery(self) -> bool:
        """Whether it is a recovery or repair add."""
        return self.kind.from_recovery

    @property
    def deferred(self) -> bool:
        """Whether it is acked before it is durable."""
        return self.kind is AddKind.DEFERRED

    @property
    def repair(self) -> bool:
        """Whether it came from re-replication."""
        return self.kind is AddKind.REPAIR

    @property
    def ledger_id(self) -> int:
        """The ledger of the batch."""
        return self.header.ledger_id

    def answer(self, code: int, retry_after_ms: int = 0) -> AddAnswer:
        """The answer with this code."""
        header = self.header
        return AddAnswer(header.ledger_id, header.first_entry_id, header.entry_count, code, retry_after_ms)


class MemoryLife:
    """State of one life of the bookie: memory and waiting calls."""

    def __init__(self, journal: MemoryJournal, disk: dict[int, MemoryLedger]) -> None:
        self.alive = True
        self.journal = journal
        self.ledgers = {ledger_id: ledger.copy() for ledger_id, ledger in disk.items()}
        self.verifiers: dict[int, bytes] = {}
        self.identities: dict[int, bytes] = {}
        """Identities from the metadata, by ledger; stored ledgers keep the one of their first add."""
        self.awaiting_facts: dict[int, list[MemoryAdd]] = {}
        """Adds that wait until the verifier of their ledger is known."""
        self.lac_waiters: dict[int, list[Waiter]] = {}
        self.frozen_calls: list[Waiter] | None = None
        """Calls that arrived while the process is frozen; ``None`` while it runs."""


def ledger_of(ledgers: dict[int, MemoryLedger], ledger_id: int, identity: bytes = NO_IDENTITY) -> MemoryLedger:
    """The ledger; created with this identity if missing."""
    if ledger_id not in ledgers:
        ledgers[ledger_id] = MemoryLedger()
        ledgers[ledger_id].identity = identity
    return ledgers[ledger_id]


def check_identity(life: MemoryLife, ledger_id: int, identity: bytes) -> None:
    """Refuse a request for another ledger with this id.

    Raises:
        OtherLedger: the identities differ.
    """
    learned = life.identities.get(ledger_id, NO_IDENTITY)
    held = life.ledgers[ledger_id].identity if ledger_id in life.ledgers else learned
    if identity and held and identity != held:
        raise OtherLedger(f"ledger {ledger_id}: the bookie holds another ledger under this id")


def lac_of(life: MemoryLife, ledger_id: int) -> LacAnswer:
    """LAC and fence flag of a ledger."""
    ledger = life.ledgers.get(ledger_id)
    return LacAnswer(ledger.lac, ledger.fenced) if ledger else LacAnswer(NO_ENTRY, False)


def wake(life: MemoryLife, ledger_id: int) -> None:
    """Wake all long polls of the ledger."""
    for waiter in life.lac_waiters.pop(ledger_id, []):
        settle(waiter)


def resume_calls(life: MemoryLife) -> None:
    """Continue all calls that arrived while the process was frozen."""
    frozen_calls, life.frozen_calls = life.frozen_calls or [], None
    for waiter in frozen_calls:
        settle(waiter)


def settle(waiter: Waiter) -> None:
    """End one wait."""
    if not waiter.done():
        waiter.set_result(None)

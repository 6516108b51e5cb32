"""What an in-memory bookie has in memory: all that dies with its process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tallybook.core.answers import AddAnswer, LacAnswer
from tallybook.core.batch import BatchHeader
from tallybook.core.ids import NO_ENTRY

from .memory_journal import MemoryJournal
from .memory_ledger import MemoryLedger

AddCallback: TypeAlias = Callable[[AddAnswer], None]
Waiter: TypeAlias = "asyncio.Future[None]"


@dataclass(slots=True)
class Add:
    """An add on its way to the journal."""

    batch: bytes
    header: BatchHeader
    key: bytes
    on_answer: AddCallback
    recovery: bool
    deferred: bool = False
    repair: bool = False

    @property
    def ledger_id(self) -> int:
        """The ledger of the batch."""
        return self.header.ledger_id

    def answer(self, code: int, retry_after_ms: int = 0) -> AddAnswer:
        """Its fate."""
        header = self.header
        return AddAnswer(header.ledger_id, header.first_entry_id, header.entry_count, code, retry_after_ms)


class Life:
    """All that dies with the process: memory, and who waits."""

    def __init__(self, journal: MemoryJournal, disk: dict[int, MemoryLedger]) -> None:
        self.alive = True
        self.journal = journal
        self.ledgers = {ledger_id: ledger.copy() for ledger_id, ledger in disk.items()}
        self.verifiers: dict[int, bytes] = {}
        self.unmet: dict[int, list[Add]] = {}
        """Adds that wait until the verifier of their ledger is known."""
        self.lac_waiters: dict[int, list[Waiter]] = {}
        self.door: list[Waiter] | None = None
        """Who came while the process is frozen; ``None`` while it runs."""


def ledger_of(ledgers: dict[int, MemoryLedger], ledger_id: int) -> MemoryLedger:
    """The ledger, made if it is not there."""
    return ledgers.setdefault(ledger_id, MemoryLedger())


def lac_of(life: Life, ledger_id: int) -> LacAnswer:
    """What is known of the LAC of a ledger."""
    ledger = life.ledgers.get(ledger_id)
    return LacAnswer(ledger.lac, ledger.fenced) if ledger else LacAnswer(NO_ENTRY, False)


def wake(life: Life, ledger_id: int) -> None:
    """There is news of the ledger: let everyone look who waits for it."""
    for waiter in life.lac_waiters.pop(ledger_id, []):
        settle(waiter)


def open_door(life: Life) -> None:
    """Let everyone in who came while the process was frozen."""
    door, life.door = life.door or [], None
    for waiter in door:
        settle(waiter)


def settle(waiter: Waiter) -> None:
    """End one wait."""
    if not waiter.done():
        waiter.set_result(None)

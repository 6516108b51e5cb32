"""What an in-memory bookie has in memory: all that dies with its process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tallybook.core.answers import AddAnswer, LacAnswer
from tallybook.core.batch import BatchHeader
from tallybook.core.errors import OtherLedger
from tallybook.core.ids import NO_ENTRY, NO_IDENTITY

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
    identity: bytes = NO_IDENTITY

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
        self.identities: dict[int, bytes] = {}
        """As the metadata said when the ledger was met; what is held keeps the one that it was taken under."""
        self.unmet: dict[int, list[Add]] = {}
        """Adds that wait until the verifier of their ledger is known."""
        self.lac_waiters: dict[int, list[Waiter]] = {}
        self.door: list[Waiter] | None = None
        """Who came while the process is frozen; ``None`` while it runs."""


def ledger_of(ledgers: dict[int, MemoryLedger], ledger_id: int, identity: bytes = NO_IDENTITY) -> MemoryLedger:
    """The ledger, made if it is not there, with this identity."""
    if ledger_id not in ledgers:
        ledgers[ledger_id] = MemoryLedger()
        ledgers[ledger_id].identity = identity
    return ledgers[ledger_id]


def check_identity(life: Life, ledger_id: int, identity: bytes) -> None:
    """Refuse what is meant for another ledger of this id.

    Raises:
        OtherLedger: it is.
    """
    learned = life.identities.get(ledger_id, NO_IDENTITY)
    held = life.ledgers[ledger_id].identity if ledger_id in life.ledgers else learned
    if identity and held and identity != held:
        raise OtherLedger(f"ledger {ledger_id}: the bookie holds another ledger under this id")


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

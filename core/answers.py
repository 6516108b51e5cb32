"""Answers of bookies as plain values.

``wire`` converts them to and from messages; an in-memory bookie returns them directly. A failure of the bookie is not
an answer but an error from ``errors``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from .buffers import Buffer
from .errors import OK_CODE, ProtocolViolation
from .ids import NO_IDENTITY


class AddAnswer(NamedTuple):
    """Result of adding one batch at one bookie. ``code`` is a wire code of ``errors``, 0 for success."""

    ledger_id: int
    first_entry_id: int
    entry_count: int
    code: int = OK_CODE
    retry_after_ms: int = 0


AddCallback: TypeAlias = Callable[[AddAnswer], None]
"""Called on the event loop, exactly once, with the outcome of one batch."""


class AddNotSent(AddAnswer):
    """The client did not send the batch because the bookie's credit is used up. The bookie itself did not say BUSY."""

    __slots__ = ()


class FenceAnswer(NamedTuple):
    """The ledger is fenced durably. Recovery starts from ``lac``; ``last_held``, the last stored entry, is a hint."""

    lac: int
    last_held: int


class LacAnswer(NamedTuple):
    """The highest LAC that a bookie knows for a ledger, and whether a recovery has fenced the ledger.

    ``batches``: entries that a long poll asked for; whole batches, in order, without a gap. May be empty.
    """

    lac: int
    fenced: bool
    batches: tuple[Buffer, ...] = ()


class ReadAnswer(NamedTuple):
    """Whole batches, in order, without a gap; the first contains the requested entry."""

    batches: tuple[Buffer, ...]
    lac: int


class Incarnation(NamedTuple):
    """One run of a bookie: the uuid of its directories, and their boot count."""

    directory_uuid: str
    boot: int


# Answers for repair and inspection.


class EntryRange(NamedTuple):
    """Entries ``first`` to ``last``, inclusive."""

    first: int
    last: int


class HeldAnswer(NamedTuple):
    """Which entries of a ledger a bookie stores in a requested range, from its index and write cache; reads no data.

    Attributes:
        ranges: ascending, disjoint, each without a gap; of whole batches, so the first and last may extend beyond the
            request.
        looked_up_to: last entry id that was checked; if below the end of the request, ask again for the rest.
        limbo: entries not in ``ranges`` may have been lost (UNKNOWN); otherwise they are ABSENT. True for a ledger in
            limbo, and where the index is damaged in the requested range.
        writer: whether a writer's connection has the ledger attached; ``None``: unknown.
    """

    ranges: tuple[EntryRange, ...]
    looked_up_to: int
    limbo: bool
    writer: bool | None = False


class DamagedBatch(NamedTuple):
    """A batch whose copy at a bookie fails its checks."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int


class HeldLedger(NamedTuple):
    """A ledger that a bookie stores data or a fence of."""

    ledger_id: int
    fenced: bool
    limbo: bool
    identity: bytes = NO_IDENTITY
    """Tells the ledger apart from another one of the same id; empty: the bookie does not know it."""


class HeldLedgers(NamedTuple):
    """A page of a bookie's ledgers, ascending by id. ``complete``: no ledgers follow."""

    ledgers: tuple[HeldLedger, ...]
    complete: bool

    def next_after(self) -> int | None:
        """The id after which the listing continues; ``None``: the listing is complete.

        Raises:
            ProtocolViolation: the bookie says that there is more, but sent no ledger.
        """
        if self.complete:
            return None
        if not self.ledgers:
            raise ProtocolViolation("the bookie sent an empty page of its ledger listing and said that more follows")
        return self.ledgers[-1].ledger_id


class DirectorySpace(NamedTuple):
    """One directory of a bookie, and the free space of its disk.

    Attributes:
        role: its content: "journal", "ledgers" or "index".
        disk: directories with the same number are on the same disk; 0: unknown.
        total_bytes, free_bytes: of that disk.
        state: "room": enough space; "warned": nearly full; "short": no new entry log, or no adds; "not known".
    """

    path: str
    role: str
    disk: int
    total_bytes: int
    free_bytes: int
    state: str


class BookieStatus(NamedTuple):
    """Status of a bookie.

    Attributes:
        disk_used_fraction: of the fullest disk; ``free_bytes``: of the disk with the most space, where new logs go.
        limbo_events: how often it may have lost data; ledgers with ids below ``limbo_below`` that were not repaired
            since are in limbo. Without an event, none is.
        directories: empty for a bookie of an earlier version.
    """

    read_only: bool
    disk_used_fraction: float
    free_bytes: int
    entry_log_bytes: int
    entry_logs: int
    journal_used_fraction: float
    ledgers_in_memory: int
    damaged_batches: int
    limbo_events: int
    limbo_below: int
    scrub_rounds: int
    uptime_seconds: float
    directories: tuple[DirectorySpace, ...] = ()


class CopyPlace(NamedTuple):
    """Where a bookie has a copy: "write cache", "read cache", "journal" or "entry log", and the position there."""

    where: str
    detail: str
    size: int


class CopyTrace(NamedTuple):
    """Copies of one entry at one bookie.

    Attributes:
        verdict: "intact", "damaged", "absent", "unknown" or "deleted".
        why: the error, if any.
        first_entry_id, last_entry_id: of the batch; -1: no batch.
        batch_crc, batch_bytes: checksum and length of an intact batch; 0: no intact batch.
    """

    verdict: str
    why: str
    first_entry_id: int
    last_entry_id: int
    batch_crc: int
    batch_bytes: int
    lac: int
    fenced: bool
    limbo: bool
    places: tuple[CopyPlace, ...]

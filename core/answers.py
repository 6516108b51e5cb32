"""What bookies answer, as both sides speak of it.

These are plain values: ``bookie/service`` turns them into wire messages, ``client/bookie_rpc``
turns messages back into them, and an in-memory bookie hands them over directly. An answer
that reports a failure of the bookie itself is not a value but an error from ``errors``.
"""

from __future__ import annotations

from typing import NamedTuple

from .batch import Buffer
from .errors import OK_CODE, ProtocolViolation
from .ids import NO_IDENTITY


class AddAnswer(NamedTuple):
    """The fate of one batch at one bookie. ``code`` is a wire code of ``errors``, 0 for acked."""

    ledger_id: int
    first_entry_id: int
    entry_count: int
    code: int = OK_CODE
    retry_after_ms: int = 0


class Withheld(AddAnswer):
    """A client has not sent the batch, for want of room: the bookie would be too busy for it, but has not said so."""

    __slots__ = ()


class FenceAnswer(NamedTuple):
    """The ledger is fenced, durably. ``lac`` is what recovery starts from; ``last_held`` is a hint."""

    lac: int
    last_held: int


class LacAnswer(NamedTuple):
    """The highest LAC a bookie saw of a ledger, and whether a recovery has fenced it.

    ``batches``: what a long poll was asked to bring along; whole, in order and without a gap. None is as good.
    """

    lac: int
    fenced: bool
    batches: tuple[Buffer, ...] = ()


class ReadAnswer(NamedTuple):
    """Whole batches, in order and without a gap; the first one holds the entry asked for."""

    batches: tuple[Buffer, ...]
    lac: int


class Incarnation(NamedTuple):
    """One life of one bookie: the uuid of its directories, and how often they were booted."""

    directory_uuid: str
    boot: int


# What repair and inspection hear.


class EntryRange(NamedTuple):
    """Entries from ``first`` to ``last``, both included."""

    first: int
    last: int


class HeldAnswer(NamedTuple):
    """What a bookie holds of a ledger between two entries, by its index and write cache; no data was read.

    Attributes:
        ranges: ascending, disjoint, each without a gap; of whole batches, so the first and the last one may reach
            beyond what was asked for.
        looked_up_to: where it lies below the last entry asked for, the rest is for the next question.
        limbo: what is not in ``ranges`` may have been lost (UNKNOWN), else it is ABSENT. So it is of a ledger in limbo,
            and where the index is damaged between the two entries.
        writer: whether a writer's connection has the ledger attached; ``None``: the bookie cannot say, or does not.
    """

    ranges: tuple[EntryRange, ...]
    looked_up_to: int
    limbo: bool
    writer: bool | None = False


class DamagedBatch(NamedTuple):
    """A batch of which a bookie's copy fails its checks."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int


class HeldLedger(NamedTuple):
    """A ledger of which a bookie holds something."""

    ledger_id: int
    fenced: bool
    limbo: bool
    identity: bytes = NO_IDENTITY
    """What tells the ledger from another one of the same id; empty: the bookie does not know it."""


class HeldLedgers(NamedTuple):
    """A page of them, ascending. ``complete``: there is none above the last one."""

    ledgers: tuple[HeldLedger, ...]
    complete: bool

    def next_after(self) -> int | None:
        """The id behind which the listing goes on; ``None``: this was all of it.

        Raises:
            ProtocolViolation: the bookie says that there is more, and gives nothing.
        """
        if self.complete:
            return None
        if not self.ledgers:
            raise ProtocolViolation("a bookie cut off its listing of the ledgers that it holds")
        return self.ledgers[-1].ledger_id


class DirectorySpace(NamedTuple):
    """One directory of a bookie, and how much room there is.

    Attributes:
        role: what lies there: "journal", "ledgers" or "index".
        disk: directories with the same number lie on the same one; 0 where that is not known.
        total_bytes, free_bytes: of that disk.
        state: "room"; "warned": it fills up; "short": no entry log is begun there, or no add taken; "not known".
    """

    path: str
    role: str
    disk: int
    total_bytes: int
    free_bytes: int
    state: str


class BookieStatus(NamedTuple):
    """How a bookie is doing.

    Attributes:
        disk_used_fraction: of the fullest disk; ``free_bytes``: of the one with the most room, where logs go next.
        limbo_events: how often it may have lost something; ledgers with ids below ``limbo_below`` that were not
            repaired since are in limbo. Without an event none is.
        directories: none where the bookie is of an earlier version.
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
    """A place where a bookie has a batch: "write cache", "read cache", "journal" or "entry log", and where in it."""

    where: str
    detail: str
    size: int


class CopyTrace(NamedTuple):
    """What a bookie has of one entry, and where.

    Attributes:
        verdict: "intact", "damaged", "absent", "unknown" or "deleted".
        why: the error, where there is one.
        first_entry_id, last_entry_id: of the batch; -1 where there is none.
        batch_crc, batch_bytes: the checksum of an intact batch, and its length; 0 where there is none.
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

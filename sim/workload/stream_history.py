"""History of what clients did with streams and what they were told; ``checks/stream_check`` checks it.

It does not know heads, sessions or segments. A stream is a sequence of records, each with a place and a sequence
number. A *writer session* lasts from ``writer()`` to the end of the handle::

    session = history.writer_session("producer-0.1", tag, asked_at)
    append = session.append(b"payload", ...)        # before the append is sent
    append.ok(position.place)                       # or append.failed(): certainly not done; or neither
    history.reading("follower-0.0", Start.earliest()).saw(records)

Every append attempt has its own record key, so a record that is read shows its attempt and session, however often the
same payload was tried. Streams are identified by the tag of their positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tallybook.stream import Cursor, Gap, GapReason, Record, Start
from tallybook.stream.position import RecordAddress

from .history import OperationOutcome


class _Anything:
    """Stands for "no condition"."""


ANYTHING: Final = _Anything()


@dataclass(slots=True)
class AppendAttempt:
    """One attempt to append a record."""

    session: WriterSession
    number: int
    """Number within its session."""
    payload: bytes
    began_at: float
    identified: bool
    """Whether it has a dedup id, under which it may be retried."""
    set_number: int
    """Number of its set within the session; 0 if it is in none."""
    condition: RecordAddress | _Anything | None
    """Place of the record that it must follow; ``None`` if it must be the first."""
    outcome: OperationOutcome = OperationOutcome.UNKNOWN
    place: RecordAddress | None = None
    sent: bool = False
    """Whether the writer accepted it, so that no later record of the writer may exist without it."""

    @property
    def key(self) -> bytes:
        """The key of its record."""
        return b"%d/%d" % (self.session.number, self.number)

    def ok(self, place: RecordAddress) -> None:
        """Record that it was confirmed, or existed before under its dedup id."""
        self.outcome, self.place = OperationOutcome.OK, place

    def failed(self) -> None:
        """Record that it was certainly not done."""
        self.outcome = OperationOutcome.FAILED


@dataclass(slots=True)
class WriterSession:
    """The time during which a client believed to be the writer of a stream."""

    actor: str
    number: int
    """Number within the run."""
    asked_at: float
    given_at: float
    now: Callable[[], float]
    attempts: list[AppendAttempt] = field(default_factory=list)

    def append(
        self,
        payload: bytes,
        *,
        identified: bool = False,
        set_number: int = 0,
        condition: RecordAddress | _Anything | None = ANYTHING,
    ) -> AppendAttempt:
        """Record that an append begins."""
        attempt = AppendAttempt(self, len(self.attempts), payload, self.now(), identified, set_number, condition)
        self.attempts.append(attempt)
        return attempt


class ReadRecord(NamedTuple):
    """A record as a reader got it."""

    place: RecordAddress
    sequence: int
    payload: bytes
    key: bytes
    timestamp_ms: int
    txid: int | None


class ReadGap(NamedTuple):
    """A gap that was reported to a reader."""

    lost: bool
    """Whether the records are lost; otherwise they were truncated or expired."""
    first: int | None
    following: int | None
    """Sequence number of the first record behind the gap."""
    detail: str


@dataclass(slots=True)
class StreamReading:
    """The results of one reader, in order."""

    actor: str
    start: Start
    now: Callable[[], float]
    tag: str = ""
    items: list[ReadRecord | ReadGap] = field(default_factory=list)
    last_at: float = 0.0
    first_batch: bool = True

    def saw(self, batch: list[Record] | Gap) -> None:
        """Record the next batch of records, or a gap."""
        self.last_at = self.now()
        if isinstance(batch, Gap):
            self.tag = self.tag or (batch.before.tag if batch.before is not None else "")
            lost = batch.reason is GapReason.LOST
            self.items.append(ReadGap(lost, batch.first_sequence, batch.next_sequence, str(batch)))
            return
        self.tag = self.tag or batch[0].position.tag
        self.items += [_seen(record) for record in batch]

    @property
    def records(self) -> list[ReadRecord]:
        """The records, without gaps."""
        return [item for item in self.items if isinstance(item, ReadRecord)]


def _seen(record: Record) -> ReadRecord:
    key = record.key or b""
    return ReadRecord(record.position.place, record.sequence, record.payload, key, record.timestamp_ms, record.txid)


@dataclass(slots=True)
class SubscriptionProgress:
    """Progress of one subscription: advances that its readers requested, and those that were confirmed as stored."""

    stored: Cursor | None = None
    """The furthest cursor that was confirmed as stored, or given to a new reader, since the last reset."""
    requested: Cursor | None = None
    """The furthest cursor that any reader requested."""
    epoch: int = 0
    """Incremented by each reset. Confirmations to readers of an earlier epoch do not count."""
    resets_in_flight: int = 0
    """Number of resets in flight."""
    in_doubt: bool = False
    """Whether a reset is in flight or has an unknown outcome, so that the cursor may be anywhere."""

    def advance_stored(self, cursor: Cursor, epoch: int) -> None:
        """Record that an advance was confirmed to a reader that opened the subscription in this epoch."""
        if epoch == self.epoch and (self.stored is None or cursor.order > self.stored.order):
            self.stored = cursor

    def advance_requested(self, cursor: Cursor) -> None:
        """Record that an advance is requested."""
        if self.requested is None or cursor.order > self.requested.order:
            self.requested = cursor

    def begin_reset(self) -> int:
        """Record that a reset or deletion begins; return the epoch for ``end_reset``."""
        self.epoch += 1
        self.resets_in_flight += 1
        self.in_doubt = True
        return self.epoch

    def end_reset(self, epoch: int, *, done: bool, cursor: Cursor | None) -> None:
        """Record that a reset or deletion ended.

        Args:
            done: whether its outcome is known, so that it cannot take effect later.
            cursor: the new cursor; ``None`` if the subscription was deleted.
        """
        alone = epoch == self.epoch
        self.resets_in_flight -= 1
        self.epoch += 1
        if done and alone and not self.resets_in_flight:
            self.stored, self.in_doubt = cursor, False

    def promised(self) -> PromisedCursor:
        """The cursor at which a reader that opens the subscription now must at least begin."""
        return PromisedCursor(None if self.in_doubt else self.stored, self.epoch)

    def problem(self, before: PromisedCursor, given: Cursor) -> str:
        """Why a reader must not begin at ``given``; empty if it may.

        Args:
            before: result of ``promised`` before the reader opened the subscription.
        """
        stored = before.stored if before.epoch == self.epoch and not self.in_doubt else None
        if stored is not None and given.order < stored.order:
            return f"begins {given}, and was stored to be {stored}"
        if given.after and (self.requested is None or given.order > self.requested.order):
            return f"begins {given}, and no reader was beyond {self.requested}"
        return ""


class PromisedCursor(NamedTuple):
    """The least cursor at which a subscription may begin."""

    stored: Cursor | None
    epoch: int


@dataclass(slots=True)
class StreamFacts:
    """Everything that the history knows of one stream."""

    tag: str
    writer_sessions: list[WriterSession] = field(default_factory=list)
    subscriptions: dict[str, SubscriptionProgress] = field(default_factory=dict)
    truncated_before: int = 0
    """A truncation of all records before this sequence number was requested."""
    deleted: bool = False
    """Its deletion was requested."""
    ended: bool = False
    """A client was told that the stream has ended."""
    final: StreamReading | None = None
    """The final reading, from the first record to the last."""
    first_sequence: int = 0
    """Sequence number of the first record in the end, as the stream reports it."""

    def advances(self, name: str) -> SubscriptionProgress:
        """Progress of the subscription of this name."""
        return self.subscriptions.setdefault(name, SubscriptionProgress())


class StreamHistory:
    """History of all streams of a run.

    Args:
        now: returns the simulated time in seconds.
        retention_s: age after which records may expire; ``None``: only truncation removes records.
        dedup_records: size of the dedup window.
        clocks_agree: whether wall clocks agree, so that records are kept for the whole retention time.
        bookies_lie: whether bookies sometimes return corrupted copies; readers report a record as lost while all of its
            bookies do.
    """

    def __init__(
        self,
        now: Callable[[], float],
        *,
        retention_s: float | None = None,
        dedup_records: int = 10_000,
        clocks_agree: bool = True,
        bookies_lie: bool = False,
    ) -> None:
        self.now = now
        self.retention_s = retention_s
        self.dedup_records = dedup_records
        self.clocks_agree = clocks_agree
        self.bookies_lie = bookies_lie
        self.deletions = False
        """Whether the deletion of any stream was requested, perhaps before it was written or read."""
        self.facts_by_tag: dict[str, StreamFacts] = {}
        self.readings: list[StreamReading] = []
        self._sessions = 0

    def facts_of(self, tag: str) -> StreamFacts:
        """Facts of the stream with this tag."""
        return self.facts_by_tag.setdefault(tag, StreamFacts(tag))

    def writer_session(self, actor: str, tag: str, asked_at: float) -> WriterSession:
        """Record that a client became the writer of a stream.

        Args:
            asked_at: when it requested that.
        """
        self._sessions += 1
        session = WriterSession(actor, self._sessions, asked_at, self.now(), self.now)
        self.facts_of(tag).writer_sessions.append(session)
        return session

    def reading(self, actor: str, start: Start) -> StreamReading:
        """Record that a reader starts; its first batch tells of which stream."""
        reading = StreamReading(actor, start, self.now)
        self.readings.append(reading)
        return reading

    def seen(self, tag: str) -> list[ReadRecord]:
        """Every record of a stream that any reader has seen so far."""
        return [record for reading in self.readings if reading.tag == tag for record in reading.records]

    def count_confirmed(self) -> int:
        """Number of append attempts that were confirmed."""
        attempts = [
            each
            for facts in self.facts_by_tag.values()
            for session in facts.writer_sessions
            for each in session.attempts
        ]
        return sum(attempt.outcome is OperationOutcome.OK for attempt in attempts)

"""What clients did with streams, and what they were told: the model that ``stream_check`` compares with.

It knows nothing of heads, sessions or segments. A stream is a sequence of records, each with a place and a number; a
*writing* is the time for which somebody was told to be its writer, from ``writer()`` to the end of the handle::

    writing = history.writing("producer-0.1", tag, asked_at)
    append = writing.append(b"payload", ...)        # before it is asked for
    append.ok(position.place)                       # or append.failed(): certainly not done; or neither
    reading = history.reading("follower-0.0", Start.earliest())
    reading.saw(record)

Every attempt to append carries a key of its own, which the record keeps: so whoever reads it knows which attempt, of
which writing, it comes from, however often the same payload was tried. A stream goes by the tag of its positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tallybook.stream import Cursor, Gap, GapReason, Record, Start

from .history import Outcome

Place = tuple[int, int, int]
"""Segment, entry and slot of a record."""


class _Anything:
    """No condition."""


ANYTHING: Final = _Anything()


@dataclass(slots=True)
class Attempt:
    """One attempt to append a record."""

    writing: Writing
    number: int
    """Among those of its writing."""
    payload: bytes
    began_at: float
    identified: bool
    """It has an id, under which it may be tried again."""
    set_number: int
    """Of the set it belongs to, among those of its writing; 0: it belongs to none."""
    condition: Place | _Anything | None
    """Of the record it was to follow; ``None``: it was to be the first."""
    outcome: Outcome = Outcome.UNKNOWN
    place: Place | None = None
    sent: bool = False
    """The writer has taken it, so that nothing it takes later can be there without it."""

    @property
    def key(self) -> bytes:
        """What the record carries."""
        return b"%d/%d" % (self.writing.number, self.number)

    def ok(self, place: Place) -> None:
        """It was confirmed, or was there before under its id."""
        self.outcome, self.place = Outcome.OK, place

    def failed(self) -> None:
        """It was certainly not done."""
        self.outcome = Outcome.FAILED


@dataclass(slots=True)
class Writing:
    """The time for which somebody was a stream's writer, as far as he knew."""

    actor: str
    number: int
    """Among all of the run."""
    asked_at: float
    given_at: float
    now: Callable[[], float]
    attempts: list[Attempt] = field(default_factory=list)

    def append(
        self,
        payload: bytes,
        *,
        identified: bool = False,
        set_number: int = 0,
        condition: Place | _Anything | None = ANYTHING,
    ) -> Attempt:
        """A record is about to be appended."""
        attempt = Attempt(self, len(self.attempts), payload, self.now(), identified, set_number, condition)
        self.attempts.append(attempt)
        return attempt


class Seen(NamedTuple):
    """A record as somebody read it."""

    place: Place
    sequence: int
    payload: bytes
    key: bytes
    timestamp_ms: int
    txid: int | None


class Missing(NamedTuple):
    """What a reader was told of records that it does not get."""

    lost: bool
    """Nobody has them; else they were given up."""
    first: int | None
    following: int | None
    """Number of the first record that is there again."""
    detail: str


@dataclass(slots=True)
class StreamReading:
    """What one reader saw, in order."""

    actor: str
    start: Start
    now: Callable[[], float]
    tag: str = ""
    items: list[Seen | Missing] = field(default_factory=list)
    last_at: float = 0.0
    first_batch: bool = True

    def saw(self, batch: list[Record] | Gap) -> None:
        """The next records, or what is said of those that are missing."""
        self.last_at = self.now()
        if isinstance(batch, Gap):
            self.tag = self.tag or (batch.before.tag if batch.before is not None else "")
            lost = batch.reason is GapReason.LOST
            self.items.append(Missing(lost, batch.first_sequence, batch.next_sequence, str(batch)))
            return
        self.tag = self.tag or batch[0].position.tag
        self.items += [_seen(record) for record in batch]

    @property
    def records(self) -> list[Seen]:
        """Without what is missing."""
        return [item for item in self.items if isinstance(item, Seen)]


def _seen(record: Record) -> Seen:
    key = record.key or b""
    return Seen(record.position.place, record.sequence, record.payload, key, record.timestamp_ms, record.txid)


@dataclass(slots=True)
class Advances:
    """How far the readers of one subscription have come, by what they wanted and were told."""

    told: Cursor | None = None
    """The furthest that somebody was told to be stored, or was given to begin with, since it was last set anew."""
    wanted: Cursor | None = None
    """The furthest that anybody has wanted."""
    turn: int = 0
    """Grows with everything that sets the subscription back. What was told to readers of an earlier turn is void."""
    setting: int = 0
    """How many are about to set it back."""
    unsure: bool = False
    """Somebody sets it back, or has tried to: that may happen at any time, and it may begin anywhere."""

    def tell(self, cursor: Cursor, turn: int) -> None:
        """An advance is stored, for a reader that has had the subscription since this turn."""
        if turn == self.turn and (self.told is None or cursor.order > self.told.order):
            self.told = cursor

    def want(self, cursor: Cursor) -> None:
        """An advance is about to be asked for."""
        if self.wanted is None or cursor.order > self.wanted.order:
            self.wanted = cursor

    def begin_anew(self) -> int:
        """Somebody is about to set it back, or to delete it; what to tell ``end_anew``."""
        self.turn += 1
        self.setting += 1
        self.unsure = True
        return self.turn

    def end_anew(self, turn: int, *, done: bool, cursor: Cursor | None) -> None:
        """He is at an end.

        Args:
            done: whether it is known what became of it, and nothing may become of it later.
            cursor: where it begins now; ``None``: where whoever makes it again wants.
        """
        alone = turn == self.turn
        self.setting -= 1
        self.turn += 1
        if done and alone and not self.setting:
            self.told, self.unsure = cursor, False

    def promised(self) -> Promise:
        """What holds for whoever asks for the subscription now."""
        return Promise(None if self.unsure else self.told, self.turn)

    def problem(self, before: Promise, given: Cursor) -> str:
        """What is wrong with where a reader begins; empty if nothing is.

        Args:
            before: what was promised before the reader asked for the subscription.
        """
        told = before.told if before.turn == self.turn and not self.unsure else None
        if told is not None and given.order < told.order:
            return f"begins {given}, and was stored to be {told}"
        if given.after and (self.wanted is None or given.order > self.wanted.order):
            return f"begins {given}, and nobody was beyond {self.wanted}"
        return ""


class Promise(NamedTuple):
    """From where on a subscription begins at least."""

    told: Cursor | None
    turn: int


@dataclass(slots=True)
class Story:
    """All that is known of one stream."""

    tag: str
    writings: list[Writing] = field(default_factory=list)
    subscriptions: dict[str, Advances] = field(default_factory=dict)
    given_up: int = 0
    """Somebody has asked for all before the record of this number to be truncated."""
    deleted: bool = False
    """Somebody has asked for it to be deleted."""
    ended: bool = False
    """Somebody was told that it has ended for ever."""
    final: StreamReading | None = None
    """What was read of it in the end, from its first record to its last."""
    first_sequence: int = 0
    """Number of the first record that is there in the end, as the stream says."""

    def advances(self, name: str) -> Advances:
        """Of the subscription of this name."""
        return self.subscriptions.setdefault(name, Advances())


class StreamHistory:
    """Everything that clients did with streams.

    Args:
        now: the simulated second.
        retention_s: after so long a record may be given up; ``None``: by nobody but who truncates.
        dedup_records: within so many records an id is taken once.
        clocks_agree: whether wall clocks run alike, so that what is kept for some time is kept that long.
        bookies_lie: whether bookies give out copies now and then that are not what they hold. What all who have it
            give out like that is taken for lost, as long as they do.
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
        """Somebody has asked for some stream to be deleted, perhaps before anybody wrote or read it."""
        self.stories: dict[str, Story] = {}
        self.readings: list[StreamReading] = []
        self._writings = 0

    def story(self, tag: str) -> Story:
        """Of the stream of this tag."""
        return self.stories.setdefault(tag, Story(tag))

    def writing(self, actor: str, tag: str, asked_at: float) -> Writing:
        """Somebody, who has asked for it then, is the writer of a stream now."""
        self._writings += 1
        writing = Writing(actor, self._writings, asked_at, self.now(), self.now)
        self.story(tag).writings.append(writing)
        return writing

    def reading(self, actor: str, start: Start) -> StreamReading:
        """Somebody begins to read; of which stream shows when something comes."""
        reading = StreamReading(actor, start, self.now)
        self.readings.append(reading)
        return reading

    def seen(self, tag: str) -> list[Seen]:
        """Every record of a stream that anybody has seen so far."""
        return [record for reading in self.readings if reading.tag == tag for record in reading.records]

    def count_confirmed(self) -> int:
        """How many attempts were told to have succeeded."""
        attempts = [each for story in self.stories.values() for writing in story.writings for each in writing.attempts]
        return sum(attempt.outcome is Outcome.OK for attempt in attempts)

"""What clients did and what they were told, and whether a correct cluster can have told them that.

Every operation is written down when it begins and again when its outcome is known: ``ok``,
``failed`` (certainly not done), or neither, and then it counts as *unknown*: it may or may not
have taken effect. What a reading handle shows is written down in a ``Reading``. ``check`` then
goes through all of it once and returns what cannot be::

    history = History()
    operation = history.append("writer-1", ledger_id, payload)
    ...
    operation.ok(entry_id=7)
    reading = history.reading("reader-1", ledger_id)
    reading.saw(0, payload)
    reading.done(End(7, 640))
    for violation in check(history): ...

The payloads of one ledger must all differ, or no check could tell an entry from another. The
module is pure: a simulation and a test with real processes use it alike. Numbers such as I1
are those of docs/simulation.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

NO_ENTRY: Final = -1


class Kind(Enum):
    """What a client asked for."""

    CREATE = "create"
    APPEND = "append"
    CLOSE = "close"
    RECOVER = "recover"


class Outcome(Enum):
    """What the client knows of it."""

    UNKNOWN = "unknown"
    OK = "ok"
    FAILED = "failed"
    """Certainly not done."""


class End(NamedTuple):
    """Where a ledger ends, as a close, a recovery or a reader reports it."""

    last_entry_id: int
    length: int
    """Payload bytes of the whole ledger."""


class Violation(NamedTuple):
    """Something that a correct cluster cannot have told its clients."""

    invariant: str
    ledger_id: int
    detail: str

    def __str__(self) -> str:
        return f"{self.invariant}: ledger {self.ledger_id}: {self.detail}"


@dataclass(slots=True)
class Operation:
    """One call of one client."""

    actor: str
    kind: Kind
    ledger_id: int
    payload: bytes = b""
    outcome: Outcome = Outcome.UNKNOWN
    entry_id: int = NO_ENTRY
    """The id that an append was given; known when it is ok."""
    end: End | None = None
    """What a close or a recovery reported."""
    confirmed: list[Operation] | None = None
    """Where successful appends of the ledger are put, in the order in which their callers heard of it."""

    def ok(self, *, entry_id: int = NO_ENTRY, end: End | None = None) -> None:
        """It succeeded: an append with its entry id, a close or a recovery with the end of the ledger."""
        self.outcome, self.entry_id, self.end = Outcome.OK, entry_id, end
        if self.confirmed is not None:
            self.confirmed.append(self)

    def failed(self) -> None:
        """It was certainly not done."""
        self.outcome = Outcome.FAILED


@dataclass(slots=True)
class Reading:
    """What one reading handle showed, in order.

    A handle may be asked for several ranges; ``begin`` starts the next one.
    """

    actor: str
    ledger_id: int
    ranges: list[list[tuple[int, bytes]]] = field(default_factory=lambda: [[]])
    lacs: list[int] = field(default_factory=list)
    end: End | None = None
    """The ledger was closed, and this handle has read everything from entry 0 to the end."""

    def begin(self) -> None:
        """Another range follows."""
        self.ranges.append([])

    def saw(self, entry_id: int, payload: bytes) -> None:
        """The next entry of the present range."""
        self.ranges[-1].append((entry_id, payload))

    def lac(self, entry_id: int) -> None:
        """The last add confirmed, as the handle shows it now."""
        if not self.lacs or self.lacs[-1] != entry_id:
            self.lacs.append(entry_id)

    def done(self, end: End) -> None:
        """The ledger is closed at ``end``, and the last range went from entry 0 to it."""
        self.end = end


class History:
    """Everything that clients did, in the order in which it began."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.readings: list[Reading] = []
        self.confirmed: dict[int, list[Operation]] = {}
        """Successful appends by ledger, in the order in which their callers heard of it."""

    def create(self, actor: str) -> Operation:
        """A ledger is about to be created; its id is not known yet."""
        return self._begin(Operation(actor, Kind.CREATE, -1))

    def append(self, actor: str, ledger_id: int, payload: bytes) -> Operation:
        """An entry is about to be appended."""
        confirmed = self.confirmed.setdefault(ledger_id, [])
        return self._begin(Operation(actor, Kind.APPEND, ledger_id, payload, confirmed=confirmed))

    def close(self, actor: str, ledger_id: int) -> Operation:
        """A writer is about to close its ledger."""
        return self._begin(Operation(actor, Kind.CLOSE, ledger_id))

    def recover(self, actor: str, ledger_id: int) -> Operation:
        """A ledger is about to be recovered."""
        return self._begin(Operation(actor, Kind.RECOVER, ledger_id))

    def reading(self, actor: str, ledger_id: int) -> Reading:
        """A ledger was opened for reading."""
        reading = Reading(actor, ledger_id)
        self.readings.append(reading)
        return reading

    def highest_confirmed(self, ledger_id: int) -> int:
        """The highest entry id that a writer was told is confirmed, -1 for none."""
        return max((append.entry_id for append in self.confirmed.get(ledger_id, ())), default=NO_ENTRY)

    def count_confirmed(self, actors: str = "") -> int:
        """How many entries were confirmed to clients whose names begin so."""
        return sum(append.actor.startswith(actors) for appends in self.confirmed.values() for append in appends)

    def ledger_ids(self) -> list[int]:
        """Every ledger that anything was done to, ascending."""
        known = {operation.ledger_id for operation in self.operations if operation.ledger_id >= 0}
        return sorted(known | {reading.ledger_id for reading in self.readings})

    def _begin(self, operation: Operation) -> Operation:
        self.operations.append(operation)
        return operation


def check(history: History) -> list[Violation]:
    """Everything that is wrong with ``history``; takes time in proportion to its length."""
    ledgers = {ledger_id: _Ledger(ledger_id) for ledger_id in history.ledger_ids()}
    for operation in history.operations:
        if operation.ledger_id in ledgers:
            ledgers[operation.ledger_id].take(operation)
    for ledger_id, appends in history.confirmed.items():
        ledgers[ledger_id].confirmed = appends
    for reading in history.readings:
        ledgers[reading.ledger_id].readings.append(reading)
    return [violation for ledger in ledgers.values() for violation in ledger.violations()]


class _Ledger:
    """All that is known of one ledger."""

    def __init__(self, ledger_id: int) -> None:
        self._id = ledger_id
        self._appends: dict[bytes, Operation] = {}
        self._ends: list[tuple[str, End]] = []
        self.confirmed: list[Operation] = []
        self.readings: list[Reading] = []

    def take(self, operation: Operation) -> None:
        """One operation on this ledger."""
        if operation.kind is Kind.APPEND:
            self._appends[operation.payload] = operation
        elif operation.end is not None:
            self._ends.append((f"{operation.kind.value} of {operation.actor}", operation.end))

    def violations(self) -> Iterator[Violation]:
        """Everything that is wrong with it."""
        for reading in self.readings:
            if reading.end is not None:
                self._ends.append((f"read of {reading.actor}", reading.end))
        yield from self._wrong_confirmations()
        yield from self._wrong_ends()
        seen: dict[int, tuple[bytes, str]] = {}
        for reading in self.readings:
            yield from self._wrong_reading(reading)
            for entries in reading.ranges:
                yield from self._wrong_range(reading.actor, entries, seen)

    def _violation(self, invariant: str, detail: str) -> Violation:
        return Violation(invariant, self._id, detail)

    def _wrong_confirmations(self) -> Iterator[Violation]:
        """Ids follow the order of the appends; callers hear in the order of ids; none is given twice, or left out.

        A caller who dies, or gives up, hears no more; what it was told until then begins with entry 0 all the same.
        """
        before = NO_ENTRY
        for append in self.confirmed:
            if append.entry_id == before:
                yield self._violation("I8", f"entry {before} was given to two appends")
            elif append.entry_id < before:
                yield self._violation("I7", f"entry {append.entry_id} was confirmed after entry {before}")
            before = max(before, append.entry_id)
        before = NO_ENTRY
        for append in self._appends.values():
            if append.outcome is Outcome.OK:
                if append.entry_id <= before:
                    yield self._violation("I7", f"entry {append.entry_id} was appended after entry {before}")
                before = append.entry_id
        ids = sorted({append.entry_id for append in self.confirmed})
        for due, entry_id in enumerate(ids):
            if entry_id != due:
                yield self._violation("I7", f"entry {entry_id} was confirmed, entry {due} never was")
                return

    def _wrong_ends(self) -> Iterator[Violation]:
        """There is one end, and nothing confirmed lies above it."""
        if not self._ends:
            return
        told_by, end = self._ends[0]
        for other, found in self._ends[1:]:
            if found != end:
                yield self._violation("I4", f"{told_by} says that it ends at {end}, {other} at {found}")
        lowest = min(found.last_entry_id for _, found in self._ends)
        beyond = [append.entry_id for append in self.confirmed if append.entry_id > lowest]
        if beyond:
            yield self._violation("I2", f"it ends at entry {lowest}, but entry {max(beyond)} was confirmed")

    def _wrong_reading(self, reading: Reading) -> Iterator[Violation]:
        for lower, higher in zip(reading.lacs[1:], reading.lacs, strict=False):
            if lower < higher:
                yield self._violation("I6", f"{reading.actor} saw the last add confirmed fall from {higher} to {lower}")
        highest = len(self._appends) - 1
        if reading.lacs and max(reading.lacs) > highest:
            detail = f"{reading.actor} saw {max(reading.lacs)} confirmed, but {highest + 1} entries were ever appended"
            yield self._violation("I6", detail)
        if reading.end is None:
            return
        entries = dict(reading.ranges[-1])
        if len(entries) != reading.end.last_entry_id + 1:
            detail = f"{reading.actor} read {len(entries)} entries of a ledger that ends at {reading.end.last_entry_id}"
            yield self._violation("I1", detail)
        elif sum(map(len, entries.values())) != reading.end.length:
            yield self._violation("I4", f"{reading.actor} did not read the {reading.end.length} bytes it should hold")
        for append in self.confirmed:
            found = entries.get(append.entry_id)
            if found != append.payload:
                what = "is missing" if found is None else f"reads {found[:40]!r}"
                yield self._violation("I1", f"confirmed entry {append.entry_id} {what}, says {reading.actor}")

    def _wrong_range(
        self, actor: str, entries: list[tuple[int, bytes]], seen: dict[int, tuple[bytes, str]]
    ) -> Iterator[Violation]:
        """Ids follow each other, bytes are what was appended and what others read, and no entry comes twice."""
        expected = entries[0][0] if entries else 0
        payloads: dict[bytes, int] = {}
        for entry_id, payload in entries:
            if entry_id != expected:
                yield self._violation("I9", f"{actor} read entry {entry_id} where {expected} was due")
            expected = entry_id + 1
            append = self._appends.get(payload)
            if append is None:
                yield self._violation("I8", f"{actor} read entry {entry_id} = {payload[:40]!r}, which nobody appended")
            elif append.outcome is Outcome.FAILED:
                yield self._violation("I8", f"{actor} read entry {entry_id}, whose append was refused")
            if payloads.setdefault(payload, entry_id) != entry_id:
                yield self._violation("I9", f"{actor} read one entry as {payloads[payload]} and as {entry_id}")
            other, other_actor = seen.setdefault(entry_id, (payload, actor))
            if other != payload:
                yield self._violation("I9", f"{actor} and {other_actor} read entry {entry_id} differently")

"""History of client operations and their results, and a check that a correct cluster can have produced it.

Each operation is recorded when it begins (``operation = history.append("writer-1", ledger_id, payload)``) and when its
outcome is known: ``operation.ok(entry_id=7)``, ``failed`` (certainly not done), or neither, which counts as *unknown*:
it may or may not have taken effect. A ``Reading`` records the entries that a reader returned (``saw``) and the end that
it reported (``done``). ``check`` goes through the history once and returns all violations.

The payloads of one ledger must all differ, so that entries can be told apart. The module is pure; simulation and chaos
runs use it. Invariants such as I1 are listed in docs/project/simulation.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

NO_ENTRY: Final = -1


class OperationKind(Enum):
    """Kind of an operation."""

    CREATE = "create"
    APPEND = "append"
    CLOSE = "close"
    RECOVER = "recover"


class OperationOutcome(Enum):
    """OperationOutcome of an operation, as the client knows it."""

    UNKNOWN = "unknown"
    OK = "ok"
    FAILED = "failed"
    """Certainly not done."""


class LedgerEnd(NamedTuple):
    """End of a ledger as reported by a close, a recovery or a reader."""

    last_entry_id: int
    length: int
    """Payload bytes of the ledger."""


class Violation(NamedTuple):
    """A result that a correct cluster cannot have given to its clients."""

    invariant: str
    ledger_id: int
    detail: str

    def __str__(self) -> str:
        return f"{self.invariant}: ledger {self.ledger_id}: {self.detail}"


@dataclass(slots=True)
class Operation:
    """One operation of one client."""

    actor: str
    kind: OperationKind
    ledger_id: int
    payload: bytes = b""
    outcome: OperationOutcome = OperationOutcome.UNKNOWN
    entry_id: int = NO_ENTRY
    """Entry id of a successful append."""
    end: LedgerEnd | None = None
    """End that a close or a recovery reported."""
    confirmed: list[Operation] | None = None
    """List of successful appends of the ledger, in the order of their confirmations; ``ok`` adds to it."""

    def ok(self, *, entry_id: int = NO_ENTRY, end: LedgerEnd | None = None) -> None:
        """Record success: of an append with its entry id, of a close or recovery with the end of the ledger."""
        self.outcome, self.entry_id, self.end = OperationOutcome.OK, entry_id, end
        if self.confirmed is not None:
            self.confirmed.append(self)

    def failed(self) -> None:
        """Record that it was certainly not done."""
        self.outcome = OperationOutcome.FAILED


@dataclass(slots=True)
class Reading:
    """The results of one reader, in order.

    A reader may read several ranges; ``begin`` starts the next one.
    """

    actor: str
    ledger_id: int
    ranges: list[list[tuple[int, bytes]]] = field(default_factory=lambda: [[]])
    lacs: list[int] = field(default_factory=list)
    end: LedgerEnd | None = None
    """Set if the ledger was closed and this reader read it from entry 0 to the end."""

    def begin(self) -> None:
        """Start the next range."""
        self.ranges.append([])

    def saw(self, entry_id: int, payload: bytes) -> None:
        """Record the next entry of the present range."""
        self.ranges[-1].append((entry_id, payload))

    def lac(self, entry_id: int) -> None:
        """Record the last add confirmed that the reader shows now."""
        if not self.lacs or self.lacs[-1] != entry_id:
            self.lacs.append(entry_id)

    def done(self, end: LedgerEnd) -> None:
        """Record that the ledger is closed at ``end`` and the last range covered all of it."""
        self.end = end


class History:
    """All operations of clients, in the order in which they began."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.readings: list[Reading] = []
        self.confirmed: dict[int, list[Operation]] = {}
        """Successful appends by ledger, in the order of their confirmations."""

    def create(self, actor: str) -> Operation:
        """Record that a create begins; the ledger id is not known yet."""
        return self._begin(Operation(actor, OperationKind.CREATE, -1))

    def append(self, actor: str, ledger_id: int, payload: bytes) -> Operation:
        """Record that an append begins."""
        confirmed = self.confirmed.setdefault(ledger_id, [])
        return self._begin(Operation(actor, OperationKind.APPEND, ledger_id, payload, confirmed=confirmed))

    def close(self, actor: str, ledger_id: int) -> Operation:
        """Record that a close begins."""
        return self._begin(Operation(actor, OperationKind.CLOSE, ledger_id))

    def recover(self, actor: str, ledger_id: int) -> Operation:
        """Record that a recovery begins."""
        return self._begin(Operation(actor, OperationKind.RECOVER, ledger_id))

    def reading(self, actor: str, ledger_id: int) -> Reading:
        """Record that a reader was opened."""
        reading = Reading(actor, ledger_id)
        self.readings.append(reading)
        return reading

    def highest_confirmed(self, ledger_id: int) -> int:
        """The highest entry id that was confirmed to a writer, -1 for none."""
        return max((append.entry_id for append in self.confirmed.get(ledger_id, ())), default=NO_ENTRY)

    def count_confirmed(self, actors: str = "") -> int:
        """Number of entries confirmed to clients whose names begin with ``actors``."""
        return sum(append.actor.startswith(actors) for appends in self.confirmed.values() for append in appends)

    def ledger_ids(self) -> list[int]:
        """Ids of all ledgers with an operation or a reading, ascending."""
        known = {operation.ledger_id for operation in self.operations if operation.ledger_id >= 0}
        return sorted(known | {reading.ledger_id for reading in self.readings})

    def _begin(self, operation: Operation) -> Operation:
        self.operations.append(operation)
        return operation


def check(history: History) -> list[Violation]:
    """All violations in ``history``; the time is proportional to its length."""
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
    """Checks the history of one ledger."""

    def __init__(self, ledger_id: int) -> None:
        self._id = ledger_id
        self._appends: dict[bytes, Operation] = {}
        self._ends: list[tuple[str, LedgerEnd]] = []
        self.confirmed: list[Operation] = []
        self.readings: list[Reading] = []

    def take(self, operation: Operation) -> None:
        """Add one operation on this ledger."""
        if operation.kind is OperationKind.APPEND:
            self._appends[operation.payload] = operation
        elif operation.end is not None:
            self._ends.append((f"{operation.kind.value} of {operation.actor}", operation.end))

    def violations(self) -> Iterator[Violation]:
        """All violations of this ledger."""
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
        """Entry ids ascend in append order and in confirmation order, without duplicates and gaps (I7, I8).

        A client that dies gets no more confirmations, but those that it got start with entry 0.
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
            if append.outcome is OperationOutcome.OK:
                if append.entry_id <= before:
                    yield self._violation("I7", f"entry {append.entry_id} was appended after entry {before}")
                before = append.entry_id
        ids = sorted({append.entry_id for append in self.confirmed})
        for due, entry_id in enumerate(ids):
            if entry_id != due:
                yield self._violation("I7", f"entry {entry_id} was confirmed, entry {due} never was")
                return

    def _wrong_ends(self) -> Iterator[Violation]:
        """All reports agree on one end, and no confirmed entry lies above it (I2, I4)."""
        if not self._ends:
            return
        writer, end = self._ends[0]
        for other, found in self._ends[1:]:
            if found != end:
                yield self._violation("I4", f"{writer} says that it ends at {end}, {other} at {found}")
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
        """Entry ids are consecutive and unique; payloads are those that were appended and that other readers got."""
        expected = entries[0][0] if entries else 0
        payloads: dict[bytes, int] = {}
        for entry_id, payload in entries:
            if entry_id != expected:
                yield self._violation("I9", f"{actor} read entry {entry_id} where {expected} was due")
            expected = entry_id + 1
            append = self._appends.get(payload)
            if append is None:
                yield self._violation("I8", f"{actor} read entry {entry_id}, never appended: {payload[:40]!r}")
            elif append.outcome is OperationOutcome.FAILED:
                yield self._violation("I8", f"{actor} read entry {entry_id}, whose append was refused")
            if payloads.setdefault(payload, entry_id) != entry_id:
                yield self._violation("I9", f"{actor} read one entry as {payloads[payload]} and as {entry_id}")
            other, other_actor = seen.setdefault(entry_id, (payload, actor))
            if other != payload:
                yield self._violation("I9", f"{actor} and {other_actor} read entry {entry_id} differently")

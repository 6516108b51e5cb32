"""Checks a stream history against invariants S1 to S8; pure functions, no I/O.

First all records that readers saw are merged by sequence number and must agree. Then every append attempt is compared
with the merged stream. Only records that were truncated on purpose may be missing at the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from tallybook.stream.position import RecordAddress
from tallybook.stream.start import StartKind

from ..workload.history import OperationOutcome
from ..workload.stream_history import (
    ANYTHING,
    AppendAttempt,
    ReadGap,
    ReadRecord,
    StreamFacts,
    StreamHistory,
    StreamReading,
    WriterSession,
)

SEARCHED: Final = (StartKind.SEQUENCE, StartKind.TIMESTAMP, StartKind.TXID)
"""Start kinds that search for the first matching record."""


class StreamViolation(NamedTuple):
    """A result that correct streams cannot have given to their clients."""

    invariant: str
    detail: str


def check_streams(history: StreamHistory) -> list[StreamViolation]:
    """All violations in ``history``."""
    readings: dict[str, list[StreamReading]] = {tag: [] for tag in history.facts_by_tag}
    for reading in history.readings:
        if reading.items:
            readings.setdefault(reading.tag, []).append(reading)
    found: list[StreamViolation] = []
    for tag, mine in readings.items():
        checked = _Checked(history, history.facts_of(tag), mine)
        found += [StreamViolation(each.invariant, f"stream {tag}: {each.detail}") for each in checked.violations()]
    return found


class _Checked:
    """Checks one stream."""

    def __init__(self, history: StreamHistory, facts: StreamFacts, readings: list[StreamReading]) -> None:
        self._history = history
        self._facts = facts
        self._readings = readings
        self._attempts = {attempt.key: attempt for session in facts.writer_sessions for attempt in session.attempts}
        self._by_sequence: dict[int, ReadRecord] = {}
        self._records: list[ReadRecord] = []
        """All records that any reader saw, in order."""

    def violations(self) -> Iterator[StreamViolation]:
        """All violations of this stream."""
        for reading in self._readings:
            yield from self._wrong_union(reading)
        self._records = [self._by_sequence[sequence] for sequence in sorted(self._by_sequence)]
        for reading in self._readings:
            yield from self._wrong_order(reading)
            yield from self._wrong_start(reading)
        yield from self._wrong_places()
        yield from self._strangers()
        yield from self._lost()
        yield from self._repeated()
        for session in self._facts.writer_sessions:
            yield from self._wrong_session(session)
            yield from self._torn_sets(session)
        yield from self._out_of_producers_order()
        yield from self._several_owners()
        yield from self._broken_conditions()

    # -- readers -----------------------------------------------------------------------------------------------------

    def _wrong_union(self, reading: StreamReading) -> Iterator[StreamViolation]:
        """All readers see the same record under one sequence number."""
        for record in reading.records:
            known = self._by_sequence.setdefault(record.sequence, record)
            if known != record:
                yield _wrong("S7", f"record {record.sequence} is {known}, and {record} for {reading.actor}")
                return

    def _wrong_order(self, reading: StreamReading) -> Iterator[StreamViolation]:
        """Sequence numbers are consecutive, except at gaps that were reported and truncated on purpose."""
        due: int | None = None
        place: RecordAddress = (0, 0, 0)
        for item in reading.items:
            if isinstance(item, ReadGap):
                if item.lost and not self._history.bookies_lie:
                    yield _wrong("S1", f"{reading.actor} is told that {item.detail}")
                elif not item.lost and item.following is not None and not self._may_be_gone(item.following, reading):
                    yield _wrong("S7", f"{reading.actor} is told that {item.detail}, and it was not truncated")
                if due is not None and item.first is not None and item.first != due:
                    yield _wrong("S7", f"{reading.actor} misses {item.first}, where {due} was due")
                # A reader that searches for its first record may skip records behind a gap.
                due = None if due is None and reading.start.kind in SEARCHED else item.following
                continue
            if due is not None and item.sequence != due:
                yield _wrong("S7", f"{reading.actor} read record {item.sequence} where {due} was due")
                return
            if item.place <= place:
                yield _wrong("S7", f"{reading.actor} read {item.place} behind {place}")
                return
            due, place = item.sequence + 1, item.place

    def _may_be_gone(self, sequence: int, reading: StreamReading) -> bool:
        """Whether all records before ``sequence`` may have been truncated or expired by the time of the reading."""
        if sequence <= self._facts.truncated_before:
            return True
        retention_s = self._history.retention_s
        if retention_s is None:
            return False
        if not self._history.clocks_agree:
            return True
        last = max((each.sequence for each in self._records if each.sequence < sequence), default=None)
        attempt = None if last is None else self._attempts.get(self._by_sequence[last].key)
        return attempt is None or attempt.began_at + retention_s <= reading.last_at

    def _wrong_start(self, reading: StreamReading) -> Iterator[StreamViolation]:
        """A reader starts where it was asked to, or behind the records that were truncated by then."""
        first = reading.items[0]
        if isinstance(first, ReadGap) or self._may_be_gone(first.sequence, reading):
            return
        due = self._first_of(reading, first)
        if due is not None and first.sequence != due:
            yield _wrong("S7", f"{reading.actor} begins with record {first.sequence}, {reading.start} is {due}")

    def _first_of(self, reading: StreamReading, first: ReadRecord) -> int | None:
        """Sequence number at which a reader must start; ``None`` if it cannot be determined."""
        start = reading.start
        match start.kind:
            case StartKind.EARLIEST:
                return self._records[0].sequence if self._records[0].sequence < first.sequence else 0
            case StartKind.SEQUENCE:
                return start.number
            case StartKind.AT | StartKind.AFTER if start.position is not None:
                place, after = start.position.place, start.kind is StartKind.AFTER
                behind = [each for each in self._records if each.place > place or (each.place == place and not after)]
                known = any(each.place <= place for each in self._records)
                return behind[0].sequence if behind and known else None
            case StartKind.TIMESTAMP:
                kept = [
                    each for each in self._records if self._facts.truncated_before <= each.sequence <= first.sequence
                ]
                fitting = [each.sequence for each in kept if each.timestamp_ms >= start.number]
                # Timestamps need not ascend: a matching record may have expired although a later one between has not.
                there = (each for each in fitting if each == first.sequence or not self._may_be_gone(each + 1, reading))
                return next(there, -1)
            case StartKind.LATEST | StartKind.AT | StartKind.AFTER | StartKind.TXID:
                return None

    # -- the stream --------------------------------------------------------------------------------------------------

    def _wrong_places(self) -> Iterator[StreamViolation]:
        """Positions and transaction ids ascend with the sequence numbers."""
        txid: int | None = None
        for one, other in pairwise(self._records):
            if other.place <= one.place:
                yield _wrong("S7", f"record {one.sequence} is at {one.place}, {other.sequence} at {other.place}")
        for record in self._records:
            if record.txid is not None:
                if txid is not None and record.txid < txid:
                    yield _wrong("S3", f"record {record.sequence} has transaction id {record.txid}, behind {txid}")
                txid = record.txid

    def _strangers(self) -> Iterator[StreamViolation]:
        """Every record that was read was appended, and its append was not reported as failed."""
        for record in self._records:
            attempt = self._attempts.get(record.key)
            if attempt is None or attempt.payload != record.payload:
                yield _wrong("S8", f"record {record.sequence} = {record.payload[:40]!r} was never appended")
            elif attempt.outcome is OperationOutcome.FAILED:
                yield _wrong("S8", f"record {record.sequence} = {record.payload[:40]!r} was said not to be appended")

    def _lost(self) -> Iterator[StreamViolation]:
        """Every confirmed record is at the position that its append returned."""
        at = {record.place: record for record in self._records}
        for attempt in self._attempts.values():
            if attempt.outcome is not OperationOutcome.OK or attempt.place is None:
                continue
            found = at.get(attempt.place)
            if found is not None and found.payload != attempt.payload:
                yield _wrong("S1", f"{attempt.payload[:40]!r}, confirmed at {attempt.place}, reads {found}")
            elif found is None and self._is_due(attempt.place):
                yield _wrong("S1", f"{attempt.payload[:40]!r}, confirmed at {attempt.place}, is not there")

    def _is_due(self, place: RecordAddress) -> bool:
        """Whether the records that were read before and after ``place`` prove that there must be one."""
        final, retention_s = self._facts.final, self._history.retention_s
        if final is not None:
            if final.records and place >= final.records[0].place:
                return True
            if not self._facts.truncated_before and retention_s is None:
                return True
        return any(
            one.place < place < other.place and other.sequence == one.sequence + 1
            for one, other in pairwise(self._records)
        )

    def _repeated(self) -> Iterator[StreamViolation]:
        """One attempt makes one record, and so do all attempts with one dedup id within the dedup window."""
        last: dict[bytes, int] = {}
        keys: dict[bytes, int] = {}
        for record in self._records:
            if keys.setdefault(record.key, record.sequence) != record.sequence:
                yield _wrong("S2", f"{record.payload[:40]!r} is there as {keys[record.key]} and as {record.sequence}")
            before = last.get(record.payload)
            last[record.payload] = record.sequence
            if before is None or record.sequence - before > self._history.dedup_records or self._history.bookies_lie:
                continue
            if self._facts.final is None and self._history.retention_s is not None:
                continue
            # A writer that takes over cannot learn the ids of records that are gone.
            if before >= max(self._facts.first_sequence, self._facts.truncated_before):
                yield _wrong("S2", f"{record.payload[:40]!r} is there as {before} and as {record.sequence}")

    # -- writers -----------------------------------------------------------------------------------------------------

    def _wrong_session(self, session: WriterSession) -> Iterator[StreamViolation]:
        """Records of one writer session are in append order and without holes."""
        there: list[tuple[int, int]] = []
        for record in self._records:
            attempt = self._attempts.get(record.key)
            if attempt is not None and attempt.session is session:
                there.append((attempt.number, record.sequence))
        for (one, _), (other, sequence) in pairwise(there):
            if other < one:
                yield _wrong("S3", f"append {other} of {session.actor} is record {sequence}, behind append {one}")
                return
        place: RecordAddress = (0, 0, 0)
        for attempt in session.attempts:
            if attempt.outcome is not OperationOutcome.OK or attempt.place is None or attempt.identified:
                continue
            if attempt.place <= place:
                yield _wrong("S3", f"{attempt.payload[:40]!r} was confirmed at {attempt.place}, behind {place}")
            place = attempt.place
        yield from self._holes(session, dict(there))

    def _holes(self, session: WriterSession, there: dict[int, int]) -> Iterator[StreamViolation]:
        payloads = {record.payload for record in self._records}
        for number, following in pairwise(sorted(there)):
            for attempt in session.attempts[number + 1 : following]:
                if attempt.sent and attempt.outcome is not OperationOutcome.FAILED and attempt.payload not in payloads:
                    span = range(there[number] + 1, there[following])
                    if all(sequence in self._by_sequence for sequence in span) and not self._elsewhere(attempt):
                        yield _wrong("S3", f"append {attempt.number} of {session.actor} is missing among the others")
                        return

    def _elsewhere(self, attempt: AppendAttempt) -> bool:
        """Whether a record with the same dedup id may be in a part that was not read, or was truncated."""
        return attempt.identified and self._records[-1].sequence != len(self._records) - 1

    def _out_of_producers_order(self) -> Iterator[StreamViolation]:
        """Records that a producer retries until they are confirmed keep the producer's order."""
        last: dict[bytes, int] = {}
        seen: set[bytes] = set()
        if not self._records or self._records[-1].sequence != len(self._records) - 1:
            return  # the first copy of a repeated record may be in the part that was not read
        for record in self._records:
            attempt = self._attempts.get(record.key)
            if attempt is None or not attempt.identified or record.payload in seen:
                continue
            seen.add(record.payload)
            producer, number = record.payload.split(b"/")[:2]
            if int(number) < last.get(producer, -1):
                yield _wrong("S3", f"record {record.sequence} = {record.payload[:40]!r} comes behind {last[producer]}")
            last[producer] = int(number)

    def _several_owners(self) -> Iterator[StreamViolation]:
        """Records of one writer session are contiguous, and sessions follow in the order in which they began."""
        owners: list[WriterSession] = []
        for record in self._records:
            attempt = self._attempts.get(record.key)
            if attempt is None or (owners and owners[-1] is attempt.session):
                continue
            session = attempt.session
            if any(known is session for known in owners):
                behind = owners[-1].actor
                yield _wrong("S4", f"{session.actor} has added record {record.sequence} behind what {behind} has added")
                return
            owners.append(session)
        for at, later in enumerate(owners):
            for earlier in owners[:at]:
                if later.given_at < earlier.asked_at:
                    yield _wrong("S4", f"{later.actor} has added behind {earlier.actor}, which came after it")
                    return

    def _torn_sets(self, session: WriterSession) -> Iterator[StreamViolation]:
        """A set is either complete, in one entry, or absent."""
        sets: dict[int, list[AppendAttempt]] = {}
        for attempt in session.attempts:
            if attempt.set_number:
                sets.setdefault(attempt.set_number, []).append(attempt)
        by_key = {record.key: record for record in self._records} if sets else {}
        for attempts in sets.values():
            there = [by_key[attempt.key] for attempt in attempts if attempt.key in by_key]
            if not there:
                continue
            first = there[0].sequence
            # The beginning of a set may have been truncated, or not been read.
            cut_off = first == self._records[0].sequence or first - 1 not in self._by_sequence
            cut_off = cut_off or there[-1].sequence + 1 not in self._by_sequence
            whole = len(there) == len(attempts) or (cut_off and self._facts.final is None) or first <= self._gone
            together = len({record.place[:2] for record in there}) == 1
            if not whole or not together:
                detail = f"{len(there)} of {len(attempts)} records of a set of {session.actor}, at {there[0].place}"
                yield _wrong("S5", f"{detail} to {there[-1].place}")

    @property
    def _gone(self) -> int:
        """Sequence number of the first record that certainly still exists."""
        return max(self._facts.first_sequence, self._facts.truncated_before)

    def _broken_conditions(self) -> Iterator[StreamViolation]:
        """A conditional append directly follows the record that its condition named."""
        at = {record.key: record for record in self._records}
        for attempt in self._attempts.values():
            record = at.get(attempt.key)
            if record is None or attempt.condition is ANYTHING:
                continue
            before = self._by_sequence.get(record.sequence - 1)
            first = attempt.condition is None and record.sequence == 0
            unknown = before is None and record.sequence > 0
            if not (first or unknown or (before is not None and before.place == attempt.condition)):
                wanted = f"{record.place} was to follow {attempt.condition}"
                yield _wrong("S6", f"{wanted}, and follows {before.place if before is not None else 'nothing'}")


def _wrong(invariant: str, detail: str) -> StreamViolation:
    return StreamViolation(invariant, detail)

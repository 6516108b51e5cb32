"""Producers: clients that write streams and take them over from one another.

A producer has a *record source* for each stream, which outlives its process. It keeps records with a dedup id that are
not confirmed yet, or were confirmed lately; the next process in the slot appends them again, in the same order. Other
records are tried once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tallybook.core.errors import InvariantViolation, Outcome, PositionMismatch, TallybookError
from tallybook.stream import Outgoing, PendingRecord, Position, StreamWriter
from tallybook.stream.position import RecordAddress

from ..configuration.run_configuration import pick
from .stream_history import ANYTHING, AppendAttempt, StreamFacts, WriterSession

if TYPE_CHECKING:
    from .ledgers import ClientProcess
    from .streams import Streaming

KINDS: Final = ("one by one", "one by one", "one by one", "many", "set", "condition", "falling", "given up")
END_SHARE: Final = 0.03
"""Share of writer sessions that end the stream."""
CANCELLED_SECONDS: Final = 0.05
FORGOTTEN: Final = 4
"""Number of confirmed records that a new session appends once more."""


@dataclass
class RecordSource:
    """Records of one producer for one stream."""

    name: str
    left: deque[bytes] = field(default_factory=deque)
    """Records with a dedup id that are not confirmed, or were confirmed lately."""
    confirmed: set[bytes] = field(default_factory=set)
    """The confirmed ones among ``left``."""
    made: int = 0

    def confirm(self, payload: bytes) -> None:
        """Record that one is confirmed. The last ones stay in ``left``, so that they are appended again."""
        self.confirmed.add(payload)
        while len(self.confirmed) > FORGOTTEN and self.left and self.left[0] in self.confirmed:
            self.confirmed.discard(self.left.popleft())

    def next(self, size: int) -> bytes:
        """Create the next record."""
        self.made += 1
        return b"%s/%d/" % (self.name.encode(), self.made) + b"." * size


@dataclass
class _Sent:
    """An append in flight."""

    attempt: AppendAttempt
    pending: PendingRecord


class StreamProducer:
    """One writer session of one producer."""

    def __init__(
        self,
        streaming: Streaming,
        client: ClientProcess,
        writer: StreamWriter,
        session: WriterSession,
        facts: StreamFacts,
    ) -> None:
        self._streaming = streaming
        self._oracle = streaming.oracle
        self._client = client
        self._rng = client.rng
        self._writer = writer
        self._session = session
        self._facts = facts
        self._source = streaming.source(client.name.partition(".")[0], facts.tag)
        self._sent: list[_Sent] = []
        """Appends whose outcome was not read yet."""
        self._again = deque(self._source.left)
        """Records of the source that are to be appended once more."""
        self._sets = 0

    async def work(self) -> None:
        """Append for a while; then close the writer, end the stream, or abandon the writer.

        Raises:
            TallybookError: the writer has failed.
        """
        config, rng = self._streaming.config, self._rng
        for _ in range(rng.randint(2, 30)):
            await self._burst(pick(rng, KINDS) if not self._again else "one by one")
            if rng.random() < 0.5 or len(self._sent) > 50:
                await self._settle()
            if rng.random() < 0.1:
                await (self._writer.commit() if rng.random() < 0.5 else self._writer.flush())
            if self._streaming.workload.over or self._writer.ended:
                break
            await self._streaming.clock.sleep(2 * config.think_seconds * rng.random())
        await self._settle()
        draw = rng.random()
        if draw < END_SHARE:
            await self._writer.seal()
            self._facts.ended = True
            self._oracle.mark("producer: ended a stream")
        elif draw < 0.6:
            await self._writer.close()
        elif draw < 0.8:
            self._writer.abandon()

    async def _burst(self, kind: str) -> None:
        wanted = self._rng.randint(1, self._streaming.config.burst)
        match kind:
            case "one by one":
                self._one_by_one(wanted)
            case "many":
                await self._together(wanted, in_set=False)
            case "set":
                await self._together(wanted, in_set=True)
            case "condition":
                await self._conditional()
            case "falling":
                attempt, values = self._attempt(self._fresh(), txid=self._rng.randint(0, 1000))
                await self._record_outcome(attempt, self._writer.append(attempt.payload, **values))
            case "given up":
                await self._cancelled()
            case _:
                raise InvariantViolation(f"unknown kind of burst: {kind}")

    # -- ways to append ----------------------------------------------------------------------------------------------

    def _one_by_one(self, wanted: int) -> None:
        for _ in range(wanted):
            payload, identified = self._next()
            attempt, values = self._attempt(payload, identified=identified)
            try:
                pending = self._writer.append_nowait(payload, **values)
            except TallybookError as error:
                self._failed(attempt, error)
                return
            attempt.sent = True
            if self._again:
                self._again.popleft()
            elif identified:
                self._source.left.append(payload)
            self._sent.append(_Sent(attempt, pending))

    def _next(self) -> tuple[bytes, bool]:
        """The next record, and whether it has a dedup id."""
        if self._again:
            return self._again[0], True
        return self._fresh(), self._rng.random() < self._streaming.config.identified

    def _fresh(self) -> bytes:
        return self._source.next(self._rng.randint(0, self._streaming.config.record_bytes))

    async def _together(self, wanted: int, *, in_set: bool) -> None:
        self._sets += in_set
        set_number, attempts, records = self._sets if in_set else 0, [], []
        for _ in range(wanted):
            attempt, values = self._attempt(self._fresh(), set_number=set_number)
            attempts.append(attempt)
            records.append(Outgoing(attempt.payload, **values))
        try:
            appended = self._writer.append_set(records) if in_set else self._writer.append_many(records)
            positions = await appended
        except TallybookError as error:
            for attempt in attempts if in_set else []:
                # append_many may have stored some of its records; append_set stores all or none.
                self._failed(attempt, error)
            return
        for attempt, position in zip(attempts, positions, strict=True):
            attempt.ok(position.place)

    async def _conditional(self) -> None:
        """Append on condition of a position: the last one, or an older one, which must be refused."""
        places = [each.place for each in self._session.attempts if each.place is not None]
        last = self._writer.last_position
        if places and self._rng.random() < 0.3:
            last = Position(*pick(self._rng, places), tag=self._facts.tag)
        attempt, values = self._attempt(self._fresh(), condition=None if last is None else last.place)
        await self._record_outcome(attempt, self._writer.append(attempt.payload, if_position=last, **values))

    async def _cancelled(self) -> None:
        """Cancel an append after a short time."""
        attempt, values = self._attempt(self._fresh())
        try:
            async with asyncio.timeout(CANCELLED_SECONDS * self._rng.random()):
                await self._record_outcome(attempt, self._writer.append(attempt.payload, **values))
        except TimeoutError:
            self._oracle.mark("producer: an append was given up")

    def _attempt(
        self,
        payload: bytes,
        *,
        identified: bool = False,
        set_number: int = 0,
        condition: RecordAddress | Any | None = ANYTHING,
        txid: int | None = None,
    ) -> tuple[AppendAttempt, dict[str, Any]]:
        """A new attempt, and the other fields of its record."""
        rng = self._rng
        attempt = self._session.append(payload, identified=identified, set_number=set_number, condition=condition)
        if txid is None and rng.random() < 0.2:
            txid = int(self._streaming.clock.monotonic() * 1000)
        values: dict[str, Any] = {"key": attempt.key, "txid": txid}
        if identified:
            values["dedup_id"] = payload.rstrip(b".")
        if rng.random() < 0.5:
            values["timestamp_ms"] = rng.randint(0, 1_000_000)
        return attempt, values

    # -- outcomes ----------------------------------------------------------------------------------------------------

    async def _record_outcome(self, attempt: AppendAttempt, appended: Awaitable[Position]) -> None:
        try:
            attempt.ok((await appended).place)
        except TallybookError as error:
            self._failed(attempt, error)
            if isinstance(error, PositionMismatch):
                self._oracle.mark("producer: a condition did not hold")

    async def _settle(self) -> None:
        """Await and record the outcomes of all appends in flight.

        Raises:
            TallybookError: an append failed.
        """
        failed: TallybookError | None = None
        sent, self._sent = self._sent, []
        for at, each in enumerate(sent):
            try:
                position = await each.pending
            except TallybookError as error:
                self._failed(each.attempt, error)
                failed = error
                continue
            each.attempt.ok(position.place)
            overtaken = not each.attempt.identified and not all(other.pending.done for other in sent[:at])
            self._oracle.expect(
                not overtaken, "S3", f"{self._client.name}: an append is confirmed before an earlier one"
            )
            if each.attempt.identified:
                self._source.confirm(each.attempt.payload)
        if failed is not None:
            raise failed

    def _failed(self, attempt: AppendAttempt, error: TallybookError) -> None:
        self._streaming.expected(self._client.name, error)
        if error.outcome is Outcome.NOT_DONE:
            attempt.failed()

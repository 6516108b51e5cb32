"""The Append RPC of ``StreamService``: appends records of one client through a writer shared with other clients.

    feed:    receive -> credit -> the writer takes the records of one message     never waits for an ack
    settle:  wait for the oldest message -> one ack for all that are durable      never waits for a record

If a message is refused, the error follows the acks of all messages before it, so the client knows exactly which records
are in the stream. If the call ends in any other way, the outcome of unacknowledged records is unknown; see
``proto/tallybook/api/v1/stream.proto``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypeAlias

from tallybook.core.access import Permission
from tallybook.core.errors import (
    Busy,
    CallerError,
    CreditExceeded,
    InvalidArgument,
    InvariantViolation,
    Outcome,
    TallybookError,
)
from tallybook.proto import stream_pb2 as pb
from tallybook.stream import Outgoing, PendingRecord, Position, StreamWriter
from tallybook.stream.writer.pending import positions_of, settled_record

from ..auth import AuthorizedCall, audit_call
from ..bidirectional import AckPipeline
from ..context import GatewayContext
from ..credit import Credit, window_bytes
from ..interceptor import send_in_time
from ..ledgers.messages import window_message
from ..requests import decode, request_of
from ..takeovers import RecentTakeovers
from .messages import new_records, position_runs, wait_seconds
from .writers import WriterPool


@dataclass(frozen=True, slots=True)
class StreamCallContext:
    """State shared by all streaming calls of ``StreamService``."""

    gateway: GatewayContext
    writers: WriterPool
    takeovers: RecentTakeovers
    """Takeovers of subscriptions."""
    pipelines: dict[AckPipeline[Any], None]
    """The calls to close when the gateway stops, oldest first."""


class _Commit:
    """A queued commit: readers must see all records before it."""

    def __init__(self) -> None:
        self.done = asyncio.Event()


_Sent: TypeAlias = list[PendingRecord]
"""The queued records of one message."""


class StreamAppendCall:
    """One Append call."""

    def __init__(self, call: AuthorizedCall, context: StreamCallContext) -> None:
        self._call = call
        self._context = context
        self._credit = Credit(0)
        self._pipeline: AckPipeline[_Sent | _Commit] = AckPipeline(context.gateway.tasks)
        self._sent_count = self._acked_count = 0
        self._refused: CallerError | Busy | None = None
        """Why a message was refused. The messages before it are settled first."""
        self._last: Position | None = None
        """Position of the last acknowledged record."""

    async def run(self) -> None:
        """Serve the call to its end.

        Raises:
            TallybookError: the call failed.
        """
        first = await request_of(self._call, pb.StreamAppendRequest)
        if not first.HasField("open"):
            raise InvalidArgument("the first message of an Append stream must open a stream")
        opening, context = first.open, self._context
        caller = self._call.caller
        context.gateway.authorizer.check_stream(caller, Permission.WRITE, opening.namespace, opening.name)
        if opening.take_over:
            audit_call(caller, "take stream", namespace=opening.namespace, stream=opening.name)
        free_bytes = context.gateway.limits.free_bytes(caller)
        self._credit = Credit(window_bytes(opening.credit_bytes, context.gateway.settings, free_bytes))
        # The records of the first message stay in memory while the stream is opened: check that they fit the window.
        Credit(self._credit.window_bytes).take(len(first.records), _bytes_of(new_records(first.records)))
        with context.gateway.limits.admit(caller, self._credit.window_bytes):
            async with context.writers.writer(
                opening.namespace,
                opening.name,
                wait_s=wait_seconds(opening, context.gateway.settings),
                take_over=opening.take_over,
            ) as writer:
                with self._pipeline.registered_in(context.pipelines):
                    await self._write(writer, first)

    async def _write(self, writer: StreamWriter, first: pb.StreamAppendRequest) -> None:
        last = writer.last_position
        opened = pb.StreamAppendOpened(
            stream_id=writer.stream_id,
            window=window_message(self._credit, writer.max_record_bytes),
            last_position="" if last is None else str(last),
        )
        await self._reply(pb.StreamAppendReply(opened=opened))
        await self._pipeline.run(self._feed(writer, first), self._settle(writer), writer.stream_id)
        if self._refused is not None:
            raise self._refused.with_traceback(None)
        closed = pb.StreamAppendClosed(last_position="" if self._last is None else str(self._last))
        await self._reply(pb.StreamAppendReply(closed=closed))

    # -- requests -----------------------------------------------------------------------

    async def _feed(self, writer: StreamWriter, request: pb.StreamAppendRequest) -> None:
        try:
            while await self._take(writer, request):
                raw = await self._call.receive()
                if raw is None:
                    return
                request = decode(pb.StreamAppendRequest, raw)
                if request.HasField("open"):
                    raise InvalidArgument("an Append stream opens one stream, in its first message")
        except CreditExceeded:
            # Acks of earlier messages may take long; a client that ignores its credit is ended at once.
            raise
        except (CallerError, Busy) as error:
            self._refused = error

    async def _take(self, writer: StreamWriter, request: pb.StreamAppendRequest) -> bool:
        """Execute one message; returns whether more may follow."""
        if request.records or request.set or request.HasField("if_position"):
            await self._append(writer, request)
        if request.HasField("commit"):
            commit = _Commit()
            self._pipeline.put(commit)
            await commit.done.wait()
        return not request.HasField("close")

    async def _append(self, writer: StreamWriter, request: pb.StreamAppendRequest) -> None:
        records = new_records(request.records)
        if not records:
            raise InvalidArgument("set and if_position need records in the same message")
        cost = self._credit.take(len(records), _bytes_of(records))
        if request.HasField("if_position"):
            sent = [await self._append_if(writer, records, request)]
        else:
            sent = await writer.send(records, as_set=request.set)
        self._credit.sent(self._sent_count, len(sent), cost)
        self._sent_count += len(sent)
        self._pipeline.put(sent)

    async def _append_if(
        self, writer: StreamWriter, records: list[Outgoing], request: pb.StreamAppendRequest
    ) -> PendingRecord:
        if len(records) > 1 or request.set:
            raise InvalidArgument("if_position needs exactly one record, and no set")
        payload, timestamp_ms, key, dedup_id, txid = records[0]
        position = await writer.append(
            payload,
            timestamp_ms=timestamp_ms,
            key=key,
            dedup_id=dedup_id,
            txid=txid,
            if_position=request.if_position or None,
        )
        return settled_record(position)

    # -- replies ------------------------------------------------------------------------

    async def _settle(self, writer: StreamWriter) -> None:
        """Acknowledge durable records until no more can come.

        Raises:
            TallybookError: a message failed; the outcome is unknown if other messages followed it.
        """
        try:
            await self._settle_all(writer)
        except TallybookError as error:
            # Queued messages may be in the stream although the one before them is not.
            raise (error.with_outcome(Outcome.UNKNOWN) if self._pipeline.queue else error) from None

    async def _settle_all(self, writer: StreamWriter) -> None:
        queue = self._pipeline.queue
        while (oldest := await self._pipeline.next()) is not None:
            if isinstance(oldest, _Commit):
                await writer.commit()
                await self._reply(pb.StreamAppendReply(committed=pb.StreamCommitted()))
                oldest.done.set()
                continue
            positions = await positions_of(oldest)
            error: TallybookError | None = None
            # Records are confirmed in order, one entry at a time.
            while error is None and queue and isinstance(following := queue[0], list) and following[-1].done:
                queue.popleft()
                try:
                    more = await positions_of(following)
                except TallybookError as found:
                    # Raised after the ack of the durable records.
                    error = found
                else:
                    positions += more
            await self._acknowledge(positions)
            if error is not None:
                raise error

    async def _acknowledge(self, positions: list[Position]) -> None:
        self._last = positions[-1]
        self._acked_count += len(positions)
        ack = self._credit.confirmed(self._acked_count - 1)
        if ack is None:
            raise InvariantViolation("an ack must cover whole messages")
        self._context.gateway.counts.records_appended += ack.entry_count
        ack_message = pb.StreamAck(
            count=ack.entry_count, credit_bytes=ack.credit_bytes, positions=position_runs(positions)
        )
        await self._reply(pb.StreamAppendReply(ack=ack_message))

    async def _reply(self, reply: pb.StreamAppendReply) -> None:
        await send_in_time(self._call, reply.SerializeToString(), self._context.gateway.settings.slow_reader_ms)


def _bytes_of(records: list[Outgoing]) -> int:
    return sum(len(each.payload) + len(each.key or b"") + len(each.dedup_id or b"") for each in records)

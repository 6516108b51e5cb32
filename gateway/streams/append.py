"""One Append stream of ``StreamService``: records of one client, through a writer that others may share.

    feed:    receive -> credit -> the writer takes the records of one message     waits for no ack
    settle:  wait for the oldest message -> one ack for all that are durable      waits for no record

What a message wants that cannot be is told behind the acks of all messages before it, so that the client knows exactly
what is in the stream. Any other end leaves what is not acknowledged open; see the service's own words.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypeAlias

from tallybook.core.access import Permission
from tallybook.core.config import GatewaySettings
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
from tallybook.runtime.tasks import Tasks
from tallybook.stream import Outgoing, PendingRecord, Position, StreamWriter
from tallybook.stream.writer.pending import positions_of, settled_record

from .authorizer import AuthorizedCall, Authorizer, audited
from .counted import send_in_time
from .credit import Credit, window_bytes
from .limits import Limits
from .losses import Losses
from .messages import decode, request_of, shown_window
from .metrics import Counts
from .stream_messages import outgoing, runs_of, wait_seconds
from .twoway import TwoWay
from .writers import Writers


@dataclass(frozen=True, slots=True)
class StreamContext:
    """What the calls of the service share."""

    settings: GatewaySettings
    limits: Limits
    counts: Counts
    tasks: Tasks
    writers: Writers
    authorizer: Authorizer
    losses: Losses
    """Of subscriptions."""
    ways: dict[TwoWay[Any], None]
    """Of calls that are to be closed when the gateway stops, in the order of their beginning."""


class _Commit:
    """In the line of messages: all before it is to be seen by readers."""

    def __init__(self) -> None:
        self.done = asyncio.Event()


_Sent: TypeAlias = list[PendingRecord]
"""In the line of messages: the records of one."""


class StreamAppend:
    """Appends to a stream on behalf of a client."""

    def __init__(self, call: AuthorizedCall, context: StreamContext) -> None:
        self._call = call
        self._context = context
        self._credit = Credit(0)
        self._ways: TwoWay[_Sent | _Commit] = TwoWay(context.tasks)
        self._sent_count = self._acked_count = 0
        self._refused: CallerError | Busy | None = None
        """Why a message was not taken. What was sent before it is settled first."""
        self._last: Position | None = None
        """Of the last record that was acknowledged."""

    async def run(self) -> None:
        """Serve the call to its end.

        Raises:
            TallybookError: why it ends.
        """
        first = await request_of(self._call, pb.StreamAppendRequest)
        if not first.HasField("open"):
            raise InvalidArgument("the first message of an Append stream must open a stream")
        opening, context = first.open, self._context
        caller = self._call.caller
        context.authorizer.check_stream(caller, Permission.WRITE, opening.namespace, opening.name)
        if opening.take_over:
            audited(caller, "take stream", namespace=opening.namespace, stream=opening.name)
        room = context.limits.room_bytes(caller)
        self._credit = Credit(window_bytes(opening.credit_bytes, context.settings, room))
        # What comes along is held while the stream is waited for, and that is to be no more than is reserved.
        Credit(self._credit.window_bytes).take(len(first.records), _bytes_of(outgoing(first.records)))
        with context.limits.admit(caller, self._credit.window_bytes):
            async with context.writers.writer(
                opening.namespace,
                opening.name,
                wait_s=wait_seconds(opening, context.settings),
                take_over=opening.take_over,
            ) as writer:
                with self._ways.among(context.ways):
                    await self._write(writer, first)

    async def _write(self, writer: StreamWriter, first: pb.StreamAppendRequest) -> None:
        last = writer.last_position
        opened = pb.StreamAppendOpened(
            stream_id=writer.stream_id,
            window=shown_window(self._credit, writer.max_record_bytes),
            last_position="" if last is None else str(last),
        )
        await self._tell(pb.StreamAppendReply(opened=opened))
        await self._ways.run(self._feed(writer, first), self._settle(writer), writer.stream_id)
        if self._refused is not None:
            raise self._refused.with_traceback(None)
        closed = pb.StreamAppendClosed(last_position="" if self._last is None else str(self._last))
        await self._tell(pb.StreamAppendReply(closed=closed))

    # -- what the client sends ----------------------------------------------------------

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
            # What waits for acks may wait for long, and who does not keep to the rules is not waited for.
            raise
        except (CallerError, Busy) as error:
            self._refused = error

    async def _take(self, writer: StreamWriter, request: pb.StreamAppendRequest) -> bool:
        """Do what one message says; whether there may be another one."""
        if request.records or request.set or request.HasField("if_position"):
            await self._append(writer, request)
        if request.HasField("commit"):
            commit = _Commit()
            self._ways.put(commit)
            await commit.done.wait()
        return not request.HasField("close")

    async def _append(self, writer: StreamWriter, request: pb.StreamAppendRequest) -> None:
        records = outgoing(request.records)
        if not records:
            raise InvalidArgument("a set, or a condition, is one of records, and there are none")
        cost = self._credit.take(len(records), _bytes_of(records))
        if request.HasField("if_position"):
            sent = [await self._append_if(writer, records, request)]
        else:
            sent = await writer.send(records, as_set=request.set)
        self._credit.sent(self._sent_count, len(sent), cost)
        self._sent_count += len(sent)
        self._ways.put(sent)

    async def _append_if(
        self, writer: StreamWriter, records: list[Outgoing], request: pb.StreamAppendRequest
    ) -> PendingRecord:
        if len(records) > 1 or request.set:
            raise InvalidArgument("a condition is one of a single record, which is no set")
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

    # -- what the client is told --------------------------------------------------------

    async def _settle(self, writer: StreamWriter) -> None:
        """Tell the client what is durable, until nothing more can come.

        Raises:
            TallybookError: what a message failed with; its outcome is unknown where others came behind it.
        """
        try:
            await self._settle_all(writer)
        except TallybookError as error:
            # What is still in the line may be in the stream, also where the message before it is not.
            raise (error.told_as(Outcome.UNKNOWN) if self._ways.line else error) from None

    async def _settle_all(self, writer: StreamWriter) -> None:
        line = self._ways.line
        while (oldest := await self._ways.next()) is not None:
            if isinstance(oldest, _Commit):
                await writer.commit()
                await self._tell(pb.StreamAppendReply(committed=pb.StreamCommitted()))
                oldest.done.set()
                continue
            positions = await positions_of(oldest)
            error: TallybookError | None = None
            # Records are confirmed in order, and an entry of them at a time.
            while error is None and line and isinstance(following := line[0], list) and following[-1].done:
                line.popleft()
                try:
                    more = await positions_of(following)
                except TallybookError as found:
                    # Behind the ack of what is durable.
                    error = found
                else:
                    positions += more
            await self._acknowledge(positions)
            if error is not None:
                raise error

    async def _acknowledge(self, positions: list[Position]) -> None:
        self._last = positions[-1]
        self._acked_count += len(positions)
        ack = self._credit.settled(self._acked_count - 1)
        if ack is None:
            raise InvariantViolation("an ack is of whole messages")
        self._context.counts.records_appended += ack.entry_count
        told = pb.StreamAck(count=ack.entry_count, credit_bytes=ack.credit_bytes, positions=runs_of(positions))
        await self._tell(pb.StreamAppendReply(ack=told))

    async def _tell(self, reply: pb.StreamAppendReply) -> None:
        await send_in_time(self._call, reply.SerializeToString(), self._context.settings.slow_reader_ms)


def _bytes_of(records: list[Outgoing]) -> int:
    return sum(len(each.payload) + len(each.key or b"") + len(each.dedup_id or b"") for each in records)

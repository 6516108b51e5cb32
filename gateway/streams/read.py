"""The Read and Subscribe RPCs of ``StreamService``: send records at the pace at which the client takes them.

    stream -> records of an entry -> message -> client
                                                   |
    cursor ledger <- the last of several <- advance'       only Subscribe; confirmed when stored

A call reserves the memory of a slow reader at its start. See ``outflow``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial

from tallybook.core.access import Permission
from tallybook.core.errors import InvalidArgument, StreamFenced
from tallybook.proto import stream_pb2 as pb
from tallybook.stream import Gap, Position, SubscriptionReader
from tallybook.stream.reader.handle import RecordBatches
from tallybook.stream.reader.reading import Gaps

from ..auth import AuthorizedCall, audit_call
from ..bidirectional import AckPipeline
from ..interceptor import send_in_time
from ..outflow import Outflow, message_bytes, reserved_bytes, send_or_cut_off
from ..requests import decode, request_of
from .append import StreamCallContext
from .messages import cursor_message, gap_message, record_message, start_of, wait_seconds
from .stores import StreamStores


async def serve_read(call: AuthorizedCall, stores: StreamStores, context: StreamCallContext) -> None:
    """Serve one Read.

    Raises:
        TallybookError: the call failed.
    """
    request = await request_of(call, pb.ReadStreamRequest)
    context.gateway.authorizer.check_stream(call.caller, Permission.READ, request.namespace, request.name)
    start, max_bytes = start_of(request.start), message_bytes(request.max_bytes, context.gateway.settings)
    with (
        context.gateway.limits.admit(call.caller, reserved_bytes(max_bytes, context.gateway.settings)),
        stores.of(request.namespace) as store,
    ):
        reader = store.reader(request.name, start=start, follow=request.follow, gaps=_gaps(request.gaps_as_messages))
        send = partial(send_in_time, call, timeout_ms=context.gateway.settings.slow_reader_ms)
        outflow = _outflow(send, max_bytes, context, lambda records: pb.ReadStreamReply(records=records))

        async def send_gap(gap: pb.StreamGap) -> None:
            await send_or_cut_off(
                send, pb.ReadStreamReply(gap=gap).SerializeToString(), gap.position, context.gateway.counts
            )

        await _flow(reader.batches(), outflow, send_gap, request.follow)


def _gaps(as_messages: bool) -> Gaps:
    return "yield" if as_messages else "raise"


def _outflow(
    send: Callable[[bytes], Awaitable[None]],
    max_bytes: int,
    context: StreamCallContext,
    encode: Callable[[pb.StreamRecords], pb.ReadStreamReply | pb.SubscribeReply],
) -> Outflow[pb.StreamRecord]:
    def sent(count: int) -> None:
        context.gateway.counts.records_read += count

    def message(records: Sequence[pb.StreamRecord]) -> pb.ReadStreamReply | pb.SubscribeReply:
        return encode(pb.StreamRecords(records=records))

    return Outflow(
        send,
        max_bytes,
        context.gateway.counts,
        encode=message,
        size_of=lambda record: record.ByteSize(),
        position_of=lambda record: record.position,
        on_sent=sent,
    )


async def _flow(
    batches: RecordBatches,
    outflow: Outflow[pb.StreamRecord],
    send_gap: Callable[[pb.StreamGap], Awaitable[None]],
    follow: bool,
) -> None:
    """Send records until there are no more."""
    async with aclosing(batches):
        async for batch in batches:
            if isinstance(batch, Gap):
                await outflow.flush()
                await send_gap(gap_message(batch))
                continue
            await outflow.add([record_message(record) for record in batch])
            if follow:
                # The next record may come much later.
                await outflow.flush()
    await outflow.flush()


class SubscribeCall:
    """One Subscribe call: reads a subscription on behalf of a client."""

    def __init__(self, call: AuthorizedCall, context: StreamCallContext) -> None:
        self._call = call
        self._context = context
        self._pipeline: AckPipeline[Position] = AckPipeline(context.gateway.tasks)
        """Advances not stored yet."""
        self._wanted: Position | None = None
        """The last advance received."""
        self._sending = asyncio.Lock()
        """Records and replies to advances are sent one at a time."""

    async def run(self, stores: StreamStores) -> None:
        """Serve the call to its end.

        Raises:
            TallybookError: the call failed.
        """
        first = await request_of(self._call, pb.SubscribeRequest)
        if not first.HasField("open"):
            raise InvalidArgument("the first message of a Subscribe stream must open a subscription")
        opening, context = first.open, self._context
        caller = self._call.caller
        context.gateway.authorizer.check_stream(caller, Permission.READ, opening.namespace, opening.name)
        if opening.take_over:
            what = {"stream": opening.name, "subscription": opening.subscription}
            audit_call(caller, "take subscription", namespace=opening.namespace, **what)
        start, max_bytes = start_of(opening.start), message_bytes(opening.max_bytes, context.gateway.settings)
        with (
            context.gateway.limits.admit(self._call.caller, reserved_bytes(max_bytes, context.gateway.settings)),
            stores.of(opening.namespace) as store,
        ):
            place = f"{store.namespace}/{opening.name}/{opening.subscription}"
            # If two clients both take over, the one that has just lost the subscription waits: see ``takeovers``.
            forced = opening.take_over and not context.takeovers.is_recent(place)
            try:
                reader = await store.subscribe(
                    opening.name,
                    opening.subscription,
                    start=start,
                    wait_s=None if forced else wait_seconds(opening, context.gateway.settings),
                    follow=not opening.no_follow,
                    gaps=_gaps(opening.gaps_as_messages),
                )
                await self._use(reader, max_bytes, follow=not opening.no_follow)
            except StreamFenced:
                context.takeovers.note(place)
                raise

    async def _use(self, reader: SubscriptionReader, max_bytes: int, *, follow: bool) -> None:
        context = self._context
        context.gateway.counts.subscribed += 1
        try:
            with self._pipeline.registered_in(context.pipelines):
                async with reader:
                    await self._serve(reader, max_bytes, follow=follow)
        finally:
            context.gateway.counts.subscribed -= 1

    async def _serve(self, reader: SubscriptionReader, max_bytes: int, *, follow: bool) -> None:
        cursor = cursor_message(reader.cursor)
        await self._reply(pb.SubscribeReply(opened=pb.SubscribeOpened(cursor=cursor)), cursor.position)
        advancing = self._context.gateway.tasks.spawn(
            self._pipeline.run(self._feed(), self._store(reader), reader.name), name=f"advance-{reader.name}"
        )
        flowing = self._context.gateway.tasks.spawn(
            self._flow(reader, max_bytes, follow=follow), name=f"flow-{reader.name}"
        )
        try:
            await asyncio.wait((advancing, flowing), return_when=asyncio.FIRST_COMPLETED)
            if flowing.done():
                await flowing
            await advancing
        finally:
            for task in (advancing, flowing):
                task.cancel()
            await asyncio.gather(advancing, flowing, return_exceptions=True)

    # -- records ------------------------------------------------------------------------

    async def _flow(self, reader: SubscriptionReader, max_bytes: int, *, follow: bool) -> None:
        outflow = _outflow(self._send, max_bytes, self._context, lambda records: pb.SubscribeReply(records=records))
        await _flow(
            reader.batches(), outflow, lambda gap: self._reply(pb.SubscribeReply(gap=gap), gap.position), follow
        )
        await self._reply(pb.SubscribeReply(at_end=pb.AtEnd()), str(reader.reader.position or reader.cursor.position))

    async def _reply(self, reply: pb.SubscribeReply, place: str) -> None:
        await send_or_cut_off(self._send, reply.SerializeToString(), place, self._context.gateway.counts)

    async def _send(self, message: bytes) -> None:
        async with self._sending:
            await send_in_time(self._call, message, self._context.gateway.settings.slow_reader_ms)

    # -- advances -----------------------------------------------------------------------

    async def _feed(self) -> None:
        while (raw := await self._call.receive()) is not None:
            request = decode(pb.SubscribeRequest, raw)
            if not request.HasField("advance"):
                raise InvalidArgument("a Subscribe stream opens one subscription, in its first message")
            position = Position.parse(request.advance.position)
            if self._wanted is not None and position < self._wanted:
                raise InvalidArgument(f"an advance may not go back, from {self._wanted} to {position}")
            self._wanted = position
            # Only the last of the queued advances needs to be stored.
            self._pipeline.queue.clear()
            self._pipeline.put(position)

    async def _store(self, reader: SubscriptionReader) -> None:
        """Store advances and confirm them until no more can come."""
        while (position := await self._pipeline.next()) is not None:
            await reader.advance(position)
            self._context.gateway.counts.advances += 1
            # A client that does not take this reply continues at the stored position.
            await self._reply(pb.SubscribeReply(advanced=pb.Advanced(position=str(position))), str(position))

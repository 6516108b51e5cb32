"""Read and Subscribe of ``StreamService``: records to a client, as fast as it takes them and no faster.

    stream -> records of an entry -> message -> the client
                                                   |
    cursor ledger <- the last of several <- advance'       only Subscribe; told once it is stored

What a slow reader holds, it has reserved at the start. See ``outflow``.
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

from .authorizer import AuthorizedCall, audited
from .counted import send_in_time
from .messages import decode, request_of
from .outflow import Outflow, message_bytes, reserved_bytes, sent_from
from .stores import Stores
from .stream_appending import StreamContext
from .stream_messages import cursor_of, gap_of, record_of, start_of, wait_seconds
from .twoway import TwoWay


async def serve_read(call: AuthorizedCall, stores: Stores, context: StreamContext) -> None:
    """Serve one Read.

    Raises:
        TallybookError: why it ends.
    """
    request = await request_of(call, pb.ReadStreamRequest)
    context.authorizer.check_stream(call.caller, Permission.READ, request.namespace, request.name)
    start, most = start_of(request.start), message_bytes(request.max_bytes, context.settings)
    with (
        context.limits.admit(call.caller, reserved_bytes(most, context.settings)),
        stores.of(request.namespace) as store,
    ):
        reader = store.reader(request.name, start=start, follow=request.follow, gaps=_gaps(request.gaps_as_messages))
        send = partial(send_in_time, call, timeout_ms=context.settings.slow_reader_ms)
        outflow = _outflow(send, most, context, lambda records: pb.ReadStreamReply(records=records))

        async def tell_gap(gap: pb.StreamGap) -> None:
            await sent_from(send, pb.ReadStreamReply(gap=gap).SerializeToString(), gap.position, context.counts)

        await _flow(reader.batches(), outflow, tell_gap, request.follow)


def _gaps(as_messages: bool) -> Gaps:
    return "yield" if as_messages else "raise"


def _outflow(
    send: Callable[[bytes], Awaitable[None]],
    max_bytes: int,
    context: StreamContext,
    encode: Callable[[pb.StreamRecords], pb.ReadStreamReply | pb.SubscribeReply],
) -> Outflow[pb.StreamRecord]:
    def sent(count: int) -> None:
        context.counts.records_read += count

    def message(records: Sequence[pb.StreamRecord]) -> pb.ReadStreamReply | pb.SubscribeReply:
        return encode(pb.StreamRecords(records=records))

    return Outflow(
        send,
        max_bytes,
        context.counts,
        encode=message,
        size_of=lambda record: record.ByteSize(),
        place_of=lambda record: record.position,
        on_sent=sent,
    )


async def _flow(
    batches: RecordBatches,
    outflow: Outflow[pb.StreamRecord],
    tell_gap: Callable[[pb.StreamGap], Awaitable[None]],
    follow: bool,
) -> None:
    """Let records go out until there are no more."""
    async with aclosing(batches):
        async for batch in batches:
            if isinstance(batch, Gap):
                await outflow.flush()
                await tell_gap(gap_of(batch))
                continue
            await outflow.add([record_of(record) for record in batch])
            if follow:
                # Nobody knows when there will be more.
                await outflow.flush()
    await outflow.flush()


class Subscribed:
    """One Subscribe: the reader of a subscription on behalf of a client."""

    def __init__(self, call: AuthorizedCall, context: StreamContext) -> None:
        self._call = call
        self._context = context
        self._ways: TwoWay[Position] = TwoWay(context.tasks)
        """Advances that are not stored."""
        self._wanted: Position | None = None
        """The last of them."""
        self._sending = asyncio.Lock()
        """Records and answers to advances go out one at a time."""

    async def run(self, stores: Stores) -> None:
        """Serve the call to its end.

        Raises:
            TallybookError: why it ends.
        """
        first = await request_of(self._call, pb.SubscribeRequest)
        if not first.HasField("open"):
            raise InvalidArgument("the first message of a Subscribe stream must open a subscription")
        opening, context = first.open, self._context
        caller = self._call.caller
        context.authorizer.check_stream(caller, Permission.READ, opening.namespace, opening.name)
        if opening.take_over:
            what = {"stream": opening.name, "subscription": opening.subscription}
            audited(caller, "take subscription", namespace=opening.namespace, **what)
        start, most = start_of(opening.start), message_bytes(opening.max_bytes, context.settings)
        with (
            context.limits.admit(self._call.caller, reserved_bytes(most, context.settings)),
            stores.of(opening.namespace) as store,
        ):
            place = f"{store.namespace}/{opening.name}/{opening.subscription}"
            # Of two clients that both insist, the one that has just lost it waits: see ``losses``.
            at_once = opening.take_over and not context.losses.lately(place)
            try:
                reader = await store.subscribe(
                    opening.name,
                    opening.subscription,
                    start=start,
                    wait_s=None if at_once else wait_seconds(opening, context.settings),
                    follow=not opening.no_follow,
                    gaps=_gaps(opening.gaps_as_messages),
                )
                await self._use(reader, most, follow=not opening.no_follow)
            except StreamFenced:
                context.losses.note(place)
                raise

    async def _use(self, reader: SubscriptionReader, most: int, *, follow: bool) -> None:
        context = self._context
        context.counts.subscribed += 1
        try:
            with self._ways.among(context.ways):
                async with reader:
                    await self._serve(reader, most, follow=follow)
        finally:
            context.counts.subscribed -= 1

    async def _serve(self, reader: SubscriptionReader, most: int, *, follow: bool) -> None:
        cursor = cursor_of(reader.cursor)
        await self._tell(pb.SubscribeReply(opened=pb.SubscribeOpened(cursor=cursor)), cursor.position)
        advancing = self._context.tasks.spawn(
            self._ways.run(self._feed(), self._store(reader), reader.name), name=f"advance-{reader.name}"
        )
        flowing = self._context.tasks.spawn(self._flow(reader, most, follow=follow), name=f"flow-{reader.name}")
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

    async def _flow(self, reader: SubscriptionReader, most: int, *, follow: bool) -> None:
        outflow = _outflow(self._send, most, self._context, lambda records: pb.SubscribeReply(records=records))
        await _flow(reader.batches(), outflow, lambda gap: self._tell(pb.SubscribeReply(gap=gap), gap.position), follow)
        await self._tell(pb.SubscribeReply(at_end=pb.AtEnd()), str(reader.reader.position or reader.cursor.position))

    async def _tell(self, reply: pb.SubscribeReply, place: str) -> None:
        await sent_from(self._send, reply.SerializeToString(), place, self._context.counts)

    async def _send(self, message: bytes) -> None:
        async with self._sending:
            await send_in_time(self._call, message, self._context.settings.slow_reader_ms)

    # -- advances -----------------------------------------------------------------------

    async def _feed(self) -> None:
        while (raw := await self._call.receive()) is not None:
            request = decode(pb.SubscribeRequest, raw)
            if not request.HasField("advance"):
                raise InvalidArgument("a Subscribe stream opens one subscription, in its first message")
            position = Position.parse(request.advance.position)
            if self._wanted is not None and position < self._wanted:
                raise InvalidArgument(f"an advance does not go back, from {self._wanted} to {position}")
            self._wanted = position
            # Of those that nobody looks at yet, the last one says all.
            self._ways.line.clear()
            self._ways.put(position)

    async def _store(self, reader: SubscriptionReader) -> None:
        """Store advances, and say so, until nothing more can come."""
        while (position := await self._ways.next()) is not None:
            await reader.advance(position)
            self._context.counts.advances += 1
            # Where the subscription goes on from here, for a client that does not take it.
            await self._tell(pb.SubscribeReply(advanced=pb.Advanced(position=str(position))), str(position))

"""Handlers of ``StreamService`` (``proto/tallybook/api/v1/stream.proto``).

Unary calls are here; the streaming calls are in ``append`` and ``read``; ``writers`` shares the writer of a stream
among its clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeVar

from tallybook.core.access import Permission
from tallybook.core.errors import StreamEnded
from tallybook.proto import stream_pb2 as pb
from tallybook.runtime.calls import CallHandler
from tallybook.runtime.logging import logger
from tallybook.stream import Gap, StreamStore
from tallybook.stream.names import check_stream_name, check_subscription

from ..auth import AuthorizedCall, Caller, audit_call
from ..bidirectional import AckPipeline
from ..context import GatewayContext
from ..interceptor import AuthorizedHandler
from ..limits import Reservation
from ..outflow import reserved_bytes
from ..stopping import StopDeadline
from ..takeovers import RecentTakeovers
from ..unary import unary_handler
from .append import StreamAppendCall, StreamCallContext
from .messages import policy_changes, required_start, stream_message, subscription_message, wait_seconds
from .read import SubscribeCall, serve_read
from .stores import StreamStores
from .writers import WriterPool

_log = logger("gateway.streams")

T = TypeVar("T")

STREAM_SERVICE: Final = pb.DESCRIPTOR.services_by_name["StreamService"].full_name
MAX_PAGE: Final = 1_000
MAX_SUBSCRIPTIONS_PAGE: Final = 100
"""Each subscription is read from a ledger of its own."""


class StreamService:
    """Serves streams of records over gRPC.

    Args:
        context: shared with ``LedgerService``.
    """

    def __init__(self, stores: StreamStores, context: GatewayContext) -> None:
        self._stores = stores
        self._gateway = context
        self._authorizer = context.authorizer
        self._writers = WriterPool(stores, context)
        self._stop_deadline = StopDeadline(context.settings.stop_ms, context.clock)
        self._pipeline: dict[AckPipeline[Any], None] = {}
        self._context = StreamCallContext(context, self._writers, RecentTakeovers(context.clock), self._pipeline)

    def handlers(self) -> Mapping[str, CallHandler]:
        """The handler of each method."""
        handlers: dict[str, AuthorizedHandler] = {
            "Create": unary_handler(pb.CreateStreamRequest, self._create),
            "Delete": unary_handler(pb.DeleteStreamRequest, self._delete),
            "Rename": unary_handler(pb.RenameStreamRequest, self._rename),
            "List": unary_handler(pb.ListStreamsRequest, self._list),
            "Describe": unary_handler(pb.DescribeStreamRequest, self._describe, self._admitted),
            "SetPolicy": unary_handler(pb.SetPolicyRequest, self._set_policy),
            "Truncate": unary_handler(pb.TruncateStreamRequest, self._truncate, self._admitted),
            "End": unary_handler(pb.EndStreamRequest, self._end),
            "Append": self._append,
            "Read": self._read,
            "Subscribe": self._subscribe,
            "ListSubscriptions": unary_handler(pb.ListSubscriptionsRequest, self._list_subscriptions, self._admitted),
            "ResetSubscription": unary_handler(pb.ResetSubscriptionRequest, self._reset_subscription, self._admitted),
            "DeleteSubscription": unary_handler(pb.DeleteSubscriptionRequest, self._delete_subscription),
        }
        return self._gateway.served("StreamService", handlers)

    def _admitted(self, caller: Caller) -> Reservation:
        """Reserve memory for a unary call that reads: it needs a reader, as a streaming call does."""
        return self._gateway.limits.admit(caller, reserved_bytes(0, self._gateway.settings), streams=0)

    async def stop(self) -> None:
        """End bidirectional calls and close the writers, within ``stop_ms`` for all calls of ``stop`` together."""
        pipelines = list(self._pipeline)
        for each in pipelines:
            each.close()
        try:
            async with asyncio.timeout(self._stop_deadline.seconds_left()):
                for each in pipelines:
                    await each.ended()
                await self._writers.close()
        except TimeoutError:
            _log.warning("streams not closed in time: their next writers recover them")
            self._writers.abandon()

    # -- streams ----------------------------------------------------------------------

    async def _append(self, call: AuthorizedCall) -> None:
        await StreamAppendCall(call, self._context).run()

    async def _read(self, call: AuthorizedCall) -> None:
        await serve_read(call, self._stores, self._context)

    async def _subscribe(self, call: AuthorizedCall) -> None:
        await SubscribeCall(call, self._context).run(self._stores)

    # -- unary calls ------------------------------------------------------------------

    async def _create(self, request: pb.CreateStreamRequest, caller: Caller) -> pb.Stream:
        self._authorizer.check_stream(caller, Permission.WRITE, request.namespace, request.name)
        with self._stores.of(request.namespace) as store:
            return stream_message(await store.create(request.name, **policy_changes(request.policy)))

    async def _delete(self, request: pb.DeleteStreamRequest, caller: Caller) -> pb.DeleteStreamReply:
        self._authorizer.check_stream(caller, Permission.WRITE, request.namespace, request.name)
        audit_call(caller, "delete stream", namespace=request.namespace, stream=request.name)
        with self._stores.of(request.namespace) as store:
            await store.delete(request.name)
        return pb.DeleteStreamReply()

    async def _rename(self, request: pb.RenameStreamRequest, caller: Caller) -> pb.Stream:
        self._authorizer.check_stream(caller, Permission.WRITE, request.namespace, request.name)
        self._authorizer.check_stream(caller, Permission.WRITE, request.namespace, request.new_name)
        audit_call(caller, "rename stream", namespace=request.namespace, stream=request.name, new_name=request.new_name)
        with self._stores.of(request.namespace) as store:
            return stream_message(await store.rename(request.name, request.new_name))

    async def _list(self, request: pb.ListStreamsRequest, caller: Caller) -> pb.ListStreamsReply:
        self._authorizer.check_stream(caller, Permission.READ, request.namespace, request.prefix)
        with self._stores.of(request.namespace) as store:
            after = check_stream_name(request.page_token) if request.page_token else ""
            names = store.list(request.prefix, after=after)
            page, more = await _page(names, request.page_size, MAX_PAGE)
        return pb.ListStreamsReply(names=page, next_page_token=page[-1] if more else "")

    async def _describe(self, request: pb.DescribeStreamRequest, caller: Caller) -> pb.StreamDescription:
        self._authorizer.check_stream(caller, Permission.READ, request.namespace, request.name)
        with self._stores.of(request.namespace) as store:
            info = await store.info(request.name)
            last = await store.last(request.name)
            described = pb.StreamDescription(
                stream=stream_message(info),
                first_sequence=info.first_sequence,
                next_sequence=max(info.first_sequence, info.next_sequence),
            )
            if last is not None:
                described.last_position, described.next_sequence = str(last[0]), last[1] + 1
                await _find_first(store, request.name, described)
            described.record_count = described.next_sequence - described.first_sequence
            return described

    async def _set_policy(self, request: pb.SetPolicyRequest, caller: Caller) -> pb.Stream:
        self._authorizer.check_stream(caller, Permission.WRITE, request.namespace, request.name)
        audit_call(caller, "change policy of stream", namespace=request.namespace, stream=request.name)
        with self._stores.of(request.namespace) as store:
            changes = policy_changes(request.policy, request.clear)
            return stream_message(await store.set_policy(request.name, **changes))

    async def _truncate(self, request: pb.TruncateStreamRequest, caller: Caller) -> pb.Stream:
        self._authorizer.check_stream(caller, Permission.WRITE, request.namespace, request.name)
        before = required_start(request, "before")
        audit_call(caller, "truncate stream", namespace=request.namespace, stream=request.name)
        with self._stores.of(request.namespace) as store:
            return stream_message(await store.truncate(request.name, before=before))

    async def _end(self, request: pb.EndStreamRequest, caller: Caller) -> pb.Stream:
        self._authorizer.check_stream(caller, Permission.WRITE, request.namespace, request.name)
        audit_call(caller, "end stream", namespace=request.namespace, stream=request.name)
        # If the client disconnects now, the stream must still be sealed, and the writer closed.
        ending = self._gateway.tasks.spawn(self._seal(request), name="seal-stream")
        return await asyncio.shield(ending)

    async def _seal(self, request: pb.EndStreamRequest) -> pb.Stream:
        wait_s = wait_seconds(request, self._gateway.settings)
        with self._stores.of(request.namespace) as store:
            try:
                await self._writers.end(request.namespace, request.name, wait_s=wait_s, take_over=request.take_over)
            except StreamEnded:
                _log.debug("stream is sealed already", stream=request.name)
            return stream_message(await store.info(request.name))

    async def _list_subscriptions(
        self, request: pb.ListSubscriptionsRequest, caller: Caller
    ) -> pb.ListSubscriptionsReply:
        self._authorizer.check_stream(caller, Permission.READ, request.namespace, request.name)
        with self._stores.of(request.namespace) as store:
            after = check_subscription(request.page_token) if request.page_token else ""
            found = store.subscriptions(request.name, after=after)
            page, more = await _page(found, request.page_size, MAX_SUBSCRIPTIONS_PAGE)
        return pb.ListSubscriptionsReply(
            subscriptions=map(subscription_message, page), next_page_token=page[-1].name if more else ""
        )

    async def _reset_subscription(self, request: pb.ResetSubscriptionRequest, caller: Caller) -> pb.Subscription:
        self._authorizer.check_stream(caller, Permission.READ, request.namespace, request.name)
        start = required_start(request, "start")
        audit_call(
            caller,
            "reset subscription",
            namespace=request.namespace,
            stream=request.name,
            subscription=request.subscription,
        )
        with self._stores.of(request.namespace) as store:
            return subscription_message(await store.reset_subscription(request.name, request.subscription, start))

    async def _delete_subscription(
        self, request: pb.DeleteSubscriptionRequest, caller: Caller
    ) -> pb.DeleteSubscriptionReply:
        self._authorizer.check_stream(caller, Permission.READ, request.namespace, request.name)
        audit_call(
            caller,
            "delete subscription",
            namespace=request.namespace,
            stream=request.name,
            subscription=request.subscription,
        )
        with self._stores.of(request.namespace) as store:
            await store.unsubscribe(request.name, request.subscription)
        return pb.DeleteSubscriptionReply()


async def _page(found: AsyncIterator[T], wanted: int, limit: int) -> tuple[list[T], bool]:
    """The first page of the items, and whether there are more."""
    size = min(wanted or limit, limit)
    page: list[T] = []
    async for each in found:
        if len(page) == size:
            return page, True
        page.append(each)
    return page, False


async def _find_first(store: StreamStore, name: str, described: pb.StreamDescription) -> None:
    """Fill in the position of the first record that exists."""
    async with aclosing(store.reader(name, follow=False, gaps="yield").batches()) as batches:
        async for batch in batches:
            if not isinstance(batch, Gap):
                described.first_position = str(batch[0].position)
                described.first_sequence = batch[0].sequence
                return

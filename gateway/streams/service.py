"""``StreamService``: what each call of ``proto/stream.proto`` does.

Calls with one answer are here; the streams are in ``stream_appending`` and ``stream_reading``, and what lets clients of
one stream share its writer in ``writers``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeVar

from tallybook.core.access import Permission
from tallybook.core.config import GatewaySettings
from tallybook.core.errors import StreamEnded
from tallybook.proto import stream_pb2 as pb
from tallybook.runtime.calls import CallHandler
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks
from tallybook.stream import Gap, StreamStore
from tallybook.stream.names import check_stream_name, check_subscription

from .answering import answering
from .authorizer import AuthorizedCall, Authorizer, Caller, audited
from .counted import AuthorizedHandler, counted
from .limits import Admission, Limits
from .losses import Losses
from .metrics import Counts
from .outflow import reserved_bytes
from .stopping import StopTime
from .stores import Stores
from .stream_appending import StreamAppend, StreamContext
from .stream_messages import described_stream, described_subscription, policy_changes, said_place, wait_seconds
from .stream_reading import Subscribed, serve_read
from .twoway import TwoWay
from .writers import Writers

_log = logger("gateway.streams")

T = TypeVar("T")

STREAM_SERVICE: Final = pb.DESCRIPTOR.services_by_name["StreamService"].full_name
MAX_PAGE: Final = 1_000
MAX_SUBSCRIPTIONS_PAGE: Final = 100
"""Each of them is looked up in a ledger of its own."""


class StreamService:
    """Serves streams of records to clients of any language.

    Args:
        limits, counts: shared with the other service, so that clients are bounded by what they take of both.
        tasks: what goes on behind a call; closed only after ``stop``.
        authorizer: says who may call.
    """

    def __init__(
        self,
        stores: Stores,
        settings: GatewaySettings,
        limits: Limits,
        counts: Counts,
        clock: Clock,
        tasks: Tasks,
        authorizer: Authorizer,
    ) -> None:
        self._stores = stores
        self._settings = settings
        self._counts = counts
        self._limits = limits
        self._authorizer = authorizer
        self._clock = clock
        self._tasks = tasks
        self._writers = Writers(stores, settings, counts, clock, tasks)
        self._stop_time = StopTime(settings.stop_ms, clock)
        self._ways: dict[TwoWay[Any], None] = {}
        self._context = StreamContext(
            settings, limits, counts, tasks, self._writers, authorizer, Losses(clock), self._ways
        )

    def handlers(self) -> Mapping[str, CallHandler]:
        """A handler for each method of the service."""
        handlers: dict[str, AuthorizedHandler] = {
            "Create": answering(pb.CreateStreamRequest, self._create),
            "Delete": answering(pb.DeleteStreamRequest, self._delete),
            "Rename": answering(pb.RenameStreamRequest, self._rename),
            "List": answering(pb.ListStreamsRequest, self._list),
            "Describe": answering(pb.DescribeStreamRequest, self._describe, self._admitted),
            "SetPolicy": answering(pb.SetPolicyRequest, self._set_policy),
            "Truncate": answering(pb.TruncateStreamRequest, self._truncate, self._admitted),
            "End": answering(pb.EndStreamRequest, self._end),
            "Append": self._append,
            "Read": self._read,
            "Subscribe": self._subscribe,
            "ListSubscriptions": answering(pb.ListSubscriptionsRequest, self._list_subscriptions, self._admitted),
            "ResetSubscription": answering(pb.ResetSubscriptionRequest, self._reset_subscription, self._admitted),
            "DeleteSubscription": answering(pb.DeleteSubscriptionRequest, self._delete_subscription),
        }
        return {name: self._counted(f"StreamService/{name}", handler) for name, handler in handlers.items()}

    def _admitted(self, caller: Caller) -> Admission:
        """A call that reads, if only a little, takes as much memory for that as one that reads much."""
        return self._limits.admit(caller, reserved_bytes(0, self._settings), streams=0)

    def _counted(self, method: str, handler: AuthorizedHandler) -> CallHandler:
        return counted(method, handler, self._counts, self._clock, self._authorizer, self._limits, self._stores.tracer)

    async def stop(self) -> None:
        """End calls that go both ways as their clients would, and close the writers, all of it within ``stop_ms``.

        That is the time of all stops together.
        """
        ways = list(self._ways)
        for each in ways:
            each.close()
        try:
            async with asyncio.timeout(self._stop_time.left()):
                for each in ways:
                    await each.over()
                await self._writers.close()
        except TimeoutError:
            _log.warning("streams not closed in time: who writes them next settles what is left")
            self._writers.abandon()

    # -- streams ----------------------------------------------------------------------

    async def _append(self, call: AuthorizedCall) -> None:
        await StreamAppend(call, self._context).run()

    async def _read(self, call: AuthorizedCall) -> None:
        await serve_read(call, self._stores, self._context)

    async def _subscribe(self, call: AuthorizedCall) -> None:
        await Subscribed(call, self._context).run(self._stores)

    # -- calls with one answer --------------------------------------------------------

    async def _create(self, request: pb.CreateStreamRequest, caller: Caller) -> pb.Stream:
        self._authorizer.check_stream(caller, Permission.WRITE, request.namespace, request.name)
        with self._stores.of(request.namespace) as store:
            return described_stream(await store.create(request.name, **policy_changes(request.policy)))

    async def _delete(self, request: pb.DeleteStreamRequest, caller: Caller) -> pb.DeleteStreamReply:
        self._authorizer.check_stream(caller, Permission.WRITE, request.namespace, request.name)
        audited(caller, "delete stream", namespace=request.namespace, stream=request.name)
        with self._stores.of(request.namespace) as store:
            await store.delete(request.name)
        return pb.DeleteStreamReply()

    async def _rename(self, request: pb.RenameStreamRequest, caller: Caller) -> pb.Stream:
        self._authorizer.check_stream(caller, Permission.WRITE, request.namespace, request.name)
        self._authorizer.check_stream(caller, Permission.WRITE, request.namespace, request.new_name)
        audited(caller, "rename stream", namespace=request.namespace, stream=request.name, new_name=request.new_name)
        with self._stores.of(request.namespace) as store:
            return described_stream(await store.rename(request.name, request.new_name))

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
                stream=described_stream(info),
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
        audited(caller, "change policy of stream", namespace=request.namespace, stream=request.name)
        with self._stores.of(request.namespace) as store:
            changes = policy_changes(request.policy, request.clear)
            return described_stream(await store.set_policy(request.name, **changes))

    async def _truncate(self, request: pb.TruncateStreamRequest, caller: Caller) -> pb.Stream:
        self._authorizer.check_stream(caller, Permission.WRITE, request.namespace, request.name)
        before = said_place(request, "before")
        audited(caller, "truncate stream", namespace=request.namespace, stream=request.name)
        with self._stores.of(request.namespace) as store:
            return described_stream(await store.truncate(request.name, before=before))

    async def _end(self, request: pb.EndStreamRequest, caller: Caller) -> pb.Stream:
        self._authorizer.check_stream(caller, Permission.WRITE, request.namespace, request.name)
        audited(caller, "end stream", namespace=request.namespace, stream=request.name)
        # A client that goes away in the middle must not leave a writer behind that is neither good nor closed.
        ending = self._tasks.spawn(self._end_stream(request), name="end-stream")
        return await asyncio.shield(ending)

    async def _end_stream(self, request: pb.EndStreamRequest) -> pb.Stream:
        wait_s = wait_seconds(request, self._settings)
        with self._stores.of(request.namespace) as store:
            try:
                await self._writers.end(request.namespace, request.name, wait_s=wait_s, take_over=request.take_over)
            except StreamEnded:
                _log.debug("a stream is ended that has ended", stream=request.name)
            return described_stream(await store.info(request.name))

    async def _list_subscriptions(
        self, request: pb.ListSubscriptionsRequest, caller: Caller
    ) -> pb.ListSubscriptionsReply:
        self._authorizer.check_stream(caller, Permission.READ, request.namespace, request.name)
        with self._stores.of(request.namespace) as store:
            after = check_subscription(request.page_token) if request.page_token else ""
            found = store.subscriptions(request.name, after=after)
            page, more = await _page(found, request.page_size, MAX_SUBSCRIPTIONS_PAGE)
        return pb.ListSubscriptionsReply(
            subscriptions=map(described_subscription, page), next_page_token=page[-1].name if more else ""
        )

    async def _reset_subscription(self, request: pb.ResetSubscriptionRequest, caller: Caller) -> pb.Subscription:
        self._authorizer.check_stream(caller, Permission.READ, request.namespace, request.name)
        start = said_place(request, "start")
        audited(
            caller,
            "reset subscription",
            namespace=request.namespace,
            stream=request.name,
            subscription=request.subscription,
        )
        with self._stores.of(request.namespace) as store:
            return described_subscription(await store.reset_subscription(request.name, request.subscription, start))

    async def _delete_subscription(
        self, request: pb.DeleteSubscriptionRequest, caller: Caller
    ) -> pb.DeleteSubscriptionReply:
        self._authorizer.check_stream(caller, Permission.READ, request.namespace, request.name)
        audited(
            caller,
            "delete subscription",
            namespace=request.namespace,
            stream=request.name,
            subscription=request.subscription,
        )
        with self._stores.of(request.namespace) as store:
            await store.unsubscribe(request.name, request.subscription)
        return pb.DeleteSubscriptionReply()


async def _page(found: AsyncIterator[T], wanted: int, most: int) -> tuple[list[T], bool]:
    """The first of what is found, and whether there is more."""
    size = min(wanted or most, most)
    page: list[T] = []
    async for each in found:
        if len(page) == size:
            return page, True
        page.append(each)
    return page, False


async def _find_first(store: StreamStore, name: str, described: pb.StreamDescription) -> None:
    """Fill in where the first record is that is there."""
    async with aclosing(store.reader(name, follow=False, gaps="yield").batches()) as batches:
        async for batch in batches:
            if not isinstance(batch, Gap):
                described.first_position = str(batch[0].position)
                described.first_sequence = batch[0].sequence
                return

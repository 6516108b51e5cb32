"""``LedgerService``: what each call of ``proto/ledger.proto`` does.

Calls with one answer are here; the streams are in ``appending`` and ``reading``. Every handler raises errors of
``core/errors``, which ``counted`` turns into what a client sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from tallybook.client.client import Client
from tallybook.core.access import Permission
from tallybook.core.config import GatewaySettings
from tallybook.core.errors import InvalidArgument, MetadataUnavailable
from tallybook.core.ids import MAX_ID
from tallybook.proto import ledger_pb2 as pb
from tallybook.runtime.calls import CallHandler
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks

from .answering import answering
from .appending import AppendContext, AppendStream
from .authorizer import AuthorizedCall, Authorizer, Caller, audited
from .counted import AuthorizedHandler, counted
from .limits import Limits
from .messages import creation, described, ledger_of
from .metrics import Counts
from .reading import Readers
from .stopping import StopTime

_log = logger("gateway.service")

LEDGER_SERVICE: Final = pb.DESCRIPTOR.services_by_name["LedgerService"].full_name
MAX_PAGE: Final = 1_000


class LedgerService:
    """Serves ledgers to clients of any language.

    Args:
        client: reaches the cluster. Its settings are ``settings.client``.
        limits, counts: shared with the other service, so that clients are bounded by what they take of both.
        tasks: what goes on behind a call; closed only after ``stop``.
        authorizer: says who may call.
    """

    def __init__(
        self,
        client: Client,
        settings: GatewaySettings,
        limits: Limits,
        counts: Counts,
        clock: Clock,
        tasks: Tasks,
        authorizer: Authorizer,
    ) -> None:
        self._client = client
        self._clock = clock
        self._tasks = tasks
        self._counts = counts
        self._limits = limits
        self._authorizer = authorizer
        self._stop_time = StopTime(settings.stop_ms, clock)
        self._streams: dict[int, AppendStream] = {}
        self._appending = AppendContext(client, settings, limits, counts, clock, tasks, authorizer, self._streams)
        self._readers = Readers(client, settings, limits, counts, authorizer)

    def handlers(self) -> Mapping[str, CallHandler]:
        """A handler for each method of the service."""
        handlers: dict[str, AuthorizedHandler] = {
            "Create": answering(pb.CreateRequest, self._create),
            "Append": self._append,
            "Read": self._readers.read,
            "Tail": self._readers.tail,
            "Close": answering(pb.CloseRequest, self._close),
            "Recover": answering(pb.RecoverRequest, self._recover),
            "Delete": answering(pb.DeleteRequest, self._delete),
            "List": answering(pb.ListRequest, self._list),
            "Describe": answering(pb.DescribeRequest, self._describe),
        }
        return {name: self._counted(f"LedgerService/{name}", handler) for name, handler in handlers.items()}

    def _counted(self, method: str, handler: AuthorizedHandler) -> CallHandler:
        return counted(
            method, handler, self._counts, self._clock, self._authorizer, self._limits, self._client.world.tracer
        )

    async def stop(self) -> None:
        """Close the ledgers that are written, as far as that goes within ``stop_ms``.

        That is the time of all stops together.
        """
        streams = list(self._streams.values())
        for stream in streams:
            stream.close()
        try:
            async with asyncio.timeout(self._stop_time.left()):
                for stream in streams:
                    await stream.closed()
        except TimeoutError:
            _log.warning("ledgers left open: recover them", ledger_ids=sorted(self._streams))

    # -- streams ----------------------------------------------------------------------

    async def _append(self, call: AuthorizedCall) -> None:
        await AppendStream(call, self._appending).run()

    # -- calls with one answer --------------------------------------------------------

    async def _create(self, request: pb.CreateRequest, caller: Caller) -> pb.Ledger:
        self._authorizer.check_new_ledger(caller, request.custom)
        return described(await self._client.create_unowned_ledger(**creation(request)))

    async def _close(self, request: pb.CloseRequest, caller: Caller) -> pb.Ledger:
        client, ledger_id = self._client, ledger_of(request)
        await self._authorizer.check_ledger(caller, Permission.WRITE, ledger_id)
        metadata = await client.ledger_metadata(ledger_id)
        client.authorise(metadata, request.password)
        stream = self._streams.get(ledger_id)
        if stream is not None:
            stream.close()
            await stream.closed()
            metadata = await client.ledger_metadata(ledger_id)
            if not metadata.closed:
                raise MetadataUnavailable(f"ledger {ledger_id} could not be closed: recover it")
        elif not metadata.closed:
            closing = self._tasks.spawn(self._close_unwritten(ledger_id, request.password), name=f"close-{ledger_id}")
            # A client that goes away in the middle must not leave a ledger behind that has a writer and is not closed.
            return await asyncio.shield(closing)
        return described(metadata)

    async def _close_unwritten(self, ledger_id: int, password: bytes) -> pb.Ledger:
        async with await self._client.adopt_ledger(ledger_id, password=password) as writer:
            return described(await writer.close())

    async def _recover(self, request: pb.RecoverRequest, caller: Caller) -> pb.Ledger:
        ledger_id = ledger_of(request)
        await self._authorizer.check_ledger(caller, Permission.WRITE, ledger_id)
        audited(caller, "fence ledger", ledger_id=ledger_id)
        return described(await self._client.recover_ledger(ledger_id, password=request.password))

    async def _delete(self, request: pb.DeleteRequest, caller: Caller) -> pb.DeleteReply:
        ledger_id = ledger_of(request)
        await self._authorizer.check_ledger(caller, Permission.WRITE, ledger_id)
        audited(caller, "delete ledger", ledger_id=ledger_id)
        await self._client.delete_ledger(ledger_id, password=request.password, force=request.force)
        return pb.DeleteReply()

    async def _describe(self, request: pb.DescribeRequest, caller: Caller) -> pb.Ledger:
        ledger_id = ledger_of(request)
        await self._authorizer.check_ledger(caller, Permission.READ, ledger_id)
        metadata = await self._client.ledger_metadata(ledger_id)
        if metadata.closed:
            return described(metadata)
        reader = await self._client.open_ledger(ledger_id, password=request.password, recover=False)
        return described(reader.metadata, reader.last_add_confirmed)

    async def _list(self, request: pb.ListRequest, caller: Caller) -> pb.ListReply:
        # What they are called would have to be looked up one by one.
        self._authorizer.check_all_ledgers(caller, Permission.READ)
        after = _page_start(request.page_token)
        page = await self._client.world.store.list_ledgers(after, min(request.page_size or MAX_PAGE, MAX_PAGE))
        following = page.next_after()
        return pb.ListReply(ledger_ids=page.ledger_ids, next_page_token="" if following is None else str(following))


def _page_start(token: str) -> int:
    """The ledger id above which a page begins."""
    if not token:
        return -1
    decimal = token.isascii() and token.isdecimal() and len(token) <= len(str(MAX_ID))
    if not decimal or int(token) > MAX_ID:
        raise InvalidArgument("the page token is not one that a List has answered")
    return int(token)

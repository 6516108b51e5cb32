"""Handlers of ``LedgerService`` (``proto/tallybook/api/v1/ledger.proto``).

Unary calls are here; the streaming calls are in ``append`` and ``read``. Handlers raise errors of
``core/errors``, which ``intercepted`` turns into what a client sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from tallybook.core.access import Permission
from tallybook.core.errors import InvalidArgument, MetadataUnavailable
from tallybook.core.ids import MAX_ID
from tallybook.proto import ledger_pb2 as pb
from tallybook.runtime.calls import CallHandler
from tallybook.runtime.logging import logger

from ..auth import AuthorizedCall, Caller, audit_call
from ..context import GatewayContext
from ..interceptor import AuthorizedHandler
from ..stopping import StopDeadline
from ..unary import unary_handler
from .append import LedgerAppendCall
from .messages import create_arguments, ledger_message, ledger_of
from .read import LedgerReadCalls

_log = logger("gateway.service")

LEDGER_SERVICE: Final = pb.DESCRIPTOR.services_by_name["LedgerService"].full_name
MAX_PAGE: Final = 1_000


class LedgerService:
    """Serves ledgers over gRPC.

    Args:
        context: shared with ``StreamService``.
    """

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._client = context.client
        self._authorizer = context.authorizer
        self._stop_deadline = StopDeadline(context.settings.stop_ms, context.clock)
        self._streams: dict[int, LedgerAppendCall] = {}
        """Calls that write or close a ledger, by ledger id."""
        self._read_calls = LedgerReadCalls(context)

    def handlers(self) -> Mapping[str, CallHandler]:
        """The handler of each method."""
        handlers: dict[str, AuthorizedHandler] = {
            "Create": unary_handler(pb.CreateRequest, self._create),
            "Append": self._append,
            "Read": self._read_calls.read,
            "Tail": self._read_calls.tail,
            "Close": unary_handler(pb.CloseRequest, self._close),
            "Recover": unary_handler(pb.RecoverRequest, self._recover),
            "Delete": unary_handler(pb.DeleteRequest, self._delete),
            "List": unary_handler(pb.ListRequest, self._list),
            "Describe": unary_handler(pb.DescribeRequest, self._describe),
        }
        return self._context.served("LedgerService", handlers)

    async def stop(self) -> None:
        """Close the ledgers being written, within ``stop_ms`` for all calls of ``stop`` together."""
        streams = list(self._streams.values())
        for stream in streams:
            stream.close()
        try:
            async with asyncio.timeout(self._stop_deadline.seconds_left()):
                for stream in streams:
                    await stream.closed()
        except TimeoutError:
            _log.warning("ledgers left open: recover them", ledger_ids=", ".join(map(str, sorted(self._streams))))

    # -- streams ----------------------------------------------------------------------

    async def _append(self, call: AuthorizedCall) -> None:
        await LedgerAppendCall(call, self._context, self._streams).run()

    # -- unary calls ------------------------------------------------------------------

    async def _create(self, request: pb.CreateRequest, caller: Caller) -> pb.Ledger:
        self._authorizer.check_new_ledger(caller, request.custom)
        return ledger_message(await self._client.create_unowned_ledger(**create_arguments(request)))

    async def _close(self, request: pb.CloseRequest, caller: Caller) -> pb.Ledger:
        client, ledger_id = self._client, ledger_of(request)
        await self._authorizer.check_ledger(caller, Permission.WRITE, ledger_id)
        metadata = await client.ledger_metadata(ledger_id)
        client.authorize(metadata, request.password)
        stream = self._streams.get(ledger_id)
        if stream is not None:
            stream.close()
            await stream.closed()
            metadata = await client.ledger_metadata(ledger_id)
            if not metadata.closed:
                raise MetadataUnavailable(f"ledger {ledger_id} could not be closed: recover it")
        elif not metadata.closed:
            closing = self._context.tasks.spawn(
                self._close_unwritten(ledger_id, request.password), name=f"close-{ledger_id}"
            )
            # If the client disconnects now, the ledger, which has a writer again, must still be closed.
            return await asyncio.shield(closing)
        return ledger_message(metadata)

    async def _close_unwritten(self, ledger_id: int, password: bytes) -> pb.Ledger:
        async with await self._client.adopt_ledger(ledger_id, password=password) as writer:
            return ledger_message(await writer.close())

    async def _recover(self, request: pb.RecoverRequest, caller: Caller) -> pb.Ledger:
        ledger_id = ledger_of(request)
        await self._authorizer.check_ledger(caller, Permission.WRITE, ledger_id)
        audit_call(caller, "fence ledger", ledger_id=ledger_id)
        return ledger_message(await self._client.recover_ledger(ledger_id, password=request.password))

    async def _delete(self, request: pb.DeleteRequest, caller: Caller) -> pb.DeleteReply:
        ledger_id = ledger_of(request)
        await self._authorizer.check_ledger(caller, Permission.WRITE, ledger_id)
        audit_call(caller, "delete ledger", ledger_id=ledger_id)
        await self._client.delete_ledger(ledger_id, password=request.password, force=request.force)
        return pb.DeleteReply()

    async def _describe(self, request: pb.DescribeRequest, caller: Caller) -> pb.Ledger:
        ledger_id = ledger_of(request)
        await self._authorizer.check_ledger(caller, Permission.READ, ledger_id)
        metadata = await self._client.ledger_metadata(ledger_id)
        if metadata.closed:
            return ledger_message(metadata)
        reader = await self._client.open_ledger(ledger_id, password=request.password, recover=False)
        return ledger_message(reader.metadata, reader.last_add_confirmed)

    async def _list(self, request: pb.ListRequest, caller: Caller) -> pb.ListReply:
        # Limited principals are refused: their ledgers' names would have to be read one by one.
        self._authorizer.check_all_ledgers(caller, Permission.READ)
        after = _page_start(request.page_token)
        page = await self._client.world.store.list_ledgers(after, min(request.page_size or MAX_PAGE, MAX_PAGE))
        following = page.next_after()
        return pb.ListReply(ledger_ids=page.ledger_ids, next_page_token="" if following is None else str(following))


def _page_start(token: str) -> int:
    """The ledger id after which a page begins."""
    if not token:
        return -1
    decimal = token.isascii() and token.isdecimal() and len(token) <= len(str(MAX_ID))
    if not decimal or int(token) > MAX_ID:
        raise InvalidArgument("invalid page_token: pass the next_page_token of a List reply")
    return int(token)

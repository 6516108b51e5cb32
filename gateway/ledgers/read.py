"""The Read and Tail RPCs of ``LedgerService``: send entries at the pace at which the client takes them.

    bookies -> read-ahead (one read) -> current batches (one read) -> entries of a batch -> message -> client

This is all the memory that a slow reader uses; the call reserves it at its start. See ``outflow``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from functools import partial

from tallybook.core.access import Permission
from tallybook.core.batch import Entry, entries
from tallybook.core.ids import check_entry_id
from tallybook.proto import ledger_pb2 as pb

from ..auth import AuthorizedCall
from ..context import GatewayContext
from ..interceptor import send_in_time
from ..outflow import Outflow, message_bytes, reserved_bytes
from ..requests import request_of
from .messages import ledger_of


class LedgerReadCalls:
    """Serves Read and Tail calls."""

    def __init__(self, context: GatewayContext) -> None:
        self._client = context.client
        self._settings = context.settings
        self._limits = context.limits
        self._counts = context.counts
        self._authorizer = context.authorizer

    async def read(self, call: AuthorizedCall) -> None:
        """Serve one Read.

        Raises:
            TallybookError: the call failed.
        """
        request = await request_of(call, pb.ReadRequest)
        ledger_id = ledger_of(request)
        await self._authorizer.check_ledger(call.caller, Permission.READ, ledger_id)
        first, max_bytes = check_entry_id(request.first), message_bytes(request.max_bytes, self._settings)
        with self._limits.admit(call.caller, reserved_bytes(max_bytes, self._settings)):
            reader = await self._client.open_ledger(ledger_id, password=request.password, recover=False)
            last = request.last if request.HasField("last") else reader.last_add_confirmed
            if not request.HasField("last") and last < first:
                return
            message = self._outflow(call, max_bytes)
            async with aclosing(reader.read_sealed(first, last)) as pieces:
                async for piece in pieces:
                    for header, batch in piece:
                        await message.add(entries(batch, header, first, last))
            await message.flush()

    async def tail(self, call: AuthorizedCall) -> None:
        """Serve one Tail.

        Raises:
            TallybookError: the call failed.
        """
        request = await request_of(call, pb.TailRequest)
        ledger_id = ledger_of(request)
        await self._authorizer.check_ledger(call.caller, Permission.READ, ledger_id)
        first, max_bytes = check_entry_id(request.first), message_bytes(request.max_bytes, self._settings)
        with self._limits.admit(call.caller, reserved_bytes(max_bytes, self._settings)):
            reader = await self._client.open_ledger(ledger_id, password=request.password, recover=False)
            message = self._outflow(call, max_bytes)
            async with aclosing(reader.tail_batches(first)) as groups:
                async for group in groups:
                    await message.add(group)
                    # The next entry may come much later.
                    await message.flush()

    def _outflow(self, call: AuthorizedCall, max_bytes: int) -> Outflow[Entry]:
        return Outflow(
            partial(send_in_time, call, timeout_ms=self._settings.slow_reader_ms),
            max_bytes,
            self._counts,
            encode=_message,
            size_of=lambda entry: len(entry.payload),
            position_of=lambda entry: str(entry.entry_id),
            on_sent=self._sent,
        )

    def _sent(self, count: int) -> None:
        self._counts.read += count


def _message(group: Sequence[Entry]) -> pb.Entries:
    return pb.Entries(first_entry_id=group[0].entry_id, payloads=[entry.payload for entry in group])

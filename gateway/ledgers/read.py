"""Read and Tail: entries to a client, as fast as it takes them and no faster.

    bookies -> read ahead (one read) -> batches in hand (one read) -> entries of a batch -> message -> the client

That is all a slow reader holds; the stream has reserved it at the start. See ``outflow``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from functools import partial

from tallybook.client.client import Client
from tallybook.core.access import Permission
from tallybook.core.batch import Entry, entries
from tallybook.core.config import GatewaySettings
from tallybook.core.ids import check_entry_id
from tallybook.proto import ledger_pb2 as pb

from .authorizer import AuthorizedCall, Authorizer
from .counted import send_in_time
from .limits import Limits
from .messages import ledger_of, request_of
from .metrics import Counts
from .outflow import Outflow, message_bytes, reserved_bytes


class Readers:
    """Serves Read and Tail."""

    def __init__(
        self, client: Client, settings: GatewaySettings, limits: Limits, counts: Counts, authorizer: Authorizer
    ) -> None:
        self._client = client
        self._settings = settings
        self._limits = limits
        self._counts = counts
        self._authorizer = authorizer

    async def read(self, call: AuthorizedCall) -> None:
        """Serve one Read.

        Raises:
            TallybookError: why it ends.
        """
        request = await request_of(call, pb.ReadRequest)
        ledger_id = ledger_of(request)
        await self._authorizer.check_ledger(call.caller, Permission.READ, ledger_id)
        first, most = check_entry_id(request.first), message_bytes(request.max_bytes, self._settings)
        with self._limits.admit(call.caller, reserved_bytes(most, self._settings)):
            reader = await self._client.open_ledger(ledger_id, password=request.password, recover=False)
            last = request.last if request.HasField("last") else reader.last_add_confirmed
            if not request.HasField("last") and last < first:
                return
            message = self._outflow(call, most)
            async with aclosing(reader.read_sealed(first, last)) as pieces:
                async for piece in pieces:
                    for header, batch in piece:
                        await message.add(entries(batch, header, first, last))
            await message.flush()

    async def tail(self, call: AuthorizedCall) -> None:
        """Serve one Tail.

        Raises:
            TallybookError: why it ends.
        """
        request = await request_of(call, pb.TailRequest)
        ledger_id = ledger_of(request)
        await self._authorizer.check_ledger(call.caller, Permission.READ, ledger_id)
        first, most = check_entry_id(request.first), message_bytes(request.max_bytes, self._settings)
        with self._limits.admit(call.caller, reserved_bytes(most, self._settings)):
            reader = await self._client.open_ledger(ledger_id, password=request.password, recover=False)
            message = self._outflow(call, most)
            async with aclosing(reader.tail_batches(first)) as groups:
                async for group in groups:
                    await message.add(group)
                    # Nobody knows when there will be more.
                    await message.flush()

    def _outflow(self, call: AuthorizedCall, max_bytes: int) -> Outflow[Entry]:
        return Outflow(
            partial(send_in_time, call, timeout_ms=self._settings.slow_reader_ms),
            max_bytes,
            self._counts,
            encode=_message,
            size_of=lambda entry: len(entry.payload),
            place_of=lambda entry: str(entry.entry_id),
            on_sent=self._sent,
        )

    def _sent(self, count: int) -> None:
        self._counts.read += count


def _message(group: Sequence[Entry]) -> pb.Entries:
    return pb.Entries(first_entry_id=group[0].entry_id, payloads=[entry.payload for entry in group])

"""The Append RPC of ``LedgerService``: writes one ledger, from its open to its close.

    feed:  receive -> credit -> memory of the client's budget -> append each payload     never waits for an ack
    ack:   wait for the oldest message -> one ack for all that are durable by then       never waits for a payload

Both run concurrently until one fails, the client closes its side, or a Close call or a stop ends them. The ledger is
always closed afterwards: before the call ends if it succeeds, in the background if it fails.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tallybook.client.writer.appends import PendingAppend
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.access import Permission
from tallybook.core.errors import (
    Busy,
    EntryTooLarge,
    InvalidArgument,
    MetadataConflict,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    RequestTimeout,
    TallybookError,
)
from tallybook.core.limits import BATCH_TABLE_ROW_BYTES
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.proto import ledger_pb2 as pb
from tallybook.runtime.concurrency.backoff import jittered
from tallybook.runtime.logging import logger

from ..auth import AuthorizedCall, Caller
from ..bidirectional import AckPipeline
from ..context import GatewayContext
from ..credit import Credit, window_bytes
from ..interceptor import send_in_time
from ..limits import Reservation
from ..requests import decode, request_of
from .messages import create_arguments, ledger_message, window_message

_log = logger("gateway.append")

CLOSE_ATTEMPTS: Final = 5
CLOSE_PAUSE_S: Final = 1.0
LIMITS_SECONDS: Final = 1.0
"""How long to wait for the bookies of a ledger to report their entry size limits."""

_CLOSE_AGAIN: Final = (MetadataUnavailable, MetadataOutcomeUnknown, MetadataConflict, RequestTimeout)
"""Errors of a close that may not occur on the next attempt."""


class LedgerAppendCall:
    """The writer of one ledger on behalf of a client.

    Args:
        streams: the calls of the gateway that write or close a ledger, by ledger id.
    """

    def __init__(self, call: AuthorizedCall, context: GatewayContext, streams: dict[int, LedgerAppendCall]) -> None:
        self._call = call
        self._context = context
        self._streams = streams
        self._credit = Credit(0)
        self._pipeline: AckPipeline[PendingAppend] = AckPipeline(context.tasks)
        """The last payload of each unacknowledged message."""
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Serve the call to its end.

        Raises:
            TallybookError: the call failed; its ledger is closed in the background.
        """
        first = await request_of(self._call, pb.AppendRequest)
        if not first.HasField("open"):
            raise InvalidArgument("the first message of an Append stream must open a ledger")
        limits, caller = self._context.limits, self._call.caller
        await self._check(caller, first.open)
        free_bytes = limits.free_bytes(caller)
        self._credit = Credit(window_bytes(first.open.credit_bytes, self._context.settings, free_bytes))
        admission = limits.admit(caller, self._credit.window_bytes)
        opening = self._context.tasks.spawn(self._open(first.open), name="open")
        try:
            # If the client disconnects now, the ledger being created must still be closed.
            writer = await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._context.tasks.spawn(self._close_after_open(opening, admission), name="close")
            raise
        except BaseException:
            admission.end()
            raise
        await self._write(writer, first, admission)

    def close(self) -> None:
        """End the call as if the client had closed its side."""
        self._pipeline.close()

    async def closed(self) -> None:
        """Return when the ledger is closed, or could not be closed."""
        await self._over.wait()

    async def _check(self, caller: Caller, opening: pb.AppendOpen) -> None:
        """Check that the caller may create or open this ledger."""
        kind = opening.WhichOneof("ledger")
        if kind is None:
            raise InvalidArgument("an Append stream must name a ledger, or say how to create one")
        if kind == "create":
            self._context.authorizer.check_new_ledger(caller, opening.create.custom)
        else:
            await self._context.authorizer.check_ledger(caller, Permission.WRITE, opening.ledger_id)

    # -- opening ----------------------------------------------------------------------

    async def _open(self, opening: pb.AppendOpen) -> LedgerWriter:
        client = self._context.client
        if opening.HasField("create"):
            return await client.create_ledger(**create_arguments(opening.create))
        return await client.adopt_ledger(opening.ledger_id, password=opening.password)

    async def _close_after_open(self, opening: asyncio.Task[LedgerWriter], admission: Reservation) -> None:
        await asyncio.wait([opening])
        if opening.cancelled() or opening.exception() is not None:
            admission.end()
            return
        self._begin(opening.result())
        await self._close_in_background(opening.result(), admission)

    def _begin(self, writer: LedgerWriter) -> None:
        self._streams[writer.id] = self
        self._context.counts.writing += 1

    # -- writing ----------------------------------------------------------------------

    async def _write(self, writer: LedgerWriter, first: pb.AppendRequest, admission: Reservation) -> None:
        self._begin(writer)
        self._call.caller.log_fields["ledger_id"] = writer.id
        closed: LedgerMetadata | None = None
        try:
            # An entry over a limit not yet known would fail the ledger, with all entries in flight.
            await writer.wait_for_limits(LIMITS_SECONDS)
            window = window_message(self._credit, writer.max_entry_bytes)
            opened = pb.AppendOpened(ledger_id=writer.id, window=window)
            await self._reply(pb.AppendReply(opened=opened))
            await self._pipeline.run(self._feed(writer, first), self._acknowledge(), str(writer.id))
            closed = await writer.close()
        finally:
            if closed is None:
                self._context.tasks.spawn(self._close_in_background(writer, admission), name=f"close-{writer.id}")
            else:
                self._end(writer, admission)
        await self._reply(pb.AppendReply(closed=ledger_message(closed)))

    async def _feed(self, writer: LedgerWriter, request: pb.AppendRequest) -> None:
        call = self._call
        while True:
            payloads = list(request.payloads)
            if payloads:
                await self._append(writer, payloads)
            if request.HasField("close"):
                return
            raw = await call.receive()
            if raw is None:
                return
            request = decode(pb.AppendRequest, raw)
            if request.HasField("open"):
                raise InvalidArgument("an Append stream opens one ledger, in its first message")

    async def _append(self, writer: LedgerWriter, payloads: list[bytes]) -> None:
        """Append the payloads of one message; waits only for memory for all of them."""
        sizes = list(map(len, payloads))
        _check_fits(writer, max(sizes))
        count = len(payloads)
        cost = self._credit.take(count, sum(sizes))
        needed_bytes = sum(sizes) + count * BATCH_TABLE_ROW_BYTES
        budget = self._context.client.budget
        if not budget.try_take(needed_bytes):
            await self._take_budget(needed_bytes)
        append = writer.append_held
        appended: list[PendingAppend] = []
        try:
            # The ensemble, and so the limit, may have changed during the wait.
            _check_fits(writer, max(sizes))
            for payload, size in zip(payloads, sizes, strict=True):
                appended.append(append(payload, size + BATCH_TABLE_ROW_BYTES))
        finally:
            # Return the memory of payloads that the writer refused because it has failed.
            rest = sizes[len(appended) :]
            if rest:
                budget.give(sum(rest) + len(rest) * BATCH_TABLE_ROW_BYTES)
        self._credit.sent(appended[0].entry_id, count, cost)
        self._pipeline.put(appended[-1])

    async def _take_budget(self, needed_bytes: int) -> None:
        timeout_ms = self._context.settings.client.add_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._context.client.budget.take(needed_bytes)
        except TimeoutError:
            raise Busy(
                f"no memory for {needed_bytes} bytes within {timeout_ms} ms: the bookies do not keep up; nothing "
                "of this message was appended",
                retry_after_ms=timeout_ms,
            ) from None

    async def _acknowledge(self) -> None:
        """Acknowledge durable messages until no more can come."""
        pending, credit, counts = self._pipeline.queue, self._credit, self._context.counts
        while (oldest := await self._pipeline.next()) is not None:
            last = await oldest
            # Entries are confirmed in order, one batch at a time.
            while pending and pending[0].done and pending[0].group.error is None:
                last = pending.popleft().entry_id
            ack = credit.confirmed(last)
            if ack is not None:
                counts.appended += ack.entry_count
                ack_message = pb.AppendAck(
                    first_entry_id=ack.first_entry_id, count=ack.entry_count, credit_bytes=ack.credit_bytes
                )
                await self._reply(pb.AppendReply(ack=ack_message))

    async def _reply(self, reply: pb.AppendReply) -> None:
        await send_in_time(self._call, reply.SerializeToString(), self._context.settings.slow_reader_ms)

    # -- the end ----------------------------------------------------------------------

    async def _close_in_background(self, writer: LedgerWriter, admission: Reservation) -> None:
        """Close the ledger of an ended call at its last confirmed entry."""
        try:
            error = await self._try_to_close(writer)
            if error is None:
                last = writer.last_add_confirmed
                _log.info("ledger closed behind its client", ledger_id=writer.id, last_entry_id=last)
            else:
                self._context.counts.left_open += 1
                _log.warning("ledger not closed", ledger_id=writer.id, error=error.message)
        finally:
            writer.abandon()
            self._end(writer, admission)

    async def _try_to_close(self, writer: LedgerWriter) -> TallybookError | None:
        failure: TallybookError | None = None
        for attempt in range(CLOSE_ATTEMPTS):
            if attempt:
                await self._context.clock.sleep(jittered(self._context.client.world.rng, CLOSE_PAUSE_S))
            try:
                await writer.close()
            except _CLOSE_AGAIN as error:
                failure = error
            except TallybookError as error:
                return error
            else:
                return None
        return failure

    def _end(self, writer: LedgerWriter, admission: Reservation) -> None:
        admission.end()
        self._context.counts.writing -= 1
        del self._streams[writer.id]
        self._over.set()


def _check_fits(writer: LedgerWriter, largest: int) -> None:
    limit = writer.max_entry_bytes
    if largest > limit:
        raise EntryTooLarge(f"a payload of {largest} bytes exceeds the limit of {limit}; nothing was appended")

"""One Append stream: from the open to the close of its ledger.

    feed:  receive -> credit -> room in the client's budget -> append each payload     nothing waits for an ack
    ack:   wait for the oldest message -> one ack for all that are durable by then     nothing waits for a payload

The two run side by side until one fails, the client is through, or somebody wants the ledger closed. Whatever happened,
the ledger is closed then: before the stream ends where it ends well, or else behind it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.client.writer.pending import PendingAppend
from tallybook.core.access import Permission
from tallybook.core.config import GatewaySettings
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
from tallybook.metadata.model import LedgerMetadata
from tallybook.proto import ledger_pb2 as pb
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks

from .authorizer import AuthorizedCall, Authorizer, Caller
from .counted import send_in_time
from .credit import Credit, window_bytes
from .limits import Admission, Limits
from .messages import creation, decode, described, request_of, shown_window
from .metrics import Counts
from .twoway import TwoWay

_log = logger("gateway.append")

CLOSE_ATTEMPTS: Final = 5
CLOSE_PAUSE_S: Final = 1.0
LIMITS_SECONDS: Final = 1.0
"""How long the bookies of a ledger are waited for, to say how large an entry may be."""

_CLOSE_AGAIN: Final = (MetadataUnavailable, MetadataOutcomeUnknown, MetadataConflict, RequestTimeout)
"""What kept a close from settling that may not do so the next time."""


@dataclass(frozen=True, slots=True)
class AppendContext:
    """What a stream shares with the others of its gateway."""

    client: Client
    settings: GatewaySettings
    limits: Limits
    counts: Counts
    clock: Clock
    tasks: Tasks
    authorizer: Authorizer
    streams: dict[int, AppendStream]
    """Those that write a ledger, or are closing it, by ledger id."""


class AppendStream:
    """The writer of one ledger on behalf of a client."""

    def __init__(self, call: AuthorizedCall, context: AppendContext) -> None:
        self._call = call
        self._context = context
        self._credit = Credit(0)
        self._ways: TwoWay[PendingAppend] = TwoWay(context.tasks)
        """The last payload of each message that is not acknowledged."""
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Serve the stream to its end.

        Raises:
            TallybookError: why it ends; its ledger is being closed.
        """
        first = await request_of(self._call, pb.AppendRequest)
        if not first.HasField("open"):
            raise InvalidArgument("the first message of an Append stream must open a ledger")
        limits, caller = self._context.limits, self._call.caller
        await self._check(caller, first.open)
        room = limits.room_bytes(caller)
        self._credit = Credit(window_bytes(first.open.credit_bytes, self._context.settings, room))
        admission = limits.admit(caller, self._credit.window_bytes)
        opening = self._context.tasks.spawn(self._open(first.open), name="open")
        try:
            # A client that goes away in the middle must not leave a ledger behind that nobody closes.
            writer = await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._context.tasks.spawn(self._close_what_opens(opening, admission), name="close")
            raise
        except BaseException:
            admission.end()
            raise
        await self._write(writer, first, admission)

    def close(self) -> None:
        """Ask for the end of the stream, as if its client had."""
        self._ways.close()

    async def closed(self) -> None:
        """Return when the ledger is closed, or left open because it could not be."""
        await self._over.wait()

    async def _check(self, caller: Caller, opening: pb.AppendOpen) -> None:
        """See that a caller may open this ledger, and that there is such a ledger."""
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
            return await client.create_ledger(**creation(opening.create))
        return await client.adopt_ledger(opening.ledger_id, password=opening.password)

    async def _close_what_opens(self, opening: asyncio.Task[LedgerWriter], admission: Admission) -> None:
        await asyncio.wait([opening])
        if opening.cancelled() or opening.exception() is not None:
            admission.end()
            return
        self._begin(opening.result())
        await self._close_behind(opening.result(), admission)

    def _begin(self, writer: LedgerWriter) -> None:
        self._context.streams[writer.id] = self
        self._context.counts.writing += 1

    # -- writing ----------------------------------------------------------------------

    async def _write(self, writer: LedgerWriter, first: pb.AppendRequest, admission: Admission) -> None:
        self._begin(writer)
        self._call.caller.about["ledger_id"] = writer.id
        closed: LedgerMetadata | None = None
        try:
            # What comes before they have said it could end the ledger, with all that is on its way.
            await writer.wait_for_limits(LIMITS_SECONDS)
            window = shown_window(self._credit, writer.max_entry_bytes)
            opened = pb.AppendOpened(ledger_id=writer.id, window=window)
            await self._tell(pb.AppendReply(opened=opened))
            await self._ways.run(self._feed(writer, first), self._acknowledge(), str(writer.id))
            closed = await writer.close()
        finally:
            if closed is None:
                self._context.tasks.spawn(self._close_behind(writer, admission), name=f"close-{writer.id}")
            else:
                self._end(writer, admission)
        await self._tell(pb.AppendReply(closed=described(closed)))

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
        """Append the payloads of one message; wait for nothing but room for all of them."""
        sizes = list(map(len, payloads))
        _check_fits(writer, max(sizes))
        count = len(payloads)
        cost = self._credit.take(count, sum(sizes))
        room = sum(sizes) + count * BATCH_TABLE_ROW_BYTES
        budget = self._context.client.budget
        if not budget.try_take(room):
            await self._take_room(room)
        append = writer.append_held
        appended: list[PendingAppend] = []
        try:
            # Other bookies, with other limits, may have come while it waited.
            _check_fits(writer, max(sizes))
            for payload, size in zip(payloads, sizes, strict=True):
                appended.append(append(payload, size + BATCH_TABLE_ROW_BYTES))
        finally:
            # What a writer refuses that has died meanwhile is given back.
            rest = sizes[len(appended) :]
            if rest:
                budget.give(sum(rest) + len(rest) * BATCH_TABLE_ROW_BYTES)
        self._credit.sent(appended[0].entry_id, count, cost)
        self._ways.put(appended[-1])

    async def _take_room(self, room: int) -> None:
        timeout_ms = self._context.settings.client.add_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._context.client.budget.take(room)
        except TimeoutError:
            raise Busy(
                f"no room for {room} bytes within {timeout_ms} ms: the servers do not keep up; nothing of this message "
                "was appended",
                retry_after_ms=timeout_ms,
            ) from None

    async def _acknowledge(self) -> None:
        """Tell the client what is durable, until nothing more can come."""
        pending, credit, counts = self._ways.line, self._credit, self._context.counts
        while (oldest := await self._ways.next()) is not None:
            last = await oldest
            # Entries are confirmed in order, and a batch of them at a time.
            while pending and pending[0].done and pending[0].group.error is None:
                last = pending.popleft().entry_id
            ack = credit.settled(last)
            if ack is not None:
                counts.appended += ack.entry_count
                told = pb.AppendAck(
                    first_entry_id=ack.first_entry_id, count=ack.entry_count, credit_bytes=ack.credit_bytes
                )
                await self._tell(pb.AppendReply(ack=told))

    async def _tell(self, reply: pb.AppendReply) -> None:
        await send_in_time(self._call, reply.SerializeToString(), self._context.settings.slow_reader_ms)

    # -- the end ----------------------------------------------------------------------

    async def _close_behind(self, writer: LedgerWriter, admission: Admission) -> None:
        """Close the ledger of a stream that is over, at its last confirmed entry."""
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
                await self._context.clock.sleep(CLOSE_PAUSE_S)
            try:
                await writer.close()
            except _CLOSE_AGAIN as error:
                failure = error
            except TallybookError as error:
                return error
            else:
                return None
        return failure

    def _end(self, writer: LedgerWriter, admission: Admission) -> None:
        admission.end()
        self._context.counts.writing -= 1
        del self._context.streams[writer.id]
        self._over.set()


def _check_fits(writer: LedgerWriter, largest: int) -> None:
    most = writer.max_entry_bytes
    if largest > most:
        raise EntryTooLarge(f"a payload of {largest} bytes exceeds the limit of {most}; nothing was appended")

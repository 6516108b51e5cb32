"""A bookie on the wire: serves a ``LedgerStore`` to clients over any transport.

Each client opens one stream per lane. What they have in common is here: how many there may
be, the hello, and how a stream ends. What flows on them afterwards is in ``add_lane`` (adds
and acks) and ``request_lane`` (reads, fences, recovery); docs/formats/wire.md shows it.

Where access is controlled, who a client is comes first: who is not let in takes no place and hears nothing of the
bookie. The lanes see to what the others may do. Streams live as long as their clients, so who that is, is looked at
again while they are served: they end, or are served by the rights of now.

A stream belongs to one life of the bookie. A client that means another
life hears StaleIncarnation before any of its work is looked at. Whatever a client does, its stream is
all that suffers: a message that the protocol forbids ends the stream, with a line in the log, if it has none for
another one just now, and a peer that stops reading ties up no more than the credits of its stream, and not for
long what it shares with others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from tallybook.core.access import Access, OpenAccess, Permission, Principal
from tallybook.core.config import BookieSettings
from tallybook.core.errors import (
    AccessDenied,
    BookieUnavailable,
    Busy,
    InvalidConfig,
    InvariantViolation,
    ProtocolViolation,
    RequestTimeout,
    StaleIncarnation,
    TallybookError,
    Unauthenticated,
)
from tallybook.core.limits import MAX_BATCH_BYTES
from tallybook.core.marks import sometimes
from tallybook.runtime.allowance import Allowance
from tallybook.runtime.allowed import while_allowed
from tallybook.runtime.clock import Clock
from tallybook.runtime.grpc_messages import Hello, Welcome, decode_hello, encode_refusal, encode_welcome
from tallybook.runtime.logging import logger
from tallybook.runtime.meter import Reading
from tallybook.runtime.refusals import Refusals
from tallybook.runtime.seldom import Seldom
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing import NO_TRACER, Tracer
from tallybook.runtime.transport import Lane, MessageStream
from tallybook.runtime.under_way import UnderWay
from tallybook.runtime.wire import MAX_ADD_COST_BYTES, MAX_ATTACHED_LEDGERS
from tallybook.runtime.wire_versions import agreed

from .add_lane import AddLane
from .admission import RECOVERY_SHARE
from .port import LedgerStore
from .request_lane import ANSWER_BYTES, MAX_REQUESTS, MAX_WAITS, RequestLane
from .service_load import ServiceLoad
from .shares import Share, Shares

HELLO_TIMEOUT_SECONDS: Final = 10.0
REFUSAL_TIMEOUT_SECONDS: Final = 5.0
"""How long a peer may take to accept the reason for which its stream ends."""
PARTING_SECONDS: Final = 1.0
"""How long a client that is not let in may take to send its hello."""

_log = logger("bookie.service")


class _LaneServer(Protocol):
    """What serves a stream after the hello."""

    async def serve(self) -> None:
        """Return when the client ended the stream; raise what ends it otherwise."""

    def act_for(self, principal: Principal) -> None:
        """From now on, whoever is at the other end may do what this principal may."""


class BookieService:
    """Serves one bookie. ``accept`` is what a transport's ``listen`` wants.

    Args:
        cluster_id: clients of another cluster are refused; empty refuses nobody.
        fail_safe: ends the node; called with the reason when a defect shows that it cannot keep its promises.
        access: tells who a client is.
        tracer: follows clients that have something traced.
        refusals: those of the process, where it refuses elsewhere, too.
        under_way: the same of what is asked.
    """

    def __init__(
        self,
        store: LedgerStore,
        settings: BookieSettings,
        clock: Clock,
        tasks: Tasks,
        cluster_id: str,
        fail_safe: Callable[[str], None],
        access: Access | None = None,
        tracer: Tracer = NO_TRACER,
        refusals: Refusals | None = None,
        under_way: UnderWay | None = None,
    ) -> None:
        self._tracer = tracer
        self._store = store
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._cluster_id = cluster_id
        self._fail_safe = fail_safe
        self._access = access or OpenAccess()
        self._refusals = refusals or Refusals(clock, self._access)
        self._lines = Seldom()
        self._streams = dict.fromkeys(Lane, 0)
        self._load = ServiceLoad(clock)
        credit_bytes = max(int(settings.admission.stream_credit_bytes), MAX_ADD_COST_BYTES)
        self._shares = Shares(Share(credit_bytes, ANSWER_BYTES, MAX_REQUESTS, MAX_WAITS), under_way)
        read_bytes = int(settings.admission.max_read_bytes)
        self._answer_bytes = {
            Lane.READ: Allowance(read_bytes),
            # A reserve for recovery, whatever readers do.
            Lane.CONTROL: Allowance(max(read_bytes // RECOVERY_SHARE, MAX_BATCH_BYTES)),
        }

    @property
    def stream_count(self) -> int:
        """Streams served now."""
        return sum(self._streams.values())

    @property
    def answer_bytes(self) -> int:
        """Bytes of answers being read or waiting to be sent, over all streams."""
        return sum(allowance.in_use for allowance in self._answer_bytes.values())

    def readings(self) -> dict[str, Reading]:
        """Numbers for metrics: who is connected, and what is asked."""
        return {
            "streams": self.stream_count,
            "max_streams": self._settings.admission.max_streams,
            "connections": self._streams[Lane.ADD],
            "answer_bytes": self.answer_bytes,
            "max_answer_bytes": sum(allowance.total for allowance in self._answer_bytes.values()),
            **self._load.readings(),
        }

    async def accept(self, lane: Lane, stream: MessageStream) -> None:
        """Serve one stream until it ends."""
        try:
            principal = self._principal(stream)
        except (Unauthenticated, AccessDenied) as error:
            # The audit log tells it, in few lines.
            self._refusals.note(error, stream.presented, stream.peer, f"bookie {lane.value}")
            await self._turn_away(stream, error)
            return
        await self._accept(lane, stream, principal)

    def _principal(self, stream: MessageStream) -> Principal:
        """Who is at the other end, by the rules of now.

        Raises:
            Unauthenticated, AccessDenied: nobody who may have a stream.
        """
        principal = self._access.principal(stream.presented)
        principal.check_everywhere(Permission.READ)
        return principal

    async def _accept(self, lane: Lane, stream: MessageStream, principal: Principal) -> None:
        self._streams[lane] += 1
        client = ""
        try:
            hello = await self._hello(stream)
            client = hello.client_id
            version = self._checked(hello)
            with self._shares.share(principal, lane) as share:
                await self._serve(lane, stream, version, principal, share)
        except BookieUnavailable:
            _log.debug("stream lost", lane=lane.value, peer=stream.peer, client_id=client)
        except InvariantViolation as error:
            _log.defect("stream failed", error, lane=lane.value, peer=stream.peer, client_id=client)
            self._fail_safe(f"a stream of lane {lane.value} failed: {error!r}")
            await self._refuse(stream, error)
        except (Unauthenticated, AccessDenied) as error:
            self._refusals.note(error, stream.presented, stream.peer, f"bookie {lane.value}", principal)
            await self._refuse(stream, error)
        except TallybookError as error:
            self._tell(error, lane, stream.peer, client)
            await self._refuse(stream, error)
        finally:
            self._streams[lane] -= 1

    def _tell(self, error: TallybookError, lane: Lane, peer: str, client: str) -> None:
        """Log that a stream is refused, unless one like it just was: a client may come again at once."""
        what = type(error).__name__
        untold = self._lines.due(self._clock.monotonic(), (lane, what))
        if untold is None:
            return
        say = _log.warning if isinstance(error, ProtocolViolation) else _log.info
        about = {"lane": lane.value, "peer": peer, "client_id": client, "error_type": what, "error": error.message}
        say("stream refused", **about, untold_count=untold)

    async def _hello(self, stream: MessageStream) -> Hello:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_SECONDS):
                first = await stream.receive()
        except TimeoutError:
            raise RequestTimeout(f"no hello within {HELLO_TIMEOUT_SECONDS} s") from None
        if first is None:
            raise BookieUnavailable("ended before its hello")
        return decode_hello(first)

    def _checked(self, hello: Hello) -> int:
        """The version to speak with this client, or what it is refused with."""
        if self.stream_count > self._settings.admission.max_streams:
            raise Busy(f"{self._store.bookie_id} serves as many streams as it may", retry_after_ms=1000)
        version = agreed(hello.versions)
        if self._cluster_id and hello.cluster_id and hello.cluster_id != self._cluster_id:
            raise InvalidConfig(f"{self._store.bookie_id} is not of cluster {hello.cluster_id!r}")
        current = self._store.incarnation
        if hello.expected is not None and hello.expected != current:
            sometimes("service: meant for another life")
            raise StaleIncarnation(
                f"{self._store.bookie_id} lives as {current.directory_uuid} boot {current.boot}, "
                f"not as {hello.expected.directory_uuid} boot {hello.expected.boot}"
            )
        return version

    async def _serve(self, lane: Lane, stream: MessageStream, version: int, principal: Principal, share: Share) -> None:
        store, tasks = self._store, self._tasks
        granted = (share.credit_bytes, share.requests, share.waits)
        welcome = Welcome(
            store.bookie_id,
            store.incarnation,
            *granted,
            protocol_version=version,
            max_batch_bytes=store.max_batch_bytes,
            max_attached=MAX_ATTACHED_LEDGERS if lane is Lane.ADD else 0,
        )
        await stream.send(encode_welcome(welcome))
        server: _LaneServer
        if lane is Lane.ADD:
            server = AddLane(
                store,
                stream,
                self._clock,
                tasks,
                self._fail_safe,
                share.credit_bytes,
                principal,
                self._load,
                self._tracer,
                self._refusals,
            )
        else:
            room = self._answer_bytes[lane]
            server = RequestLane(
                lane,
                store,
                stream,
                tasks,
                self._fail_safe,
                principal,
                share,
                room,
                self._load,
                self._tracer,
                self._refusals,
            )

        async def look() -> Principal:
            found = self._principal(stream)
            server.act_for(found)
            return found

        await while_allowed(server.serve(), principal, look, self._clock)

    async def _turn_away(self, stream: MessageStream, error: TallybookError) -> None:
        """Refuse somebody who has said nothing yet."""
        await self._refuse(stream, error)
        try:
            # On a stream that has ended the client could not send it, and would take that for the reason.
            async with asyncio.timeout(PARTING_SECONDS):
                await stream.receive()
        except (TimeoutError, BookieUnavailable):
            return

    async def _refuse(self, stream: MessageStream, error: TallybookError) -> None:
        """Tell the peer why its stream ends, if it still listens."""
        self._load.errors.count(error.wire_code)
        try:
            async with asyncio.timeout(REFUSAL_TIMEOUT_SECONDS):
                await stream.send(encode_refusal(error))
        except (TimeoutError, BookieUnavailable):
            stream.abort()

"""Serves a ``LedgerStore`` to clients over any transport.

Each client opens one stream per lane. This module has what they share: the limit of streams, the hello, access control,
and the end of a stream. ``add_stream`` and ``request_stream`` serve a stream afterwards; docs/reference/formats/wire.md
has the protocol.

Where access is controlled, authentication comes first: a client that fails it occupies no slot and learns nothing about
the bookie. Streams live as long as their clients, so authorization is checked again while they are served.

A stream belongs to one incarnation of the bookie: a client that means another one gets StaleIncarnation. A client can
harm only its own stream: a message that violates the protocol ends the stream with a rate-limited log line, and a peer
that stops reading holds no more than the credits of its stream, and shared memory only for a short time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from tallybook.core.access import Access, OpenAccess, Permission, Principal
from tallybook.core.coverage import sometimes
from tallybook.core.errors import (
    AccessDenied,
    Busy,
    InvalidConfig,
    InvariantViolation,
    PeerUnavailable,
    ProtocolViolation,
    RequestTimeout,
    StaleIncarnation,
    TallybookError,
    Unauthenticated,
)
from tallybook.core.limits import MAX_BATCH_BYTES
from tallybook.core.settings import BookieSettings
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.weighted_semaphore import WeightedSemaphore
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.runtime.metrics.usage import MetricValue
from tallybook.runtime.rate_limited_log import LogRateLimiter
from tallybook.runtime.security.denial_log import DenialLog
from tallybook.runtime.security.in_flight import RequestsInFlight
from tallybook.runtime.security.reauthorization import run_while_authorized
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing.port import NO_TRACER, Tracer
from tallybook.runtime.transport import MessageStream
from tallybook.wire.batches import MAX_ADD_COST_BYTES, MAX_ATTACHED_LEDGERS
from tallybook.wire.lanes import Lane
from tallybook.wire.messages import Hello, Welcome, decode_hello, encode_refusal, encode_welcome
from tallybook.wire.versions import agreed

from ..port import LedgerStore
from ..write.admission import RECOVERY_SHARE
from . import load
from .add_stream import AddStreamServer
from .load import ServiceLoad
from .principal_quota import PrincipalQuotas, StreamQuota
from .request_stream import ANSWER_BYTES, MAX_REQUESTS, MAX_WAITS, RequestStreamServer

HELLO_TIMEOUT_SECONDS: Final = 10.0
REFUSAL_TIMEOUT_SECONDS: Final = 5.0
"""How long a peer may take to receive the error that ends its stream."""
REFUSED_HELLO_SECONDS: Final = 1.0
"""How long a client that is refused may take to send its hello."""

_log = logger("bookie.service")


class _StreamServer(Protocol):
    """Serves a stream after the hello."""

    async def serve(self) -> None:
        """Return when the client ended the stream; raise the error that ends it otherwise."""

    def act_for(self, principal: Principal) -> None:
        """Apply the current permissions of the caller from now on."""


class BookieService:
    """Serves one bookie. ``accept`` is the handler for a transport's ``listen``.

    Args:
        cluster_id: clients of another cluster are refused; if empty, none is.
        fail_safe: ends the process; called with the reason when a defect shows that it cannot keep its promises.
        access: authenticates and authorizes clients.
        tracer: continues traces of clients.
        denials: audit log, if shared with other services of the process.
        in_flight: counter of requests, likewise.
        tcp_port: port on which ``accept`` also takes streams over TCP; 0: none.
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
        denials: DenialLog | None = None,
        in_flight: RequestsInFlight | None = None,
        tcp_port: int = 0,
    ) -> None:
        self._tcp_port = tcp_port
        self._tracer = tracer
        self._store = store
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._cluster_id = cluster_id
        self._fail_safe = fail_safe
        self._access = access or OpenAccess()
        self._denials = denials or DenialLog(clock, self._access)
        self._lines = LogRateLimiter()
        self._streams = dict.fromkeys(Lane, 0)
        self.load = ServiceLoad(clock)
        self.max_streams = settings.admission.max_streams
        credit_bytes = max(int(settings.admission.stream_credit_bytes), MAX_ADD_COST_BYTES)
        self._shares = PrincipalQuotas(StreamQuota(credit_bytes, ANSWER_BYTES, MAX_REQUESTS, MAX_WAITS), in_flight)
        read_bytes = int(settings.admission.max_read_bytes)
        self._answer_bytes = {
            Lane.READ: WeightedSemaphore(read_bytes),
            # A reserve for recovery, independent of readers.
            Lane.CONTROL: WeightedSemaphore(max(read_bytes // RECOVERY_SHARE, MAX_BATCH_BYTES)),
        }

    @property
    def stream_count(self) -> int:
        """Streams served now."""
        return sum(self._streams.values())

    @property
    def connection_count(self) -> int:
        """Connected clients."""
        return self._streams[Lane.ADD]

    @property
    def max_answer_bytes(self) -> int:
        """Maximum of ``answer_bytes``."""
        return sum(allowance.total for allowance in self._answer_bytes.values())

    @property
    def answer_bytes(self) -> int:
        """Bytes of answers being read or waiting to be sent, over all streams."""
        return sum(allowance.in_use for allowance in self._answer_bytes.values())

    def readings(self) -> dict[str, MetricValue]:
        """Values of ``METRICS``."""
        return METRICS.readings(self)

    async def accept(self, kind: str, stream: MessageStream) -> None:
        """Serve one stream until it ends."""
        lane = Lane(kind)
        try:
            principal = self._principal(stream)
        except (Unauthenticated, AccessDenied) as error:
            # The audit log reports it, rate-limited.
            self._denials.note(error, stream.presented, stream.peer, f"bookie {lane.value}")
            await self._refuse_before_hello(stream, error)
            return
        await self._accept(lane, stream, principal)

    def _principal(self, stream: MessageStream) -> Principal:
        """Authenticate and authorize the peer by the current rules.

        Raises:
            Unauthenticated, AccessDenied: the peer must not have a stream.
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
        except PeerUnavailable:
            _log.debug("stream lost", lane=lane.value, peer=stream.peer, client_id=client)
        except InvariantViolation as error:
            _log.defect("stream failed", error, lane=lane.value, peer=stream.peer, client_id=client)
            self._fail_safe(f"a stream of lane {lane.value} failed: {error!r}")
            await self._refuse(stream, error)
        except (Unauthenticated, AccessDenied) as error:
            self._denials.note(error, stream.presented, stream.peer, f"bookie {lane.value}", principal)
            await self._refuse(stream, error)
        except TallybookError as error:
            self._log_refused(error, lane, stream.peer, client)
            await self._refuse(stream, error)
        finally:
            self._streams[lane] -= 1

    def _log_refused(self, error: TallybookError, lane: Lane, peer: str, client: str) -> None:
        """Log that a stream is refused, rate-limited, since a client may reconnect at once."""
        what = type(error).__name__
        suppressed = self._lines.due(self._clock.monotonic(), (lane, what))
        if suppressed is None:
            return
        say = _log.warning if isinstance(error, ProtocolViolation) else _log.info
        about = {"lane": lane.value, "peer": peer, "client_id": client, "error_type": what, "error": error.message}
        say("stream refused", **about, untold_count=suppressed)

    async def _hello(self, stream: MessageStream) -> Hello:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_SECONDS):
                first = await stream.receive()
        except TimeoutError:
            raise RequestTimeout(f"no hello within {HELLO_TIMEOUT_SECONDS} s") from None
        if first is None:
            raise PeerUnavailable("the stream ended before its hello")
        return decode_hello(first)

    def _checked(self, hello: Hello) -> int:
        """Check the hello; returns the protocol version to use with this client."""
        if self.stream_count > self.max_streams:
            raise Busy(f"{self._store.bookie_id} serves its maximum number of streams", retry_after_ms=1000)
        version = agreed(hello.versions)
        if self._cluster_id and hello.cluster_id and hello.cluster_id != self._cluster_id:
            raise InvalidConfig(f"{self._store.bookie_id} is not of cluster {hello.cluster_id!r}")
        current = self._store.incarnation
        if hello.expected is not None and hello.expected != current:
            sometimes("service: request for another incarnation")
            raise StaleIncarnation(
                f"{self._store.bookie_id} runs with directory {current.directory_uuid}, boot {current.boot}, "
                f"not with {hello.expected.directory_uuid}, boot {hello.expected.boot}"
            )
        return version

    async def _serve(
        self, lane: Lane, stream: MessageStream, version: int, principal: Principal, share: StreamQuota
    ) -> None:
        store, tasks = self._store, self._tasks
        granted = (share.credit_bytes, share.requests, share.waits)
        welcome = Welcome(
            store.bookie_id,
            store.incarnation,
            *granted,
            protocol_version=version,
            max_batch_bytes=store.max_batch_bytes,
            max_attached=MAX_ATTACHED_LEDGERS if lane is Lane.ADD else 0,
            tcp_port=self._tcp_port,
        )
        await stream.send(encode_welcome(welcome))
        server: _StreamServer
        if lane is Lane.ADD:
            server = AddStreamServer(
                store,
                stream,
                self._clock,
                tasks,
                self._fail_safe,
                share.credit_bytes,
                principal,
                self.load,
                self._tracer,
                self._denials,
            )
        else:
            budget = self._answer_bytes[lane]
            server = RequestStreamServer(
                lane,
                store,
                stream,
                tasks,
                self._fail_safe,
                principal,
                share,
                budget,
                self.load,
                self._tracer,
                self._denials,
            )

        async def authorize() -> Principal:
            found = self._principal(stream)
            server.act_for(found)
            return found

        await run_while_authorized(server.serve(), principal, authorize, self._clock)

    async def _refuse_before_hello(self, stream: MessageStream, error: TallybookError) -> None:
        """Refuse a peer that has not sent its hello."""
        await self._refuse(stream, error)
        try:
            # Otherwise the client could not send its hello, and would report that instead of the reason.
            async with asyncio.timeout(REFUSED_HELLO_SECONDS):
                await stream.receive()
        except (TimeoutError, PeerUnavailable):
            return

    async def _refuse(self, stream: MessageStream, error: TallybookError) -> None:
        """Send the peer the error that ends its stream, if it still reads."""
        self.load.errors.count(error.wire_code)
        try:
            async with asyncio.timeout(REFUSAL_TIMEOUT_SECONDS):
                await stream.send(encode_refusal(error))
        except (TimeoutError, PeerUnavailable):
            stream.abort()


METRICS: Final = (
    PartMetrics[BookieService]()
    .gauge(
        "streams",
        "tallybook_bookie_streams",
        "Open client streams: three for each connection.",
        lambda service: service.stream_count,
    )
    .gauge(
        "max_streams",
        "tallybook_bookie_max_streams",
        "Maximum number of client streams.",
        lambda service: service.max_streams,
    )
    .gauge(
        "connections", "tallybook_bookie_connections", "Connected clients.", lambda service: service.connection_count
    )
    .gauge(
        "answer_bytes",
        "tallybook_bookie_answer_bytes",
        "Bytes of answers to reads that are being read or wait to be sent.",
        lambda service: service.answer_bytes,
    )
    .gauge(
        "max_answer_bytes",
        "tallybook_bookie_max_answer_bytes",
        "Maximum bytes of answers.",
        lambda service: service.max_answer_bytes,
    )
    .of(load.METRICS, lambda service: service.load)
)

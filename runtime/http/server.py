"""The HTTP server of a process: health, readiness, metrics and further endpoints.

    /healthz   200 while the process runs
    /readyz    200 once it serves, else 503 with the reason
    /metrics   metrics in the Prometheus text format

``RequestFilter`` checks every request; ``EndpointGuard`` serves the endpoints of ``HttpApi``. With security, the server
uses TLS and metrics need the permission to read everything; health and readiness need no authentication. Without
security, administration is possible only on loopback.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tallybook.core.access import Access, OpenAccess, Permission
from tallybook.core.errors import AccessDenied, Busy, Unauthenticated

from ..clock import RealClock
from ..listening import Listening, address_of, bind, is_loopback
from ..metrics.part_metrics import PartMetrics
from ..metrics.registry import Metrics
from ..security.connection_table import ConnectionTable, DropLog
from ..security.denial_log import DENIAL_METRICS, HTTP, DenialLog
from ..security.identity import ServerSecurity
from ..security.in_flight import RequestsInFlight
from ..security.tls_contexts import server_context
from ..tasks import Tasks
from .endpoints import HttpApi, headers_of, status_of
from .guard import EndpointGuard, RequestFilter
from .load import HEALTH, HTTP_METRICS, METRICS, HttpLoad
from .protocol import MAX_CONNECTIONS, MAX_WAITING, MAX_WAITING_PER_PEER, BoundedProtocol
from .tls import TlsPort

CLOSE_SECONDS: Final = 2.0
_METRICS: Final = "/metrics"
_METRICS_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"
_KEEP_ALIVE_SECONDS: Final = 5


class HttpServer:
    """Serves health, readiness, metrics and endpoints on its own port.

    Args:
        metrics: registry for /metrics.
        why_not_ready: returns ``None`` when the process serves, else one sentence for /readyz.
        security: certificates and authentication; ``None``: no TLS, and access is open to all.
        offer: further endpoints and pages; ``None``: none.
        denials: log of denied requests, if the process has other ports, too.
        in_flight: limits of requests in flight, if the process has other ports, too.
    """

    def __init__(
        self,
        metrics: Metrics,
        why_not_ready: Callable[[], str | None],
        security: ServerSecurity | None = None,
        offer: HttpApi | None = None,
        denials: DenialLog | None = None,
        in_flight: RequestsInFlight | None = None,
    ) -> None:
        self._metrics = metrics
        self.why_not_ready = why_not_ready
        self._security = security
        self._access: Access = security or OpenAccess()
        self._offer = offer or HttpApi(())
        self._denials = denials or DenialLog(RealClock(), self._access)
        self._in_flight = in_flight or RequestsInFlight()
        self._table = ConnectionTable(MAX_WAITING, MAX_WAITING_PER_PEER, self._dropped)
        self._load = HttpLoad(RealClock(), MAX_CONNECTIONS, self._table)
        self._drop_log = DropLog(RealClock(), HTTP)
        metrics.add_part(HTTP_METRICS, self._load)
        metrics.add_part(DENIAL_METRICS, self._denials)
        metrics.add_part(READY_METRICS, self)
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._lag: asyncio.Task[None] | None = None
        self._listens_as = ""
        """The host in ``listen``, which may be a name."""
        self.address = ""
        """Host and port, once started."""

    async def start(self, listen: str | Listening, tasks: Tasks) -> None:
        """Start serving.

        Args:
            listen: host and port (0: any free port), or a listening socket.

        Raises:
            InvalidConfig: the address cannot be bound; the message names it.
        """
        bound = bind(listen, MAX_CONNECTIONS) if isinstance(listen, str) else listen
        administered = self._security is not None or is_loopback(bound.getsockname()[0])
        self._listens_as = listen.rpartition(":")[0] if isinstance(listen, str) else ""
        self.address = address_of(bound)
        protocol: Any = partial(BoundedProtocol, self._load, self._table)
        if self._security is not None:
            protocol = TlsPort(server_context(self._security), self._load, self._table)
        config = uvicorn.Config(
            self._application(administered),
            log_config=None,
            log_level="warning",  # the process logs its own start and end
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,  # headers cannot change the address of the peer
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            http=protocol,
            ws="none",
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._task = tasks.spawn(self._serve(self._server, bound), name="http")
        self._lag = tasks.spawn(self._metrics.loop_lag.watch(), name="loop lag")

    async def close(self) -> None:
        """Stop serving."""
        if self._server is None or self._task is None or self._lag is None:
            return
        self._lag.cancel()
        self._server.should_exit = True
        await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
        self._task.cancel()

    def _dropped(self, why: str, peer: str) -> None:
        self._load.dropped(why)
        self._drop_log.dropped(why, peer)

    @staticmethod
    async def _serve(server: uvicorn.Server, bound: socket.socket) -> None:
        # Not ``serve``, which installs signal handlers for the process.
        await server._serve(sockets=[bound])  # noqa: SLF001

    def _application(self, administered: bool) -> ASGIApp:
        health = {"/healthz": self._healthz, "/readyz": self._readyz}
        paths, offer = (*health, _METRICS), self._offer
        guard = EndpointGuard(
            self._access,
            offer.endpoints,
            offer.pages,
            self._denials,
            self._in_flight,
            own=paths,
            administered=administered,
        )
        own: dict[str, Callable[..., Any]] = {**health, _METRICS: partial(self._show_metrics, guard)}
        served = Starlette(routes=[Route(path, handler) for path, handler in own.items()])
        served.router.redirect_slashes = False
        served.router.default = guard
        routes = {**dict.fromkeys(health, HEALTH), _METRICS: METRICS}
        return RequestFilter(served, self._names, anyway=health, routes=routes, denials=self._denials, load=self._load)

    def _names(self) -> Iterator[str]:
        """The names of this process that a Host header may have."""
        yield socket.gethostname()
        yield self._listens_as
        yield from self._offer.hosts
        if self._security is not None:
            yield from self._security.identity.names

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, request: Request) -> Response:
        reason = self.why_not_ready()
        return PlainTextResponse("ok\n" if reason is None else f"{reason}\n", status_code=503 if reason else 200)

    async def _show_metrics(self, guard: EndpointGuard, request: Request) -> Response:
        try:
            guard.authorize(request, Permission.READ)
        except (Unauthenticated, AccessDenied, Busy) as error:
            guard.note(request, error)
            return PlainTextResponse(f"{error.message}\n", status_code=status_of(error), headers=headers_of(error))
        return Response(self._metrics.text(), media_type=_METRICS_TYPE)


READY_METRICS: Final = PartMetrics[HttpServer]().gauge(
    "ready",
    "tallybook_process_ready",
    "1 while the process serves (like /readyz), else 0.",
    lambda server: server.why_not_ready() is None,
)

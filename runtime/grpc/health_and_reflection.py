"""The standard services of a gRPC port: health (``grpc.health.v1.Health``) and server reflection.

``Health/Check`` needs no authentication, because probes have no credentials. ``Health/Watch`` and reflection last as
long as the client likes, so they need authentication and may take only a part of the calls of the port. They count for
the limit of their principal, are re-authorized regularly, and a reflection client must go on sending requests and
reading answers.

For a unary method, gRPC would wait for the request message as long as the client likes, and count the call meanwhile,
before a handler is called. So each method is registered as bidirectional streaming, which is the same on the wire, and
its handler reads the message with a timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import ExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from tallybook.core.access import Access, Presented, Principal
from tallybook.core.errors import AccessDenied, Busy, Unauthenticated

from ..clock import RealClock
from ..security.denial_log import DenialLog
from ..security.in_flight import RequestsInFlight
from ..security.reauthorization import run_while_authorized
from .handlers import RunningHandlers, send_headers
from .load import CHECK, DESCRIBE, WATCH, GrpcLoad
from .tls import presented

_PART: Final = 8
"""One of this many calls of the port may be a long-running call, and one more a ``Health/Check``."""

MOMENT_SECONDS: Final = 5.0
"""How long a client may take to send its request, and for ``Health/Check`` to take the answer."""

QUESTION_SECONDS: Final = 60.0
"""Maximum between two reflection requests on one call."""

_END_SECONDS: Final = 1.0
"""How long the handler waits until a status is sent. After that, gRPC keeps it until the connection ends."""

_STATUS: Final = health_pb2.HealthCheckResponse


class _Ended(Exception):
    """Ends a call with an error status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class _Caller(NamedTuple):
    """The caller of a long-running call."""

    presented: Presented
    peer: str
    method: str


class StandardServices:
    """Health and reflection of one port.

    Args:
        access: authenticates callers.
        max_calls: limit of concurrent calls of the port.
        handlers: running handlers of the port.
        load: counts these calls.
        denials: log of denied requests of the process; ``None``: of this port only.
        in_flight: limits of requests in flight of the process; ``None``: of this port only.
    """

    def __init__(
        self,
        access: Access,
        max_calls: int,
        handlers: RunningHandlers,
        load: GrpcLoad,
        denials: DenialLog | None,
        in_flight: RequestsInFlight | None = None,
    ) -> None:
        self._access = access
        self._handlers = handlers
        self._load = load
        self._in_flight = in_flight or RequestsInFlight()
        self._denials = denials or DenialLog(RealClock(), access)
        self._limit = self._free = load.about_max_calls = max(max_calls // _PART, 1)
        self._moments: dict[asyncio.Timeout, None] = {}  # a set would have no order
        self._served: tuple[str, ...] = ()
        self._retired = asyncio.Event()

    def serve(self, services: Iterable[str], server: grpc.aio.Server) -> None:
        """Register both services on ``server``, which also has ``services``."""
        self._served = (*services, health.SERVICE_NAME)
        health_service, described = _Health(self), _Reflection(self, self._served)
        for service, methods in (
            (health.SERVICE_NAME, {"Check": (CHECK, health_service.check), "Watch": (WATCH, health_service.watch)}),
            (reflection.SERVICE_NAME, {"ServerReflectionInfo": (DESCRIBE, described.describe)}),
        ):
            handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
                name: grpc.stream_stream_rpc_method_handler(self._handler(method, serve), None, None)
                for name, (method, serve) in methods.items()
            }
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    def _handler(self, method: str, serve: Callable[[Any], Awaitable[None]]) -> Callable[[Any, Any], Awaitable[None]]:
        async def served(_requests: object, context: Any) -> None:
            await self._handlers.enter(context)
            with self._load.about(method):
                try:
                    await serve(context)
                except _Ended as ended:
                    self._load.failed(ended.code.name)
                    await _end(context, ended)
                except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
                    return  # the client is gone

        return served

    def retire(self) -> None:
        """Report NOT_SERVING from now on."""
        self._retired.set()

    def status(self, service: str) -> Any:
        """Health of a service; an empty name is the whole port. ``None``: there is no such service."""
        if service and service not in self._served:
            return None
        return _STATUS.NOT_SERVING if self._retired.is_set() else _STATUS.SERVING

    async def wait_until_retired(self) -> None:
        """Wait for ``retire``."""
        await self._retired.wait()

    @asynccontextmanager
    async def moment(self) -> AsyncIterator[None]:
        """Run a ``Health/Check`` with a timeout. If there are too many, the oldest one is ended.

        So each client gets an answer, unless the limit of new calls arrives between its call and its message, which
        normally arrive together.

        Raises:
            _Ended: timeout, or ended for a newer call.
        """
        try:
            async with asyncio.timeout(MOMENT_SECONDS) as time:
                if len(self._moments) >= self._limit:
                    self._end_longest()
                self._moments[time] = None
                try:
                    yield
                finally:
                    self._moments.pop(time, None)
        except TimeoutError:
            raise _Ended(grpc.StatusCode.DEADLINE_EXCEEDED, "no request arrived, or the answer was not taken") from None

    def _end_longest(self) -> None:
        longest = next(iter(self._moments))
        del self._moments[longest]
        if not longest.expired():
            longest.reschedule(asyncio.get_running_loop().time())

    async def authenticate(self, caller: _Caller, was: Principal | None = None) -> Principal:
        """The principal of a caller.

        Args:
            was: the principal at the first authentication, for the log.

        Raises:
            _Ended: the caller is not authenticated or not authorized.
        """
        try:
            return self._access.principal(caller.presented)
        except (Unauthenticated, AccessDenied) as error:
            self._denials.note(error, caller.presented, caller.peer, caller.method, was)
            known = isinstance(error, AccessDenied)
            code = grpc.StatusCode.PERMISSION_DENIED if known else grpc.StatusCode.UNAUTHENTICATED
            raise _Ended(code, error.message) from None

    async def last(self, context: Any, method: str, work: Callable[[Any], Awaitable[None]]) -> None:
        """Authenticate a long-running call, and run ``work`` as long as its caller is authorized.

        Raises:
            _Ended: the caller is not authorized (any more), or there are too many calls.
        """
        # Read now: gRPC crashes the process if it is read after the call has ended.
        caller = _Caller(presented(context), str(context.peer()), method)
        principal = await self.authenticate(caller)
        if not self._free:
            raise _Ended(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many long-running health and reflection calls")
        with ExitStack() as held:
            try:
                held.enter_context(self._in_flight.request(principal))
            except Busy as error:
                raise _Ended(grpc.StatusCode.RESOURCE_EXHAUSTED, error.message) from None
            self._free -= 1
            try:
                await run_while_authorized(
                    work(context), principal, partial(self.authenticate, caller, principal), RealClock()
                )
            finally:
                self._free += 1


class _Health:
    """The health service. Calls are independent: a client that does not read delays no other ``Watch``."""

    def __init__(self, about: StandardServices) -> None:
        self._about = about

    async def check(self, context: Any) -> None:
        """Answer the current health."""
        async with self._about.moment():
            status = self._about.status(await _service_asked(context))
            if status is None:
                raise _Ended(grpc.StatusCode.NOT_FOUND, "there is no such service")
            await send_headers(context)
            await _answer(context, status)

    async def watch(self, context: Any) -> None:
        """Answer the current health and every change until the call ends."""
        await self._about.last(context, WATCH, self._watch)

    async def _watch(self, context: Any) -> None:
        try:
            async with asyncio.timeout(MOMENT_SECONDS):
                service = await _service_asked(context)
        except TimeoutError:
            raise _Ended(grpc.StatusCode.DEADLINE_EXCEEDED, "no request arrived") from None
        status = self._about.status(service)
        await send_headers(context)
        await _answer(context, _STATUS.SERVICE_UNKNOWN if status is None else status)
        if status == _STATUS.SERVING:
            await self._about.wait_until_retired()
            await _answer(context, _STATUS.NOT_SERVING)
        await asyncio.Event().wait()


async def _service_asked(context: Any) -> str:
    message = await context.read()
    if message is grpc.aio.EOF:
        raise _Ended(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
    try:
        service: str = health_pb2.HealthCheckRequest.FromString(message).service
    except DecodeError:
        raise _Ended(grpc.StatusCode.INVALID_ARGUMENT, "the message is not a HealthCheckRequest") from None
    return service


async def _answer(context: Any, status: Any) -> None:
    await context.write(_STATUS(status=status).SerializeToString())


async def _end(context: Any, ended: _Ended) -> None:
    try:
        async with asyncio.timeout(_END_SECONDS):
            await context.abort(ended.code, ended.message)
    except TimeoutError:
        # gRPC queues the status; the handler does not wait for it.
        return


class _Reflection:
    """The reflection service, with the answers of the library, for authenticated callers."""

    def __init__(self, about: StandardServices, services: Iterable[str]) -> None:
        self._about = about
        self._described = reflection.aio.ReflectionServicer((*services, reflection.SERVICE_NAME))

    async def describe(self, context: Any) -> None:
        """Answer each request, as long as the client sends requests and reads the answers."""
        await self._about.last(context, DESCRIBE, self._describe)

    async def _describe(self, context: Any) -> None:
        async with (
            aclosing(self._questions(context)) as questions,
            aclosing(self._described.ServerReflectionInfo(questions, context)) as answers,
        ):
            await send_headers(context)
            async for answer in answers:
                try:
                    async with asyncio.timeout(MOMENT_SECONDS):
                        await context.write(answer.SerializeToString())
                except TimeoutError:
                    raise _Ended(grpc.StatusCode.DEADLINE_EXCEEDED, "the answer was not taken") from None

    @staticmethod
    async def _questions(context: Any) -> AsyncGenerator[Any, None]:
        while True:
            try:
                async with asyncio.timeout(QUESTION_SECONDS):
                    message = await context.read()
            except TimeoutError:
                raise _Ended(grpc.StatusCode.DEADLINE_EXCEEDED, "no further request arrived") from None
            if message is grpc.aio.EOF:
                return
            try:
                question = reflection_pb2.ServerReflectionRequest.FromString(message)
            except DecodeError:
                raise _Ended(grpc.StatusCode.INVALID_ARGUMENT, "the message is not a ServerReflectionRequest") from None
            yield question

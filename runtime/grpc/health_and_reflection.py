"""What a gRPC port says of itself: is it well (``grpc.health.v1.Health``), and what does it offer (reflection).

How it is at a moment, ``Check``, is for everybody: probes prove nothing. What lasts as long as the client likes, to
watch its health and to ask for descriptions, is for those who are let in, and takes a part of the calls of the port
at most: clients without credentials find none to hold, and those with some leave others theirs. For a principal with
a bound of its own, such a call is one of the requests that it may have under way. One that is not authorized any more
loses its place, as that is checked again and again; a client that asks for descriptions has to ask on, and to take
the answers.

gRPC would wait for the one message of a call as long as the client likes, and count the call meanwhile, before anything
here is asked. So each method is a stream both ways, which is the same on the wire, and waits for its message itself.
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

from .allowed import while_allowed
from .clock import RealClock
from .grpc_handlers import Handlers
from .grpc_load import CHECK, DESCRIBE, WATCH, GrpcLoad
from .grpc_security import presented
from .refusals import Refusals
from .under_way import UnderWay

_PART: Final = 8
"""Of so many calls one may last for this, and one more be asking how it is."""

MOMENT_SECONDS: Final = 5.0
"""What a client may take to say what it asks, and to take the answer if that is all there is."""

QUESTION_SECONDS: Final = 60.0
"""Between two questions about what a port offers."""

_END_SECONDS: Final = 1.0
"""How long a status may take to leave. One that nobody takes waits for the connection's end."""

_STATUS: Final = health_pb2.HealthCheckResponse


class _Ended(Exception):
    """A call that ends without an answer, and why."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def most_calls(max_calls: int) -> int:
    """How many calls of a port may be about it, those that last and those that do not."""
    return 2 * _part(max_calls)


def _part(max_calls: int) -> int:
    return max(max_calls // _PART, 1)


class _Caller(NamedTuple):
    """Who makes a call that lasts."""

    presented: Presented
    peer: str
    method: str


class About:
    """Health and reflection of one port.

    Args:
        access: tells who somebody is.
        max_calls: what the port serves at once.
        handlers: those of the port.
        load: counts these calls.
        refusals: those who were not let in; ``None``: of this port alone.
        under_way: the same of what is asked.
    """

    def __init__(
        self,
        access: Access,
        max_calls: int,
        handlers: Handlers,
        load: GrpcLoad,
        refusals: Refusals | None,
        under_way: UnderWay | None = None,
    ) -> None:
        self._access = access
        self._handlers = handlers
        self._load = load
        self._under_way = under_way or UnderWay()
        self._refusals = refusals or Refusals(RealClock(), access)
        self._most = self._free = load.about_max_calls = _part(max_calls)
        self._moments: dict[asyncio.Timeout, None] = {}  # a set would have no order
        self._served: tuple[str, ...] = ()
        self._retired = asyncio.Event()

    def serve(self, services: Iterable[str], server: grpc.aio.Server) -> None:
        """Answer on ``server``, which has these services besides."""
        self._served = (*services, health.SERVICE_NAME)
        asked, described = _Health(self), _Reflection(self, self._served)
        for service, methods in (
            (health.SERVICE_NAME, {"Check": (CHECK, asked.check), "Watch": (WATCH, asked.watch)}),
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
        """From now on it is not well."""
        self._retired.set()

    def status(self, service: str) -> Any:
        """How a service is; the port itself has no name. ``None``: there is no such service."""
        if service and service not in self._served:
            return None
        return _STATUS.NOT_SERVING if self._retired.is_set() else _STATUS.SERVING

    async def wait_until_retired(self) -> None:
        """Return when it is not well any more."""
        await self._retired.wait()

    @asynccontextmanager
    async def moment(self) -> AsyncIterator[None]:
        """Let anybody in for a moment. Of too many, the one that has taken longest is over.

        So each client has an answer, unless as many come between its call and its message, which come together.

        Raises:
            _Ended: it is over.
        """
        try:
            async with asyncio.timeout(MOMENT_SECONDS) as time:
                if len(self._moments) >= self._most:
                    self._end_longest()
                self._moments[time] = None
                try:
                    yield
                finally:
                    self._moments.pop(time, None)
        except TimeoutError:
            raise _Ended(grpc.StatusCode.DEADLINE_EXCEEDED, "nothing was asked, or the answer not taken") from None

    def _end_longest(self) -> None:
        longest = next(iter(self._moments))
        del self._moments[longest]
        if not longest.expired():
            longest.reschedule(asyncio.get_running_loop().time())

    async def let_in(self, caller: _Caller, was: Principal | None = None) -> Principal:
        """Who makes a call, if it is let in now.

        Args:
            was: who it was when it was let in before.

        Raises:
            _Ended: it is not.
        """
        try:
            return self._access.principal(caller.presented)
        except (Unauthenticated, AccessDenied) as error:
            self._refusals.note(error, caller.presented, caller.peer, caller.method, was)
            known = isinstance(error, AccessDenied)
            code = grpc.StatusCode.PERMISSION_DENIED if known else grpc.StatusCode.UNAUTHENTICATED
            raise _Ended(code, error.message) from None

    async def last(self, context: Any, method: str, work: Callable[[Any], Awaitable[None]]) -> None:
        """Let a call in that lasts, and do ``work`` for as long as whoever makes it may.

        Raises:
            _Ended: it is not let in, or not allowed to go on.
        """
        # Asked now, because gRPC brings the process down when it is asked after the call has ended.
        caller = _Caller(presented(context), str(context.peer()), method)
        principal = await self.let_in(caller)
        if not self._free:
            raise _Ended(grpc.StatusCode.RESOURCE_EXHAUSTED, "there are as many of these calls as there may be")
        with ExitStack() as held:
            try:
                held.enter_context(self._under_way.request(principal))
            except Busy as error:
                raise _Ended(grpc.StatusCode.RESOURCE_EXHAUSTED, error.message) from None
            self._free -= 1
            try:
                await while_allowed(work(context), principal, partial(self.let_in, caller, principal), RealClock())
            finally:
                self._free += 1


class _Health:
    """Each call waits for itself alone: one that takes nothing keeps nobody from hearing that the port retires."""

    def __init__(self, about: About) -> None:
        self._about = about

    async def check(self, context: Any) -> None:
        """How it is now."""
        async with self._about.moment():
            status = self._about.status(await _service_asked(context))
            if status is None:
                raise _Ended(grpc.StatusCode.NOT_FOUND, "there is no such service")
            # Or an answer whose wait is cancelled would leave gRPC in doubt whether its headers went out.
            await context.send_initial_metadata(())
            await _answer(context, status)

    async def watch(self, context: Any) -> None:
        """How it is now, and whatever it becomes, until the call ends."""
        await self._about.last(context, WATCH, self._watch)

    async def _watch(self, context: Any) -> None:
        try:
            async with asyncio.timeout(MOMENT_SECONDS):
                service = await _service_asked(context)
        except TimeoutError:
            raise _Ended(grpc.StatusCode.DEADLINE_EXCEEDED, "nothing was asked") from None
        status = self._about.status(service)
        await _answer(context, _STATUS.SERVICE_UNKNOWN if status is None else status)
        if status == _STATUS.SERVING:
            await self._about.wait_until_retired()
            await _answer(context, _STATUS.NOT_SERVING)
        await asyncio.Event().wait()


async def _service_asked(context: Any) -> str:
    message = await context.read()
    if message is grpc.aio.EOF:
        raise _Ended(grpc.StatusCode.INVALID_ARGUMENT, "nothing was asked")
    try:
        service: str = health_pb2.HealthCheckRequest.FromString(message).service
    except DecodeError:
        raise _Ended(grpc.StatusCode.INVALID_ARGUMENT, "the message is not what this method takes") from None
    return service


async def _answer(context: Any, status: Any) -> None:
    await context.write(_STATUS(status=status).SerializeToString())


async def _end(context: Any, ended: _Ended) -> None:
    try:
        async with asyncio.timeout(_END_SECONDS):
            await context.abort(ended.code, ended.message)
    except TimeoutError:
        # gRPC keeps the status behind what waits to be sent; nothing waits for it here.
        return


class _Reflection:
    """Descriptions for those who are let in. What is answered is the library's."""

    def __init__(self, about: About, services: Iterable[str]) -> None:
        self._about = about
        self._described = reflection.aio.ReflectionServicer((*services, reflection.SERVICE_NAME))

    async def describe(self, context: Any) -> None:
        """An answer to each question, to whoever goes on asking and takes the answers."""
        await self._about.last(context, DESCRIBE, self._describe)

    async def _describe(self, context: Any) -> None:
        async with (
            aclosing(self._questions(context)) as questions,
            aclosing(self._described.ServerReflectionInfo(questions, context)) as answers,
        ):
            # Or an answer whose wait is cancelled would leave gRPC in doubt whether its headers went out.
            await context.send_initial_metadata(())
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
                raise _Ended(grpc.StatusCode.DEADLINE_EXCEEDED, "nothing was asked any more") from None
            if message is grpc.aio.EOF:
                return
            try:
                question = reflection_pb2.ServerReflectionRequest.FromString(message)
            except DecodeError:
                raise _Ended(grpc.StatusCode.INVALID_ARGUMENT, "the message is not what this method takes") from None
            yield question

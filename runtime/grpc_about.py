"""What a gRPC port says of itself: is it well (``grpc.health.v1.Health``), and what does it offer (reflection).

How it is at a moment, ``Check``, is for everybody: probes prove nothing. What lasts as long as the client likes, to
watch its health and to ask for descriptions, is for those who are let in, and takes a part of the calls of the port at
most: whoever has proven nothing is to find none to hold, and whoever has is to leave others theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from tallybook.core.access import Access
from tallybook.core.errors import AccessDenied, Unauthenticated

from .grpc_security import presented

_PART: Final = 8
"""Of so many calls one may last for this."""

_STATUS: Final = health_pb2.HealthCheckResponse


class About:
    """Health and reflection of one port.

    Args:
        access: tells who somebody is.
        max_calls: what the port serves at once.
    """

    def __init__(self, access: Access, max_calls: int) -> None:
        self._access = access
        self._free = max(max_calls // _PART, 1)
        self._served: tuple[str, ...] = ()
        self._retired = asyncio.Event()

    def serve(self, services: Iterable[str], server: grpc.aio.Server) -> None:
        """Answer on ``server``, which has these services besides."""
        self._served = (*services, health.SERVICE_NAME)
        health_pb2_grpc.add_HealthServicer_to_server(_Health(self), server)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(_Reflection(self, self._served), server)

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
    async def place(self, context: Any) -> AsyncIterator[None]:
        """Let a call in that lasts, or end it."""
        try:
            self._access.principal(presented(context))
        except Unauthenticated as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.message)
        except AccessDenied as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, error.message)
        if not self._free:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "there are as many of these calls as there may be")
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # its package has no types
    """Each call waits for itself alone: one that takes nothing keeps nobody from hearing that the port retires."""

    def __init__(self, about: About) -> None:
        self._about = about

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 (the method is called so)
        """How it is now."""
        status = self._about.status(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return _STATUS(status=status)

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802
        """How it is now, and whatever it becomes, until the call ends."""
        async with self._about.place(context):
            status = self._about.status(request.service)
            await context.write(_STATUS(status=_STATUS.SERVICE_UNKNOWN if status is None else status))
            if status == _STATUS.SERVING:
                await self._about.wait_until_retired()
                await context.write(_STATUS(status=_STATUS.NOT_SERVING))
            await asyncio.Event().wait()


class _Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]  # its package has no types
    """Descriptions for those who are let in."""

    def __init__(self, about: About, services: Iterable[str]) -> None:
        super().__init__((*services, reflection.SERVICE_NAME))
        self._about = about

    async def ServerReflectionInfo(self, request_iterator: Any, unused_context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """An answer to each question."""
        async with self._about.place(unused_context):
            async for answer in super().ServerReflectionInfo(request_iterator, unused_context):
                yield answer

"""Closing a gRPC port leaves no handler running, even one that is slow to notice the cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tallybook.runtime import handler_tasks
from tallybook.runtime.calls import Call
from tallybook.runtime.grpc.call_server import CallListener, bound_calls
from tallybook.runtime.grpc.handlers import RunningHandlers
from tallybook.wire.bookie_transport import bookie_transport

from .grpc_codes import DEADLINE_SECONDS

SERVICE = "tallybook.api.v1.LedgerService"
LONG_SECONDS = 600.0


class Slow:
    """Serves calls that have something to tidy away when they end."""

    def __init__(self, tidying_seconds: float) -> None:
        self._tidying_seconds = tidying_seconds
        self.ended: list[str] = []

    async def serve(self, call: Call) -> None:
        await call.send(b"begun")
        try:
            await asyncio.sleep(LONG_SECONDS)
        finally:
            try:
                await asyncio.sleep(self._tidying_seconds)
                self.ended.append("in good order")
            except asyncio.CancelledError:
                self.ended.append("cancelled again")
                raise


@asynccontextmanager
async def bound(slow: Slow) -> AsyncIterator[tuple[CallListener, grpc.aio.Channel]]:
    listener = bound_calls("127.0.0.1:0", max_calls=24, max_connections=24, max_connection_calls=24)
    await listener.serve({SERVICE: {"Append": slow.serve}})
    async with asyncio.timeout(DEADLINE_SECONDS), grpc.aio.insecure_channel(listener.address) as channel:
        try:
            yield listener, channel
        finally:
            await listener.close(0)


async def begin(channel: grpc.aio.Channel) -> None:
    call: Any = channel.stream_stream(f"/{SERVICE}/Append")()
    assert await call.read() == b"begun"


async def test_a_port_is_closed_when_its_handlers_have_ended():
    slow = Slow(tidying_seconds=0.2)
    async with bound(slow) as (listener, channel):
        await begin(channel)
        await begin(channel)
        await listener.close(0)
        assert slow.ended == ["in good order"] * 2


async def test_a_handler_that_takes_too_long_to_end_is_cancelled_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(handler_tasks, "GRACE_SECONDS", 0.1)
    slow = Slow(tidying_seconds=LONG_SECONDS)
    async with bound(slow) as (listener, channel):
        await begin(channel)
        await listener.close(0)
        assert slow.ended == ["cancelled again"]


@pytest.mark.parametrize("bookie", [False, True], ids=["calls", "bookie"])
async def test_watch_and_reflection_calls_have_no_handler_left_either(bookie: bool, monkeypatch: pytest.MonkeyPatch):
    kept: list[asyncio.Task[Any]] = []
    keep = RunningHandlers.keep

    def noted(handlers: RunningHandlers, task: asyncio.Task[Any]) -> None:
        kept.append(task)
        keep(handlers, task)

    monkeypatch.setattr(RunningHandlers, "keep", noted)
    listener: Any
    if bookie:
        listener = await bookie_transport().listen("127.0.0.1:0", lambda _lane, _stream: asyncio.sleep(0))
    else:
        listener = bound_calls("127.0.0.1:0", max_calls=24, max_connections=24, max_connection_calls=24)
        await listener.serve({})
    async with asyncio.timeout(DEADLINE_SECONDS), grpc.aio.insecure_channel(listener.address) as channel:
        watch: Any = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        asked: Any = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await asked.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        assert (await asked.read()).list_services_response.service
        assert len(kept) == 2
        assert not any(task.done() for task in kept)
        await listener.close(0)
        assert all(task.done() for task in kept)

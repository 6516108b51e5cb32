"""A call whose handler is cut short while it sends its headers still ends with the status that the handler gives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from tallybook.runtime.grpc.handlers import send_headers

DEADLINE_SECONDS = 20.0
SERVICE = "some.Service"


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    async def serve(_requests: object, context: Any) -> None:
        try:
            async with asyncio.timeout(0):
                await send_headers(context)
        except TimeoutError:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "cut short")

    handler = grpc.stream_stream_rpc_method_handler(serve, None, None)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Cut": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_a_call_that_is_cut_short_while_it_sends_headers_gets_its_status() -> None:
    async with served() as address, grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.stream_stream(f"/{SERVICE}/Cut", None, None)(timeout=DEADLINE_SECONDS)
        assert (await call.code(), await call.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "cut short")

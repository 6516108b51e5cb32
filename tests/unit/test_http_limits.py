"""How many requests over HTTP one principal may have under way."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tallybook.core.access import Permission
from tallybook.runtime.http_api import Asked, Endpoint

from .http_parts import DEADLINE_SECONDS, JSON, Answer, Gate, Served, serving

LARGE_BYTES = 32 << 20
"""More than the buffers of any connection take."""
ONE = {"authorization": "Bearer one"}
READER = {"authorization": "Bearer reader"}


@asynccontextmanager
async def answering_late(began: asyncio.Event, go: asyncio.Event) -> AsyncIterator[Served]:
    """A server of which one endpoint waits, and one has much to say."""

    async def wait(asked: Asked) -> object:
        began.set()
        await go.wait()
        return {}

    async def much(asked: Asked) -> object:
        began.set()
        return {"much": "x" * LARGE_BYTES}

    more = [
        Endpoint("GET", "/api/v1/wait", Permission.READ, wait),
        Endpoint("GET", "/api/v1/much", Permission.READ, much),
    ]
    async with serving(Gate(), more=more) as served:
        yield served


@asynccontextmanager
async def asking_for_much(served: Served, began: asyncio.Event) -> AsyncIterator[asyncio.StreamReader]:
    """Somebody who has asked, and takes nothing of the answer yet."""
    reader, writer = await asyncio.open_connection(*served.address.rsplit(":", 1), limit=1 << 12)
    writer.write(f"GET /api/v1/much HTTP/1.1\r\nhost: {served.address}\r\nauthorization: Bearer one\r\n\r\n".encode())
    try:
        await began.wait()
        yield reader
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def served_again(served: Served) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (await served("GET", "/api/v1/things", **ONE)).status == 429:
            pass  # each look is a connection, and so a wait


def is_told_to_come_back(answer: Answer) -> bool:
    return answer.status == 429 and "retry-after: 1" in answer.head


async def test_whoever_has_a_bound_has_so_many_requests_under_way_and_others_are_served():
    began, go = asyncio.Event(), asyncio.Event()
    async with answering_late(began, go) as served, asyncio.timeout(DEADLINE_SECONDS):
        first = asyncio.create_task(served("GET", "/api/v1/wait", **ONE))
        await began.wait()
        refused = await served("GET", "/api/v1/things", **ONE)
        assert is_told_to_come_back(refused)
        assert (refused.json["error"]["type"], refused.json["error"]["retriable"]) == ("Busy", True)
        assert "1 requests of one are under way" in refused.json["error"]["message"]
        assert is_told_to_come_back(await served("GET", "/metrics", **ONE))
        assert is_told_to_come_back(await served("POST", "/api/v1/things/a/go", **ONE, **JSON))
        assert not served.asked
        assert (await served("GET", "/api/v1/things", **READER)).status == 200
        assert (await served("GET", "/metrics", **READER)).status == 200
        assert (await served("GET", "/readyz")).status == 200
        go.set()
        assert (await first).status == 200
        await served_again(served)


async def test_a_request_is_under_way_until_its_answer_was_taken():
    began, go = asyncio.Event(), asyncio.Event()
    async with answering_late(began, go) as served, asking_for_much(served, began) as reader:
        for _ in range(3):
            assert is_told_to_come_back(await served("GET", "/api/v1/things", **ONE))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        body = await reader.readexactly(LARGE_BYTES + len('{"much":""}'))
        assert (body[:9], body.count(b"x"), body[-2:]) == (b'{"much":"', LARGE_BYTES, b'"}')
        await served_again(served)


async def test_whoever_goes_away_in_the_middle_of_an_answer_has_nothing_under_way():
    began, go = asyncio.Event(), asyncio.Event()
    async with answering_late(began, go) as served:
        async with asking_for_much(served, began):
            assert is_told_to_come_back(await served("GET", "/api/v1/things", **ONE))
        await served_again(served)


async def test_whoever_is_refused_has_nothing_under_way():
    async with serving(Gate()) as served:
        for _ in range(3):
            assert (await served("GET", "/api/v1/things?unknown=1", **ONE)).status == 400
            assert (await served("POST", "/api/v1/things/a/go", b"{", **ONE, **JSON)).status == 400
            assert (await served("GET", "/api/v1/things", **ONE)).status == 200

"""An HTTP server with a few endpoints, and a client, over real connections."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from tallybook.core.access import Limits, Permission, Presented, Principal
from tallybook.core.errors import AccessDenied, Unauthenticated
from tallybook.core.ids import MAX_ID
from tallybook.runtime.http.endpoints import Endpoint, EndpointRequest, HttpApi, StaticPage
from tallybook.runtime.http.scrape import parse_series
from tallybook.runtime.http.server import HttpServer
from tallybook.runtime.metrics.registry import Metrics
from tallybook.runtime.tasks import Tasks

DEADLINE_SECONDS = 20
JSON = {"content-type": "application/json"}


@dataclass
class Answer:
    """The received bytes up to the end of the connection."""

    raw: bytes

    @property
    def status(self) -> int:
        return int(self.raw.split(b" ", 2)[1])

    @property
    def head(self) -> str:
        return self.raw.partition(b"\r\n\r\n")[0].decode().lower()

    @property
    def body(self) -> bytes:
        return self.raw.partition(b"\r\n\r\n")[2]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def count(self) -> int:
        """Number of answers."""
        return self.raw.count(b"HTTP/1.1 ")


class TokenAccess:
    """Authenticates callers by fixed tokens."""

    known: ClassVar = {
        "Bearer reader": Principal("reader", frozenset({Permission.READ})),
        "Bearer limited": Principal("limited", frozenset(Permission), ledgers=("mine-",)),
        "Bearer admin": Principal("admin", frozenset(Permission)),
        "Bearer one": Principal("one", frozenset(Permission), limits=Limits(max_requests=1)),
    }

    def principal(self, presented: Presented) -> Principal:
        if not presented.authorization:
            raise Unauthenticated("a token is required")
        if len(presented.authorization) > 1:
            raise Unauthenticated("only one token is allowed")
        try:
            return self.known[presented.authorization[0]]
        except KeyError:
            raise AccessDenied("unknown token") from None


@dataclass
class Served:
    """A server with a few endpoints."""

    address: str
    asked: list[EndpointRequest] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)

    def number(self, name: str, **label: str) -> float:
        """The value of a metric, read without HTTP."""
        series = parse_series(self.metrics.text().decode())
        return sum(value for found, labels, value in series if found == name and labels == label)

    async def raw(self, request: bytes) -> Answer:
        """Send bytes, and read until the server closes."""
        reader, writer = await asyncio.open_connection(*self.address.rsplit(":", 1))
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                writer.write(request)
                raw = b""
                with contextlib.suppress(ConnectionResetError):
                    # If the server has not read all data, it ends the connection with a reset.
                    while piece := await reader.read(1 << 16):
                        raw += piece
                return Answer(raw)
        finally:
            writer.close()

    async def __call__(self, method: str, target: str, body: bytes = b"", **headers: str) -> Answer:
        lines = {"host": self.address, "connection": "close", **headers}
        if body:
            lines["content-length"] = str(len(body))
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        return await self.raw(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)


@asynccontextmanager
async def running(server: HttpServer, listen: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """Run a server; no task of it may fail. Gives its address."""
    tasks = Tasks("test", lambda name, error: pytest.fail(f"{name}: {error!r}"))
    await server.start(listen, tasks)
    try:
        yield server.address
    finally:
        await server.close()
        await tasks.close()


@asynccontextmanager
async def serving(
    access: Any = None, listen: str = "127.0.0.1:0", more: Sequence[Endpoint] = (), **raises: Exception
) -> AsyncIterator[Served]:
    """A server whose endpoints record their requests."""

    async def note(asked: EndpointRequest) -> object:
        served.asked.append(asked)
        return {"path": dict(asked.path), "query": dict(asked.query), "text": "<script>alert(1)</script>"}

    async def number(asked: EndpointRequest) -> object:
        served.asked.append(asked)
        return {"id": asked.path_number("id", MAX_ID), "limit": asked.count("limit", 7, 100)}

    async def fail(asked: EndpointRequest) -> object:
        raise raises[asked.path["how"]]

    endpoints = [
        Endpoint("GET", "/api/v1/things", Permission.READ, note, ("after",)),
        Endpoint("GET", "/api/v1/things/{thing}", Permission.READ, note),
        Endpoint("GET", "/api/v1/numbers/{id}", Permission.READ, number, ("limit",)),
        Endpoint("POST", "/api/v1/things/{thing}/go", Permission.ADMINISTER, note, (), ("fast",), "go"),
        Endpoint("DELETE", "/api/v1/things/{thing}", Permission.ADMINISTER, note, action="delete"),
        Endpoint("GET", "/api/v1/fails/{how}", Permission.READ, fail),
        Endpoint("POST", "/api/v1/fails/{how}", Permission.ADMINISTER, fail, action="fail"),
        *more,
    ]
    offer = HttpApi(endpoints, {"/": StaticPage("text/html; charset=utf-8", b"<!doctype html>")}, ("console.example",))
    metrics = Metrics()
    server = HttpServer(metrics, lambda: None, None, offer)
    if access is not None:
        server._access = server._denials._access = access
    async with running(server, listen) as address:
        served = Served(address, metrics=metrics)
        yield served

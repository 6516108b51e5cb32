"""Client certificates at gRPC and HTTP servers: names by their kinds, and validity times."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID, ObjectIdentifier

from tallybook.core.access import Access, Permission, Role
from tallybook.core.errors import AccessDenied, Unauthenticated
from tallybook.runtime.calls import Call
from tallybook.runtime.grpc.call_server import bound_calls
from tallybook.runtime.http.endpoints import Endpoint, EndpointRequest, HttpApi
from tallybook.runtime.http.server import HttpServer
from tallybook.runtime.metrics.registry import Metrics
from tallybook.runtime.security import authority as making
from tallybook.runtime.security.authority import Authority, Subject
from tallybook.runtime.security.process_security import open_security
from tallybook.runtime.tasks import Tasks

DEADLINE_SECONDS = 20
REFUSED = "nobody"
SERVICE = "Who"

RULES = """
[[principal]]
name = "hosts"
roles = ["reader"]
certificates = ["*.example.com", "Bookie"]

[[principal]]
name = "addresses"
roles = ["reader"]
certificates = ["192.0.2.7", "2001:DB8:0:0:0:0:0:7"]

[[principal]]
name = "uris"
roles = ["reader"]
certificates = ["tallybook://auditor/*", "urn:tallybook:auditor"]
"""

DNS, URI, EMAIL = x509.DNSName, x509.UniformResourceIdentifier, x509.RFC822Name
WHO = {
    "hosts": [DNS("b1.example.com"), DNS("B2.EXAMPLE.com"), DNS("bookie")],
    "addresses": [x509.IPAddress(ip_address("192.0.2.7")), x509.IPAddress(ip_address("2001:db8::7"))],
    "uris": [URI("tallybook://auditor/x"), URI("urn:tallybook:auditor")],
    REFUSED: [
        EMAIL("mallory@mail.example.com"),
        EMAIL("mallory@example.com"),
        EMAIL("bookie"),
        EMAIL("tallybook://auditor/x"),
        EMAIL("192.0.2.7"),
        DNS("tallybook://auditor/x"),
        DNS("192.0.2.7"),
        DNS("2001:db8::7"),
        URI("b1.example.com"),
        URI("bookie"),
        URI("192.0.2.7"),
        x509.IPAddress(ip_address("192.0.2.8")),
        x509.RegisteredID(ObjectIdentifier("1.2.3.4")),
        x509.OtherName(ObjectIdentifier("1.2.3.4"), b"\x0c\x06bookie"),
        x509.DirectoryName(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bookie")])),
    ],
}


@dataclass(frozen=True, slots=True)
class Named(Subject):
    """A client whose certificate has these names."""

    shown: tuple[x509.GeneralName, ...] = ()

    def names(self) -> list[x509.GeneralName]:
        return list(self.shown)


class Ports:
    """A port of each kind, which report the names of the caller."""

    def __init__(self, place: Path, grpc_address: str, http_address: str) -> None:
        self._place = place
        self._grpc_address = grpc_address
        self._http_address = http_address

    async def over_grpc(self, client: Path) -> str:
        files = (client / "ca.crt", client / "tls.key", client / "tls.crt")
        credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
        async with grpc.aio.secure_channel(self._grpc_address, credentials) as channel:
            who: bytes = await channel.unary_unary(f"/{SERVICE}/Am")(b"")
        return who.decode()

    async def over_http(self, client: Path) -> str:
        context = ssl.create_default_context(cafile=client / "ca.crt")
        context.load_cert_chain(client / "tls.crt", client / "tls.key")
        host, _, port = self._http_address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.write(f"GET /who HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
        if not answer:
            raise ConnectionError("the server has closed it")
        return REFUSED if int(answer.split()[1]) in (401, 403) else answer.rpartition("\r\n")[2].strip('"')


async def who(asked: EndpointRequest) -> object:
    return asked.principal.name


def telling(access: Access):
    """A call that is answered with the name of its caller."""

    async def tell(call: Call) -> None:
        try:
            await call.send(access.principal(call.presented).name.encode())
        except (AccessDenied, Unauthenticated):
            await call.send(REFUSED.encode())

    return tell


@pytest.fixture
def ports(authority: Authority, tmp_path: Path):
    @asynccontextmanager
    async def opened() -> AsyncIterator[Ports]:
        (tmp_path / "authority/access.toml").write_text(RULES)
        authority.issue(tmp_path / "server", Subject(Role.BOOKIE, "server", ("127.0.0.1",)), days=1)
        security = open_security(str(tmp_path / "server"), serves=True)
        tasks = Tasks("test", lambda name, error: pytest.fail(f"{name}: {error!r}"))
        calls = bound_calls("127.0.0.1:0", max_calls=9, max_connections=9, max_connection_calls=9, security=security)
        await calls.serve({SERVICE: {"Am": telling(security)}})
        http = HttpServer(Metrics(), lambda: None, security, HttpApi([Endpoint("GET", "/who", Permission.READ, who)]))
        await http.start("127.0.0.1:0", tasks)
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                yield Ports(tmp_path, calls.address, http.address)
        finally:
            await calls.close(0)
            await http.close()
            await tasks.close()

    return opened


@pytest.mark.parametrize("expected", WHO)
async def test_each_name_counts_as_what_it_is_and_only_hosts_addresses_and_uris_do(
    ports, authority, tmp_path, expected
):
    async with ports() as served:
        for number, name in enumerate(WHO[expected]):
            client = tmp_path / str(number)
            authority.issue(client, Named(Role.READER, "client", (), (name,)), days=1)
            assert await served.over_grpc(client) == expected, name
            assert await served.over_http(client) == expected, name


async def test_a_certificate_that_has_expired_comes_through_at_no_port(ports, authority, tmp_path, monkeypatch):
    authority.issue(tmp_path / "good", Named(Role.READER, "client", (), (URI("tallybook://auditor/x"),)), days=1)
    monkeypatch.setattr(making, "_SKEW", timedelta(days=2))
    authority.issue(tmp_path / "old", Named(Role.READER, "client", (), (URI("tallybook://auditor/x"),)), days=-1)
    async with ports() as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.over_grpc(tmp_path / "old")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, "it is no call"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await served.over_http(tmp_path / "old")
        assert await served.over_grpc(tmp_path / "good") == await served.over_http(tmp_path / "good") == "uris"

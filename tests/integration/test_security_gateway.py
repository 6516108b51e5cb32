"""A gateway and its HTTP port behind TLS: certificates, tokens, every method, and names of other principals."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tallybook.client.client import Client
from tallybook.core.access import LEDGER_NAME, Permission, Role
from tallybook.core.settings import GatewaySettings
from tallybook.gateway.auth import PERMISSIONS
from tallybook.gateway.metrics import METHODS
from tallybook.gateway.server import ListenAddresses, serving
from tallybook.proto import ledger_pb2, ledger_pb2_grpc, stream_pb2, stream_pb2_grpc
from tallybook.runtime.security import denial_log
from tallybook.runtime.security import reauthorization as allowed
from tallybook.runtime.security.authority import SIGNING_KEYS, Authority, Subject

from .grpc_codes import DEADLINE_SECONDS, DENIED, EXHAUSTED, NOT_KNOWN, begun
from .test_gateway import refused

RULES = """
[[principal]]
name = "orders"
roles = ["writer"]
certificates = ["tallybook://writer/orders"]
tokens = ["orders-app"]
streams = ["orders/"]
namespaces = ["orders-team"]
ledgers = ["orders-"]

[[principal]]
name = "modest"
roles = ["writer"]
certificates = ["tallybook://writer/modest"]
max_requests = 2
max_bytes = "8MiB"

[[principal]]
name = "dashboards"
roles = ["reader"]
tokens = ["dashboard"]
"""

STREAM_METHODS = {
    "Create": stream_pb2.CreateStreamRequest,
    "Delete": stream_pb2.DeleteStreamRequest,
    "Rename": stream_pb2.RenameStreamRequest,
    "List": stream_pb2.ListStreamsRequest,
    "Describe": stream_pb2.DescribeStreamRequest,
    "SetPolicy": stream_pb2.SetPolicyRequest,
    "Truncate": stream_pb2.TruncateStreamRequest,
    "End": stream_pb2.EndStreamRequest,
    "Read": stream_pb2.ReadStreamRequest,
    "ListSubscriptions": stream_pb2.ListSubscriptionsRequest,
    "ResetSubscription": stream_pb2.ResetSubscriptionRequest,
    "DeleteSubscription": stream_pb2.DeleteSubscriptionRequest,
    "Append": lambda **place: stream_pb2.StreamAppendRequest(open=stream_pb2.StreamAppendOpen(**place)),
    "Subscribe": lambda **place: stream_pb2.SubscribeRequest(open=stream_pb2.SubscribeOpen(subscription="s", **place)),
}
LEDGER_METHODS = {
    "Close": ledger_pb2.CloseRequest,
    "Delete": ledger_pb2.DeleteRequest,
    "Describe": ledger_pb2.DescribeRequest,
    "Read": ledger_pb2.ReadRequest,
    "Recover": ledger_pb2.RecoverRequest,
    "Tail": ledger_pb2.TailRequest,
    "Append": lambda ledger_id: ledger_pb2.AppendRequest(open=ledger_pb2.AppendOpen(ledger_id=ledger_id)),
}


class Gateway:
    """A gateway on loopback, and how to reach it."""

    def __init__(self, addresses: ListenAddresses, authority: Authority, place: Path) -> None:
        self.addresses = addresses
        self._authority = authority
        self._place = place

    def directory(self, role: str, name: str) -> Path:
        """The security directory of a client."""
        made = self._place / f"{role}-{name}"
        if not made.exists():
            self._authority.issue(made, Subject(Role(role), name), days=1)
        return made

    def by_certificate(self, role: str, name: str) -> grpc.aio.Channel:
        """A channel with a certificate."""
        made = self.directory(role, name)
        files = (made / "ca.crt", made / "tls.key", made / "tls.crt")
        credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
        return grpc.aio.secure_channel(self.addresses.grpc, credentials)

    def without(self, address: str = "") -> grpc.aio.Channel:
        """A channel without a certificate."""
        trusted = (self._place / "authority/ca.crt").read_bytes()
        return grpc.aio.secure_channel(address or self.addresses.token_grpc, grpc.ssl_channel_credentials(trusted))

    def token(self, subject: str, **span: float) -> tuple[tuple[str, str], ...]:
        """Metadata of a call, with a token."""
        made = self._authority.token(subject, lifetime=timedelta(**(span or {"hours": 1})))
        return (("authorization", f"Bearer {made}"),)

    async def http(self, path: str, *, client: Path | None = None, head: str = "", **tls: Any) -> tuple[int, str]:
        """The status and the text that a GET is answered with."""
        context = ssl.create_default_context(cafile=self._place / "authority/ca.crt")
        if client is not None:
            context.load_cert_chain(client / "tls.crt", client / "tls.key")
        for name, value in tls.items():
            setattr(context, name, value)
        host, _, port = self.addresses.http.rpartition(":")
        async with asyncio.timeout(DEADLINE_SECONDS):
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{head}\r\n".encode())
            answer = (await reader.read()).decode()
            writer.close()
        return int(answer.split()[1]), answer.partition("\r\n\r\n")[2]


def ledgers(channel: grpc.aio.Channel) -> Any:
    return ledger_pb2_grpc.LedgerServiceStub(channel)


def streams(channel: grpc.aio.Channel) -> Any:
    return stream_pb2_grpc.StreamServiceStub(channel)


@pytest.fixture
def gateway(cluster, authority, tmp_path) -> Callable[..., Any]:
    """``async with gateway() as gateway``: one with security, on the shared cluster, which has none."""

    @asynccontextmanager
    async def opened(**settings: Any) -> AsyncIterator[Gateway]:
        rules = tmp_path / "authority/access.toml"
        rules.write_text(rules.read_text().replace("\n[[principal]]", f"{RULES}\n[[principal]]", 1))
        place = tmp_path / "gateway"
        authority.issue(place, Subject(Role.BOOKIE, "gateway", ("127.0.0.1",)), days=1)
        chosen = GatewaySettings(
            metadata=cluster.metadata, security=str(place), token_listen="127.0.0.1:0", keep_streams_s=0, **settings
        )
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            Client(cluster.metadata, chosen.client) as client,
            serving(client, chosen) as addresses,
        ):
            yield Gateway(addresses, authority, tmp_path)

    return opened


async def called(channel: grpc.aio.Channel, service: str, method: str, request: Any, metadata: Any = ()) -> list[Any]:
    """All answers of a method of any kind."""
    stub = ledgers(channel) if service == "LedgerService" else streams(channel)
    call = getattr(stub, method)
    if method in ("Append", "Subscribe"):
        stream = await begun(lambda: call(metadata=metadata), request, alone=True)
        return [reply async for reply in stream]
    answer = call(request, metadata=metadata)
    return [reply async for reply in answer] if method in ("Read", "Tail") else [await answer]


# --- authentication ---------------------------------------------------------------------------------------------------


def test_every_method_says_what_it_takes():
    assert set(PERMISSIONS) == set(METHODS)
    listed = {f"StreamService/{name}" for name in STREAM_METHODS} | {f"LedgerService/{name}" for name in LEDGER_METHODS}
    assert set(METHODS) - listed == {"LedgerService/Create", "LedgerService/List"}, "the others are in the tests below"


async def test_only_callers_with_a_certificate_or_a_token_are_served(gateway):
    async with gateway() as served:
        async with served.by_certificate("writer", "app") as channel:
            created = await ledgers(channel).Create(ledger_pb2.CreateRequest())
        async with served.without() as channel:
            known = await ledgers(channel).Describe(
                ledger_pb2.DescribeRequest(ledger_id=created.ledger_id), metadata=served.token("dashboard")
            )
            assert known.ledger_id == created.ledger_id
            with refused(NOT_KNOWN, "Unauthenticated"):
                await ledgers(channel).Describe(ledger_pb2.DescribeRequest(ledger_id=created.ledger_id))
            with refused(DENIED, "AccessDenied"):
                await ledgers(channel).Create(ledger_pb2.CreateRequest(), metadata=served.token("dashboard"))
            with refused(DENIED, "AccessDenied"):
                await ledgers(channel).Create(ledger_pb2.CreateRequest(), metadata=served.token("nobody"))
        async with served.without(served.addresses.grpc) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ledgers(channel).List(ledger_pb2.ListRequest(), metadata=served.token("dashboard"), timeout=10)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, "there, a certificate is wanted"
        async with grpc.aio.insecure_channel(served.addresses.grpc) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ledgers(channel).List(ledger_pb2.ListRequest(), timeout=10)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


HEADERS = (
    (),
    (("authorization", "Bearer x"),),
    (("authorization", "Basic dTpw"),),
    (("authorization", ""),),
    (("authorization", "Bearer " + "x" * 10_000),),
    (("authorization", "Bearer x"), ("authorization", "Bearer x")),
    (("x-authorization", "Bearer x"),),
)


async def test_no_method_serves_unauthenticated_callers(gateway):
    async with gateway() as served, served.without() as channel:
        for method in METHODS:
            service, _, name = method.partition("/")
            for headers in HEADERS:
                with refused(NOT_KNOWN, "Unauthenticated"):
                    await called(channel, service, name, any_request(service, name), headers)


def any_request(service: str, name: str) -> Any:
    if service == "StreamService":
        return STREAM_METHODS[name](**({} if name == "List" else {"name": "s"}))
    if name in LEDGER_METHODS:
        return LEDGER_METHODS[name](ledger_id=0)
    return {"Create": ledger_pb2.CreateRequest, "List": ledger_pb2.ListRequest}[name]()


async def test_a_refused_token_is_told_what_is_wrong_with_it_and_what_to_do(gateway, tmp_path):
    async with gateway() as served, served.without() as channel:
        own = jwt.PyJWKSet.from_json((tmp_path / "authority" / SIGNING_KEYS).read_text()).keys[-1]

        def made(kid: str | None = own.key_id, key: Any = own.key, **claims: object) -> str:
            claims = {"sub": "dashboard", "aud": "tallybook", "exp": 2**40, **claims}
            return jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": kid})

        for token, why in {
            made(exp=0): "the token has expired: get a new one",
            made(nbf=2**40): "the token is not valid yet: wait, or compare the clocks",
            made(aud="another-cluster"): "the token is for another audience: get one for 'tallybook'",
            made(kid="dropped"): "the token names the key 'dropped', which this server does not have: get a new token",
            made(key=Ed25519PrivateKey.generate()): "the token is not signed by the key that it names: get a new one",
            made()[:20]: "the token is malformed: send 'Bearer' and a whole JSON Web Token",
        }.items():
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ledgers(channel).List(ledger_pb2.ListRequest(), metadata=(("authorization", f"Bearer {token}"),))
            said = str(caught.value.details())
            assert (caught.value.code(), why in said, token in said) == (NOT_KNOWN, True, False), said
            assert why in (await served.http("/metrics", head=f"Authorization: Bearer {token}\r\n"))[1]


async def test_health_is_served_to_every_connected_client(gateway):
    async with gateway() as served, served.without() as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


@asynccontextmanager
async def speaking_any_tls(place: Path) -> AsyncIterator[str]:
    """A port that accepts any TLS version of a client, if the client trusts it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place / "tls.crt", place / "tls.key")
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        yield "{}:{}".format(*server.sockets[0].getsockname())


async def version_spoken(address: str, context: ssl.SSLContext) -> str | None:
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        return writer.get_extra_info("ssl_object").version()
    finally:
        writer.transport.abort()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1", "TLSv1_2", "TLSv1_3"])
async def test_neither_grpc_port_speaks_an_old_tls(gateway, tmp_path, version):
    async with gateway() as served:
        place = served.directory("writer", "app")
        context = ssl.create_default_context(cafile=place / "ca.crt")
        context.load_cert_chain(place / "tls.crt", place / "tls.key")
        context.set_alpn_protocols(["h2"])
        context.set_ciphers("ALL:@SECLEVEL=0")  # or this side would not speak it
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
        spoken = version.replace("_", ".")
        async with speaking_any_tls(tmp_path / "gateway") as any_port:
            assert await version_spoken(any_port, context) == spoken, "this side speaks it, so it is the gateway's no"
        for address in (served.addresses.grpc, served.addresses.token_grpc):
            if version in ("TLSv1", "TLSv1_1"):
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await version_spoken(address, context)
            else:
                assert await version_spoken(address, context) == spoken


# --- what is theirs ---------------------------------------------------------------------------------------------------


async def test_a_reader_changes_nothing(gateway, caplog):
    async with gateway() as served, served.without() as channel:
        changing = {name for name, takes in PERMISSIONS.items() if takes is Permission.WRITE}
        for method in sorted(changing):
            service, _, name = method.partition("/")
            with refused(DENIED, "AccessDenied"):
                await called(channel, service, name, any_request(service, name), served.token("dashboard"))
    told = [record.tallybook_fields for record in caplog.records if record.getMessage() == "refused"]
    assert {found["method"] for found in told} == changing
    assert {found["identity"] for found in told} == {"dashboard"}


@pytest.mark.parametrize("method", sorted(STREAM_METHODS))
async def test_no_method_reaches_streams_of_others(gateway, method):
    async with gateway() as served, served.by_certificate("writer", "orders") as channel:
        for namespace, name in (
            ("", "payments/eu"),
            ("", "order"),
            ("orders-team2", "orders/eu"),
            ("other", "orders/eu"),
        ):
            place = {"namespace": namespace, "prefix" if method == "List" else "name": name}
            with refused(DENIED, "AccessDenied"):
                await called(channel, "StreamService", method, STREAM_METHODS[method](**place))
        if method == "Rename":
            with refused(DENIED, "AccessDenied"):
                await called(
                    channel, "StreamService", method, STREAM_METHODS[method](name="orders/eu", new_name="payments/eu")
                )


async def test_streams_under_a_prefix_and_in_a_namespace_are_used_from_end_to_end(gateway):
    async with gateway() as served, served.by_certificate("writer", "orders") as channel:
        stub = streams(channel)
        await stub.Create(stream_pb2.CreateStreamRequest(name="orders/secured"))
        opened = stream_pb2.StreamAppendRequest(open=stream_pb2.StreamAppendOpen(name="orders/secured"))
        opened.records.add(payload=b"x")
        replies = await called(channel, "StreamService", "Append", opened)
        assert replies[-1].HasField("closed")
        reading = stub.Read(stream_pb2.ReadStreamRequest(name="orders/secured", follow=True))
        assert [record.payload for record in (await reading.read()).records.records] == [b"x"]
        reading.cancel()
        listed = await stub.List(stream_pb2.ListStreamsRequest(prefix="orders/"))
        assert "orders/secured" in listed.names
        await stub.Delete(stream_pb2.DeleteStreamRequest(name="orders/secured"))


async def test_the_takeover_of_a_subscription_is_in_the_audit_log(gateway, caplog):
    caplog.set_level(logging.INFO)
    async with gateway() as served:
        async with served.by_certificate("writer", "orders") as channel:
            await streams(channel).Create(stream_pb2.CreateStreamRequest(name="orders/read"))
        async with served.without() as channel:
            for take_over in (False, True):
                opened = stream_pb2.SubscribeOpen(
                    name="orders/read", subscription="billing", no_follow=True, take_over=take_over
                )
                request = stream_pb2.SubscribeRequest(open=opened)
                await called(channel, "StreamService", "Subscribe", request, served.token("dashboard"))
    told = [record.tallybook_fields for record in caplog.records if record.getMessage() == "take subscription"]
    assert [(line["identity"], line["stream"], line["subscription"]) for line in told] == [
        ("dashboard", "orders/read", "billing")
    ]


@pytest.mark.parametrize("method", sorted(LEDGER_METHODS))
async def test_no_method_reaches_ledgers_of_others_or_reveals_whether_there_are_any(gateway, method):
    async with gateway() as served:
        async with served.by_certificate("writer", "app") as channel:
            nameless = await ledgers(channel).Create(ledger_pb2.CreateRequest())
            foreign = await ledgers(channel).Create(ledger_pb2.CreateRequest(custom={LEDGER_NAME: b"payments-1"}))
        async with served.by_certificate("writer", "orders") as channel:
            absent = foreign.ledger_id + 10**6
            for ledger_id in (nameless.ledger_id, foreign.ledger_id, absent):
                with refused(DENIED, "AccessDenied"):
                    await called(channel, "LedgerService", method, LEDGER_METHODS[method](ledger_id=ledger_id))


async def test_ledgers_of_the_name_are_used_from_end_to_end_and_no_others_are_made(gateway):
    async with gateway() as served, served.by_certificate("writer", "orders") as channel:
        create = ledger_pb2.CreateRequest(custom={LEDGER_NAME: b"orders-7"})
        request = ledger_pb2.AppendRequest(open=ledger_pb2.AppendOpen(create=create), payloads=[b"x"])
        closed = (await called(channel, "LedgerService", "Append", request))[-1].closed
        found = await called(channel, "LedgerService", "Read", ledger_pb2.ReadRequest(ledger_id=closed.ledger_id))
        assert [payload for reply in found for payload in reply.payloads] == [b"x"]
        await ledgers(channel).Delete(ledger_pb2.DeleteRequest(ledger_id=closed.ledger_id))
        for custom in ({}, {LEDGER_NAME: b"payments-7"}, {LEDGER_NAME: b"\xff"}, {"Name": b"orders-7"}):
            with refused(DENIED, "AccessDenied"):
                await ledgers(channel).Create(ledger_pb2.CreateRequest(custom=custom))
            opening = ledger_pb2.AppendOpen(create=ledger_pb2.CreateRequest(custom=custom))
            with refused(DENIED, "AccessDenied"):
                await called(channel, "LedgerService", "Append", ledger_pb2.AppendRequest(open=opening))
        with refused(DENIED, "AccessDenied"):
            await ledgers(channel).List(ledger_pb2.ListRequest())


async def test_a_principal_has_no_more_in_flight_than_its_limit_and_others_are_served(gateway):
    async with gateway() as served, served.by_certificate("writer", "modest") as channel:
        stub = ledgers(channel)
        held = [stub.Append() for _ in range(2)]
        for call in held:
            create = ledger_pb2.CreateRequest()
            await call.write(ledger_pb2.AppendRequest(open=ledger_pb2.AppendOpen(create=create)))
            assert (await call.read()).HasField("opened")
        with refused(EXHAUSTED, "Busy") as told:
            await stub.Create(ledger_pb2.CreateRequest())
        assert told["retry_ms"] > 0
        assert (await served.http("/metrics", client=served.directory("writer", "modest")))[0] == 429
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()).read()
        assert caught.value.code() is EXHAUSTED
        assert (await served.http("/metrics", client=served.directory("writer", "app")))[0] == 200
        async with served.by_certificate("writer", "app") as other:
            await ledgers(other).Create(ledger_pb2.CreateRequest())
        for call in held:
            await call.done_writing()
            assert (await call.read()).HasField("closed")
            assert await call.code() is grpc.StatusCode.OK
        await stub.Create(ledger_pb2.CreateRequest())


@pytest.mark.parametrize("change", ["key", "rules"])
async def test_a_stream_that_is_open_ends_when_its_token_counts_no_more(
    gateway, authority, tmp_path, monkeypatch, change
):
    monkeypatch.setattr(allowed, "RECHECK_SECONDS", 0.1)
    async with gateway() as served, served.without() as channel:
        stub, kid = ledgers(channel), authority.token_keys()[-1]
        orders, place = served.token("orders-app"), tmp_path / "gateway"
        made = await stub.Create(ledger_pb2.CreateRequest(custom={LEDGER_NAME: b"orders-11"}), metadata=orders)
        tail = stub.Tail(ledger_pb2.TailRequest(ledger_id=made.ledger_id), metadata=orders)
        append = stub.Append(metadata=orders)
        create = ledger_pb2.CreateRequest(custom={LEDGER_NAME: b"orders-12"})
        await append.write(ledger_pb2.AppendRequest(open=ledger_pb2.AppendOpen(create=create), payloads=[b"x"]))
        opened = (await append.read()).opened
        assert (await append.read()).ack.count == 1
        if change == "key":
            authority.add_token_key()
            authority.drop_token_key(kid)
            authority.issue(place, Subject(Role.BOOKIE, "gateway", ("127.0.0.1",)), days=1)
        else:
            rules = place / "access.toml"
            rules.write_text(rules.read_text().replace('"orders-app"', '"orders-app-2"'))
        expected = (NOT_KNOWN, "Unauthenticated") if change == "key" else (DENIED, "AccessDenied")
        for call in (tail, append):
            with refused(*expected) as told:
                await call.read()
            assert told["outcome"] == "unknown"
        again = served.token("orders-app" if change == "key" else "orders-app-2")
        found = await stub.Recover(ledger_pb2.RecoverRequest(ledger_id=opened.ledger_id), metadata=again)
        assert found.last_entry_id == 0


async def test_a_wrong_password_of_a_ledger_is_logged(gateway, caplog):
    async with gateway() as served, served.by_certificate("writer", "app") as channel:
        stub = ledgers(channel)
        made = await stub.Create(ledger_pb2.CreateRequest(password=b"open sesame"))
        for guess in range(20):
            with refused(DENIED, "Unauthorized"):
                await stub.Delete(ledger_pb2.DeleteRequest(ledger_id=made.ledger_id, password=b"%d" % guess))
        with refused(DENIED, "Unauthorized"):
            await stub.Close(ledger_pb2.CloseRequest(ledger_id=made.ledger_id, password=b"open sesam"))
    told = [record.tallybook_fields for record in caplog.records if record.getMessage() == "refused"]
    assert [(line["method"], line["principal"], line["identity"], line.get("untold_count")) for line in told] == [
        ("LedgerService/Delete", "writers", "tallybook://writer/app", None),
        ("LedgerService/Close", "writers", "tallybook://writer/app", 19),
    ]
    assert "sesam" not in caplog.text


async def test_deletes_and_fences_are_audited_with_their_caller(gateway, caplog):
    caplog.set_level("INFO", "tallybook.audit")
    async with gateway() as served, served.without() as channel:
        stub, orders = ledgers(channel), served.token("orders-app")
        create = ledger_pb2.CreateRequest(custom={LEDGER_NAME: b"orders-9"})
        made = await stub.Create(create, metadata=orders)
        await stub.Recover(ledger_pb2.RecoverRequest(ledger_id=made.ledger_id), metadata=orders)
        await stub.Delete(ledger_pb2.DeleteRequest(ledger_id=made.ledger_id), metadata=orders)
        secret = orders[0][1].partition(" ")[2]
    notes = [record for record in caplog.records if record.name == "tallybook.audit"]
    told = [(note.getMessage(), note.tallybook_fields) for note in notes]
    assert [event for event, _ in told] == ["fence ledger", "delete ledger"]
    for _, fields in told:
        assert (fields["principal"], fields["identity"]) == ("orders", "orders-app")
        assert fields["ledger_id"] == made.ledger_id
    assert secret not in caplog.text


# --- HTTP -------------------------------------------------------------------------------------------------------------


async def test_health_is_for_all_and_metrics_are_for_readers(gateway):
    async with gateway() as served:
        assert await served.http("/healthz") == (200, "ok\n")
        assert (await served.http("/readyz"))[0] == 200
        assert (await served.http("/metrics"))[0] == 401
        status, text = await served.http("/metrics", client=served.directory("reader", "prometheus"))
        assert status == 200
        assert "tallybook_security_certificate_expiry_timestamp_seconds" in text
        [(name, value)] = served.token("dashboard")
        assert (await served.http("/metrics", head=f"{name}: {value}\r\n"))[0] == 200
        assert (await served.http("/metrics", head=f"{name}: {value}\r\n" * 2))[0] == 401
        [(name, value)] = served.token("nobody")
        assert (await served.http("/metrics", head=f"{name}: {value}\r\n"))[0] == 403


async def test_all_denials_of_a_process_share_one_denial_log(gateway, caplog, monkeypatch):
    monkeypatch.setattr(denial_log, "MAX_LINES", 2)
    async with gateway() as served, served.without() as channel:
        for service in ("LedgerService", "StreamService"):
            with refused(NOT_KNOWN, "Unauthenticated"):
                await called(channel, service, "Delete", any_request(service, "Delete"))
        assert (await served.http("/metrics"))[0] == 401
        with pytest.raises(grpc.aio.AioRpcError):
            await health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()).read()
    told = [record.tallybook_fields["method"] for record in caplog.records if record.getMessage() == "refused"]
    assert told == ["LedgerService/Delete", "StreamService/Delete"]


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
async def test_http_speaks_no_old_tls_and_lets_in_no_certificate_of_another_authority(gateway, tmp_path):
    async with gateway() as served:
        old = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await served.http("/healthz", minimum_version=old, maximum_version=old)
        Authority.create(tmp_path / "stranger").issue(tmp_path / "forged", Subject(Role.ADMIN, "root"), days=1)
        with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
            await served.http("/metrics", client=tmp_path / "forged")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_http_does_not_resume_tls_sessions_whose_certificates_would_not_be_checked_again(
    gateway, authority, tmp_path, version
):
    authority.issue(tmp_path / "admin", Subject(Role.ADMIN, "root"), days=1)
    context = ssl.create_default_context(cafile=tmp_path / "authority/ca.crt")
    context.minimum_version = context.maximum_version = version
    context.load_cert_chain(tmp_path / "admin/tls.crt", tmp_path / "admin/tls.key")

    def ask(address: tuple[str, int], session: ssl.SSLSession | None) -> tuple[bytes, bool, ssl.SSLSession | None]:
        with (
            socket.create_connection(address, timeout=DEADLINE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=address[0], session=session) as connection,
        ):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            try:
                return connection.recv(4096), bool(connection.session_reused), connection.session
            except ConnectionError:
                return b"", bool(connection.session_reused), None

    async with gateway() as served:
        host, _, port = served.addresses.http.rpartition(":")
        answer, _, session = await asyncio.to_thread(ask, (host, int(port)), None)
        assert answer.startswith(b"HTTP/1.1 200")
        answer, resumed, _ = await asyncio.to_thread(ask, (host, int(port)), session)
        assert not (answer and resumed)


async def test_http_takes_renewed_certificates_with_the_next_handshake(gateway, authority, tmp_path):
    async with gateway() as served:
        place = tmp_path / "gateway"
        authority.issue(place, Subject(Role.BOOKIE, "gateway", ("127.0.0.1", "renewed.example.com")), days=1)
        host, _, port = served.addresses.http.rpartition(":")
        context = ssl.create_default_context(cafile=tmp_path / "authority/ca.crt")
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                _, writer = await asyncio.open_connection(host, int(port), ssl=context)
                names = writer.get_extra_info("peercert")["subjectAltName"]
                writer.close()
                if ("DNS", "renewed.example.com") in names:
                    break
                await asyncio.sleep(0.1)


async def test_connections_without_a_token_keep_no_client_with_one_out(gateway):
    most = 16
    async with gateway(max_connections=most) as served:
        context = ssl.create_default_context(cafile=served._place / "authority/ca.crt")
        context.set_alpn_protocols(["h2"])
        host, _, port = served.addresses.token_grpc.rpartition(":")
        held = [await asyncio.open_connection(host, int(port), ssl=context) for _ in range(most)]
        async with served.without() as channel, asyncio.timeout(DEADLINE_SECONDS):
            await streams(channel).List(stream_pb2.ListStreamsRequest(), metadata=served.token("dashboard"))
            # Each has been sent settings of HTTP/2; the oldest end behind these.
            ends = [asyncio.ensure_future(reader.read(-1)) for reader, _ in held]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            assert channel.get_state() is grpc.ChannelConnectivity.READY
            for _, writer in held:
                writer.transport.abort()
            await asyncio.gather(*ends, return_exceptions=True)

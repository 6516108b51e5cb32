"""A bookie behind TLS: authentication, authorization, and certificates replaced while it runs."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tallybook.bookie.ledgers.key_verification import LedgerFacts
from tallybook.bookie.rpc.principal_quota import MIN_STREAM_BYTES
from tallybook.bookie.rpc.service import BookieService
from tallybook.client.connection.connection import BookieRpc, open_bookie
from tallybook.client.connection.tcp_routes import TcpRoutes
from tallybook.client.load import ClientLoad
from tallybook.core.access import Role
from tallybook.core.batch import encode_batch
from tallybook.core.errors import AccessDenied, BookieUnavailable, Busy, Unauthenticated
from tallybook.core.settings import BookieSettings, ClientSettings
from tallybook.runtime.clock import RealClock
from tallybook.runtime.grpc import tls as grpc_security
from tallybook.runtime.grpc.tls_probe import tls_problem
from tallybook.runtime.listening import bind
from tallybook.runtime.security import reauthorization as allowed
from tallybook.runtime.security.authority import Authority, Subject
from tallybook.runtime.security.process_security import Security, open_security
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tcp.load import TcpLoad
from tallybook.runtime.tcp.transport import TcpTransport
from tallybook.sim.memory_bookie.bookie import MemoryBookie
from tallybook.wire.bookie_transport import bookie_transport
from tallybook.wire.lanes import Lane

DEADLINE_SECONDS = 30
KEY = b""


class Port:
    """A bookie in memory, served on loopback to clients that its security directory accepts."""

    def __init__(self, place: Path, security: Security, address: str, tasks: Tasks, tcp_load: TcpLoad) -> None:
        self.tcp_load = tcp_load
        self.place = place
        self.security = security
        self.address = address
        self.tasks = tasks

    async def connect(self, client: Path | None, address: str = "", *, tcp: bool = False) -> BookieRpc:
        """Connect as a client with this security directory; ``None``: without TLS."""
        security = None if client is None else open_security(str(client), serves=False)
        return await open_bookie(
            bookie_transport(security=security),
            address or self.address,
            bookie_id="b1",
            expected=None,
            settings=ClientSettings(connect_timeout_ms=10_000),
            tasks=self.tasks,
            load=ClientLoad(RealClock()),
            tcp=TcpRoutes(TcpTransport((), security=security), RealClock()) if tcp else None,
        )

    async def works(self, client: Path) -> None:
        """A client comes, adds, reads and leaves."""
        connection = await self.connect(client)
        assert await added(connection, 0) == 0
        assert (await connection.read_entry(1, 0)).verify().payload == b"x"
        await connection.close()


async def added(connection: BookieRpc, entry_id: int) -> int:
    """Add one entry; the code that it is answered with."""
    answered = asyncio.get_running_loop().create_future()
    batch = encode_batch(1, entry_id, [b"x"], lac=-1, ledger_length=1, written_at_us=0)
    connection.add(batch, KEY, answered.set_result)
    async with asyncio.timeout(DEADLINE_SECONDS):
        return (await answered).code


@pytest.fixture
def served(authority, tmp_path):
    """``async with served() as port``: the rules of the authority, with more of them if given, and a host."""

    @asynccontextmanager
    async def opened(more: str = "", host: str = "127.0.0.1") -> AsyncIterator[Port]:
        rules = tmp_path / "authority/access.toml"
        rules.write_text(rules.read_text().replace("\n[[principal]]", f"\n{more}\n[[principal]]", 1))
        place = tmp_path / "b1"
        authority.issue(place, Subject(Role.BOOKIE, "b1", (host,)), days=1)
        security = open_security(str(place), serves=True)
        tasks = Tasks("test", lambda name, error: pytest.fail(f"{name}: {error!r}"))

        async def facts(_ledger_id: int) -> LedgerFacts:
            return LedgerFacts(b"")

        bookie = MemoryBookie("b1", facts_of=facts, clock=RealClock(), tasks=tasks)
        settings = BookieSettings(data_directory="/nowhere", metadata="memory:")
        bound, load = bind("127.0.0.1:0"), TcpLoad()
        service = BookieService(
            bookie, settings, RealClock(), tasks, "", pytest.fail, security, tcp_port=bound.getsockname()[1]
        )
        tcp = await TcpTransport(tuple(Lane), security=security, load=load).serve(bound, service.accept)
        listener = await bookie_transport(security=security).listen("127.0.0.1:0", service.accept)
        try:
            yield Port(place, security, listener.address, tasks, load)
        finally:
            await asyncio.gather(listener.close(0), tcp.close(0))
            await tasks.close()
            assert service.stream_count == 0

    return opened


@pytest.fixture
def client(authority, tmp_path):
    """``client("writer")``: the security directory of a client with this role."""

    def made(role: str = "writer", name: str = "app", by: Authority | None = None) -> Path:
        place = tmp_path / f"{role}-{name}-{id(by)}"
        (by or authority).issue(place, Subject(Role(role), name), days=1)
        return place

    return made


async def test_the_tcp_port_has_the_same_rules(served, client):
    async with served() as port:
        connection = await port.connect(client("reader"), tcp=True)
        assert len(port.tcp_load.connections) == 2, "adds and reads use it"
        assert await added(connection, 0) == AccessDenied.wire_code
        await connection.close()
        connection = await port.connect(client("writer"), tcp=True)
        assert await added(connection, 0) == 0
        assert (await connection.read_entry(1, 0)).verify().payload == b"x"
        await connection.close()


# --- authentication ---------------------------------------------------------------------------------------------------


async def test_a_client_of_the_same_authority_reads_and_writes(served, client):
    async with served() as port:
        await port.works(client("writer"))


async def test_a_client_of_another_authority_is_not_connected_to(served, client, tmp_path):
    stranger = Authority.create(tmp_path / "stranger")
    async with served() as port:
        # The client trusts our authority, but has a self-made certificate: it is the bookie that refuses it.
        forged = client("admin", by=stranger)
        (forged / "ca.crt").write_bytes((port.place / "ca.crt").read_bytes())
        with pytest.raises(Unauthenticated, match="does not accept this client's certificate"):
            await port.connect(forged)
        await port.works(client())


async def test_a_server_that_ends_after_a_handshake_has_not_refused_the_certificate(authority, client, tmp_path):
    """It would look like a refusal, which ends a writer, while a bookie that restarts is worth waiting for."""
    place = tmp_path / "ending"
    authority.issue(place, Subject(Role.BOOKIE, "ending", ("127.0.0.1",)), days=1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place / "tls.crt", place / "tls.key")

    async def end(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.close()
        writer.transport.abort()

    server = await asyncio.start_server(end, "127.0.0.1", 0, ssl=context)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    assert await tls_problem(address, open_security(str(client()), serves=False)) is None
    assert not server.is_serving(), "the probe has met it"


async def test_a_client_whose_certificate_signs_itself_is_not_connected_to(served, client):
    async with served() as port:
        # What ours says of an admin, word for word, and signed with the key that it certifies.
        forged = client("admin")
        ours = x509.load_pem_x509_certificate((forged / "tls.crt").read_bytes())
        key = load_pem_private_key((forged / "tls.key").read_bytes(), None)
        builder = (
            x509.CertificateBuilder()
            .subject_name(ours.subject).issuer_name(ours.subject).public_key(key.public_key())
            .serial_number(ours.serial_number)
            .not_valid_before(ours.not_valid_before_utc).not_valid_after(ours.not_valid_after_utc)
        )  # fmt: skip
        for each in ours.extensions:
            if not isinstance(each.value, x509.AuthorityKeyIdentifier):
                builder = builder.add_extension(each.value, each.critical)
        signed = builder.sign(key, hashes.SHA256())
        (forged / "tls.crt").write_bytes(signed.public_bytes(Encoding.PEM))
        with pytest.raises(Unauthenticated):
            await port.connect(forged)
        await port.works(client())


async def test_a_client_does_not_talk_to_a_bookie_of_another_authority(served, client, tmp_path):
    stranger = Authority.create(tmp_path / "stranger")
    async with served() as port:
        with pytest.raises(Unauthenticated, match="the server's certificate is not accepted"):
            await port.connect(client("admin", by=stranger))
        await port.works(client())


async def test_a_client_does_not_talk_to_a_bookie_whose_certificate_is_for_another_host(served, client):
    async with served(host="elsewhere.example.com") as port:
        with pytest.raises(Unauthenticated, match="the server's certificate is not accepted"):
            await port.connect(client())


async def test_a_client_without_tls_gets_nothing_and_harms_no_other(served, client):
    async with served() as port:
        with pytest.raises(Unauthenticated, match="this client has no security directory"):
            await port.connect(None)
        await port.works(client())


async def test_a_client_with_tls_does_not_talk_to_a_bookie_without(client):
    listener = await bookie_transport().listen("127.0.0.1:0", refuse)
    try:
        security = open_security(str(client()), serves=False)
        tasks = Tasks("test", pytest.fail)
        with pytest.raises(Unauthenticated, match="the server does not use TLS"):
            await open_bookie(
                bookie_transport(security=security), listener.address, bookie_id="b1", expected=None,
                settings=ClientSettings(), tasks=tasks, load=ClientLoad(RealClock()),
            )  # fmt: skip
    finally:
        await listener.close(0)


async def refuse(lane: Any, stream: Any) -> None:
    pytest.fail(f"{stream.peer} came through on {lane}")


async def test_no_client_without_a_certificate_gets_as_far_as_a_call(served):
    async with served() as port:
        trusting = grpc.ssl_channel_credentials((port.place / "ca.crt").read_bytes())
        async with grpc.aio.secure_channel(port.address, trusting) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("version", "spoken"), [("TLSv1", False), ("TLSv1_1", False), ("TLSv1_2", True), ("TLSv1_3", True)]
)
async def test_old_versions_of_tls_are_not_spoken(served, client, version, spoken):
    async with served() as port:
        place = client()
        context = ssl.create_default_context(cafile=place / "ca.crt")
        context.load_cert_chain(place / "tls.crt", place / "tls.key")
        context.set_alpn_protocols(["h2"])
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="deprecated") if not spoken else contextlib.nullcontext():
            context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
        host, _, number = port.address.rpartition(":")
        shaking = asyncio.open_connection(host, int(number), ssl=context)
        if spoken:
            _, writer = await asyncio.wait_for(shaking, DEADLINE_SECONDS)
            writer.close()
            return
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.wait_for(shaking, DEADLINE_SECONDS)


@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(range(256)) * 40, b"\x16\x03\x01\xff\xff"],
)
async def test_what_is_no_tls_is_dropped_and_others_are_served(served, client, noise):
    async with served() as port:
        host, _, number = port.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(number))
        writer.write(noise)
        await port.works(client())
        async with asyncio.timeout(DEADLINE_SECONDS):
            with contextlib.suppress(OSError):
                writer.write_eof()
                await reader.read()
        writer.close()


# --- authorization ----------------------------------------------------------------------------------------------------


def told_refused(caplog) -> set[tuple[str, str, str]]:
    """Methods, principals and identities in lines of the audit log."""
    fields = [record.tallybook_fields for record in caplog.records if record.getMessage() == "refused"]
    return {(found["method"], found["principal"], found["identity"]) for found in fields}


async def test_a_reader_reads_and_changes_nothing(served, client, caplog):
    async with served() as port:
        await port.works(client("writer"))
        reader = await port.connect(client("reader"))
        assert (await reader.read_entry(1, 0)).verify().payload == b"x"
        assert (await reader.read_lac(1)).lac == -1
        assert await added(reader, 1) == AccessDenied.wire_code
        for refused in (
            reader.fence(1, KEY), reader.recovery_read(1, 0, KEY), reader.write_lac(1, 0, KEY), reader.force(1, KEY),
            reader.recovery_add(encode_batch(1, 1, [b"x"], lac=-1, ledger_length=2, written_at_us=0), KEY),
        ):  # fmt: skip
            with pytest.raises(AccessDenied, match="readers may not write"):
                await refused
        writer = await port.connect(client("writer"))
        assert await added(writer, 1) == 0, "nothing was fenced"
        await asyncio.gather(reader.close(), writer.close())
    who = "readers", "tallybook://reader/app"
    assert told_refused(caplog) == {
        (f"bookie {what}", *who) for what in ("add", "Fence", "RecoveryRead", "WriteLac", "Force", "RecoveryAdd")
    }


async def test_a_writer_keeps_nothing_for_the_cluster_and_a_bookie_does(served, client):
    async with served() as port:
        writer, keeper = await port.connect(client("writer")), await port.connect(client("bookie"))
        batch = encode_batch(1, 0, [b"x"], lac=-1, ledger_length=1, written_at_us=0)
        for ask in (
            lambda one: one.held(1, 0, 9),
            lambda one: one.held_ledgers(-1, 10),
            lambda one: one.damaged((-1, -1), 10),
        ):
            with pytest.raises(AccessDenied, match="writers may not keep"):
                await ask(writer)
            await ask(keeper)
        for ask in (lambda one: one.repair_add(batch), lambda one: one.end_limbo(1)):
            with pytest.raises(AccessDenied, match="writers may not keep"):
                await ask(writer)
        await asyncio.gather(writer.close(), keeper.close())


async def test_a_client_without_a_role_is_told_so(served, client, caplog):
    rules = (
        '[[principal]]\nname = "one"\nroles = ["reader"]\nstreams = ["a"]\ncertificates = ["tallybook://reader/one"]\n'
    )
    async with served(rules) as port:
        with pytest.raises(AccessDenied, match="one may read by name only, at a gateway"):
            await port.connect(client("reader", "one"))
        assert ("one", "tallybook://reader/one") in {found[1:] for found in told_refused(caplog)}
        rules = port.place / "access.toml"
        rules.write_text("")
        port.security.refresh()
        with pytest.raises(AccessDenied, match="no principal has a certificate of tallybook://writer/app"):
            await port.connect(client("writer"))


async def test_a_principal_removed_from_the_rules_loses_its_open_streams(served, client, caplog, monkeypatch):
    monkeypatch.setattr(allowed, "RECHECK_SECONDS", 0.1)
    async with served() as port:
        writer, reader = await port.connect(client("writer")), await port.connect(client("reader"))
        assert await added(writer, 0) == 0
        waiting = asyncio.create_task(writer.wait_lac(1, 100, 60_000))
        rules = port.place / "access.toml"
        rules.write_text(rules.read_text().replace("tallybook://writer/*", "tallybook://author/*"))
        port.security.refresh()
        async with asyncio.timeout(DEADLINE_SECONDS):
            with pytest.raises(BookieUnavailable, match="no principal has"):
                await waiting
        assert writer.broken
        with pytest.raises(AccessDenied, match="no principal has a certificate of tallybook://writer/app"):
            await port.connect(client("writer"))
        assert (await reader.read_entry(1, 0)).verify().payload == b"x"
        await asyncio.gather(writer.close(), reader.close())
    assert {identity for _, _, identity in told_refused(caplog)} == {"tallybook://writer/app"}


async def test_fences_are_audited_with_their_caller_once_per_ledger(served, client, caplog):
    caplog.set_level("INFO", "tallybook.audit")
    async with served() as port:
        writer = await port.connect(client("writer"))
        for _ in range(2):
            await writer.fence(1, KEY)
        await writer.fence(2, KEY)
        await writer.close()
    notes = [record for record in caplog.records if record.name == "tallybook.audit"]
    told = [(note.getMessage(), note.tallybook_fields) for note in notes]
    assert [(event, fields["ledger_id"]) for event, fields in told] == [("fence", 1), ("fence", 2)]
    assert {(fields["principal"], fields["identity"]) for _, fields in told} == {("writers", "tallybook://writer/app")}


async def test_a_principal_takes_no_more_than_it_may_and_others_are_served_as_ever(served, client):
    most = 40 * MIN_STREAM_BYTES
    rules = (
        f'[[principal]]\nname = "greedy"\nroles = ["writer"]\nmax_bytes = {most}\nmax_requests = 100\n'
        'certificates = ["tallybook://writer/greedy"]\n'
    )
    async with served(rules) as port:
        taken: list[BookieRpc] = []

        async def take_all() -> None:
            while True:
                taken.append(await port.connect(client("writer", "greedy")))

        with pytest.raises(Busy, match="greedy may have"):
            await take_all()
        assert taken
        assert await added(taken[0], 0) == 0
        await port.works(client("writer"))
        await asyncio.gather(*(connection.close() for connection in taken))
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                with contextlib.suppress(Busy):
                    # What was taken comes back when the bookie has seen the end of its streams.
                    await port.works(client("writer", "greedy"))
                    break


# --- while it runs ----------------------------------------------------------------------------------------------------


async def test_certificates_are_renewed_and_an_authority_is_replaced_while_clients_are_served(served, client, tmp_path):
    async with served() as port:
        old = client()
        held = await port.connect(old)
        # A new authority, trusted beside the old one first; then it alone.
        fresh = Authority.create(tmp_path / "fresh")
        both = (port.place / "ca.crt").read_bytes() + (tmp_path / "fresh/ca.crt").read_bytes()
        (port.place / "ca.crt").write_bytes(both)
        (old / "ca.crt").write_bytes(both)
        new = client(by=fresh)
        (new / "ca.crt").write_bytes(both)
        port.security.refresh()
        await port.works(old)
        await port.works(new)
        fresh.issue(port.place, Subject(Role.BOOKIE, "b1", ("127.0.0.1",)), days=5)
        port.security.refresh()
        assert (port.security.identity.expires_at - datetime.now(UTC)).days >= 4
        await port.works(new)
        with pytest.raises(Unauthenticated):
            await port.connect(old)
        assert await added(held, 7) == 0, "who is connected stays so"
        await held.close()


async def test_certificates_may_be_exchanged_while_clients_come_and_go_as_fast_as_they_can(served, client, monkeypatch):
    """gRPC itself would bring the process down: it lets go of certificates that a handshake is about to take."""
    monkeypatch.setattr(grpc_security, "EXCHANGE_SECONDS", 0.005)
    threads: set[int] = set()
    fresh = grpc_security._Exchange.fresh

    def watched(exchange: Any) -> Any:
        threads.add(threading.get_ident())
        return fresh(exchange)

    monkeypatch.setattr(grpc_security._Exchange, "fresh", watched)
    async with served() as port:
        transport = bookie_transport(security=open_security(str(client()), serves=False))
        material = port.security._material
        came = 0

        async def come_and_go(patience_seconds: float) -> None:
            nonlocal came
            with contextlib.suppress(BookieUnavailable, TimeoutError):
                async with asyncio.timeout(patience_seconds):
                    stream = await transport.connect(port.address, Lane.READ, timeout_seconds=10)
                    came += 1
                    await stream.close()

        for _ in range(20):
            port.security._material = replace(material, identity=replace(material.identity))
            await asyncio.gather(*(come_and_go(seconds) for seconds in (0.01, 0.02, 0.03, 10, 10, 10)))
        assert came >= 60
    assert threads
    assert threading.get_ident() not in threads, "waiting there would hold up everything"

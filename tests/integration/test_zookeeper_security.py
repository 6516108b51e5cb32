"""The ZooKeeper driver with TLS and access control lists."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import CREATOR_ALL_ACL, make_digest_acl

from tallybook.bench.equipment.zookeeper_server import ZooKeeperServer
from tallybook.core.access import Role
from tallybook.core.answers import Incarnation
from tallybook.core.errors import AccessDenied, InvalidConfig, MetadataUnavailable
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata
from tallybook.metadata.store import BookieInfo
from tallybook.metadata.uri import open_metadata
from tallybook.metadata.zookeeper.session import TlsHandler
from tallybook.runtime.clock import RealClock
from tallybook.runtime.logging import set_up_logging
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.security.authority import Authority, Subject

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def server(authority, tmp_path) -> Iterator[ZooKeeperServer]:
    authority.issue(tmp_path / "zk", Subject(Role.BOOKIE, "zk", ("127.0.0.1",)), days=1)
    with ZooKeeperServer(tmp_path / "zookeeper", security=tmp_path / "zk") as running:
        yield running


def directory(authority: Authority, place: Path, password: str = "tally:secret", subject: Subject | None = None) -> str:
    """The security directory of a client; without a ``subject``, of a bookie of its name."""
    authority.issue(place, subject or Subject(Role.BOOKIE, place.name, ("127.0.0.1",)), days=1)
    if password:
        auth = place / "zookeeper.auth"
        auth.touch(mode=0o600)
        auth.write_text(password)
    return str(place)


async def opened(address: str, security: str, scheme: str = "zks", timeout_seconds: float = 10.0):
    uri = f"{scheme}://{address}/tallybook"
    return await open_metadata(
        uri, create=True, clock=RealClock(), rng=SystemRng(), timeout_seconds=timeout_seconds, security=security
    )


async def test_new_nodes_are_closed_to_clients_without_the_password(server, authority, tmp_path):
    security = directory(authority, tmp_path / "b1", "tally:secret")
    async with await opened(server.secure_address, security) as metadata:
        made = LedgerMetadata(7, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0)
        await metadata.store.create_ledger(made)
        assert (await metadata.store.read_ledger(7)).value == made
        stranger = KazooClient(server.address)
        stranger.start()
        try:
            assert "tallybook" in stranger.get_children("/")
            for ask in (stranger.get_children, stranger.get, lambda path: stranger.set(path, b"")):
                with pytest.raises(NoAuthError):
                    ask("/tallybook")
                with pytest.raises(NoAuthError):
                    ask("/tallybook/ledgers")
        finally:
            stranger.stop()
            stranger.close()
    other = directory(authority, tmp_path / "b2", "tally:wrong")
    with pytest.raises(AccessDenied):
        await opened(server.secure_address, other)
    async with await opened(server.secure_address, security) as metadata:
        assert (await metadata.store.read_ledger(7)).value == made


async def test_the_reading_user_reads_everything_that_the_cluster_makes_and_changes_nothing(
    server, authority, tmp_path
):
    places = {name: Path(directory(authority, tmp_path / name)) for name in ("b1", "b2")}
    only_reads = Path(directory(authority, tmp_path / "dash", "", Subject(Role.READER, "dash")))
    for place in (*places.values(), only_reads):
        auth = place / "zookeeper-reader.auth"
        auth.touch(mode=0o600)
        auth.write_text("tallyreader:weak")
    made = LedgerMetadata(7, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0)
    info = BookieInfo("b1", "127.0.0.1:7400", Incarnation("uuid", 1))
    async with await opened(server.secure_address, str(places["b1"])) as cluster:
        cluster_id = await cluster.store.cluster_id()
        await cluster.store.create_ledger(made)
        await cluster.store.write_record("name", b"value", None)
        await cluster.store.write_cookie("b1", b"cookie")
        await cluster.membership.register(info)
        async with await opened(server.secure_address, str(only_reads)) as reader:
            assert await reader.store.cluster_id() == cluster_id
            assert (await reader.store.read_ledger(7, linearizable=True)).value == made
            assert (await reader.store.list_records()).names == ("name",)
            assert await reader.membership.bookies() == {"b1": info}
            with pytest.raises(AccessDenied, match="tallybook://reader/dash may only read"):
                await reader.store.delete_ledger(7, 0)
        with asking(server.secure_address, str(only_reads), "tallyreader:weak") as dishonest:
            for path in below(dishonest, "/tallybook"):
                with pytest.raises(NoAuthError):
                    dishonest.set(path, b"")
                with pytest.raises(NoAuthError):
                    dishonest.create(f"{path}/new", b"")
    async with await opened(server.secure_address, str(places["b2"])) as second:
        await second.store.update_ledger(made, (await second.store.read_ledger(7)).version)


async def test_a_writer_with_only_the_password_of_the_reading_user_gets_the_name_of_the_missing_file(
    server, authority, tmp_path
):
    place = Path(directory(authority, tmp_path / "app", "", Subject(Role.WRITER, "app")))
    auth = place / "zookeeper-reader.auth"
    auth.touch(mode=0o600)
    auth.write_text("tallyreader:weak")
    with pytest.raises(InvalidConfig, match=r"has only zookeeper-reader.auth.*needs zookeeper.auth"):
        await opened(server.secure_address, str(place))


@contextmanager
def asking(address: str, security: str, password: str = "") -> Iterator[KazooClient]:
    """ZooKeeper as a client with a certificate sees it, and with a password if it is given."""
    client = KazooClient(
        address, handler=TlsHandler(security), auth_data=[("digest", password)] if password else None, timeout=10
    )
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def below(client: KazooClient, path: str) -> Iterator[str]:
    """A node, and all below it."""
    yield path
    for name in client.get_children(path):
        yield from below(client, f"{path}/{name}")


async def test_a_certificate_of_the_name_of_a_bookie_opens_nothing_that_the_bookie_has_made(
    server, authority, tmp_path
):
    """ZooKeeper knows a certificate by its common name, which says nothing of the role that it was given for."""
    security = directory(authority, tmp_path / "b1")
    of_reader = directory(authority, tmp_path / "reader", "tally:guess", Subject(Role.READER, "b1"))
    async with await opened(server.secure_address, security) as metadata:
        await metadata.store.create_ledger(LedgerMetadata(7, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0))
        await metadata.membership.register(BookieInfo("b1", "127.0.0.1:7400", Incarnation("uuid", 1)))
        with asking(server.secure_address, security, "tally:secret") as owner:
            nodes = list(below(owner, "/tallybook"))
            acls = {path: owner.get_acls(path)[0] for path in nodes}
        assert len(nodes) > 8
        with asking(server.secure_address, of_reader) as reader:
            for path in nodes:
                with pytest.raises(NoAuthError):
                    reader.get(path)
                with pytest.raises(NoAuthError):
                    reader.set(path, b"")
    assert set(map(tuple, acls.values())) == {(make_digest_acl("tally", "secret", all=True),)}
    with pytest.raises(AccessDenied):
        await opened(server.secure_address, of_reader)


async def test_nodes_that_are_open_to_a_certificate_are_used_as_they_are_with_a_warning(
    server, authority, tmp_path, caplog
):
    security = directory(authority, tmp_path / "b1")
    with asking(server.secure_address, security, "tally:secret") as owner:
        owner.create("/tallybook", b"", acl=CREATOR_ALL_ACL)
        schemes = {each.id.scheme for each in owner.get_acls("/tallybook")[0]}
    assert schemes == {"digest", "x509"}, "so it was made by a certificate, too"
    for name in ("b1", "b2"):
        async with await opened(server.secure_address, directory(authority, tmp_path / name)) as metadata:
            await metadata.store.cluster_id()
    assert [line.msg % line.args for line in caplog.records if line.name.startswith("tallybook")] == [
        "metadata is open to others"
    ] * 2


@pytest.fixture
def everything() -> Iterator[io.StringIO]:
    """The log of a process with the most detailed level."""
    root, audits, stream = logging.getLogger(), logging.getLogger("tallybook.audit"), io.StringIO()
    handlers, levels = list(root.handlers), (root.level, audits.level)
    set_up_logging("DEBUG", "json", stream)
    try:
        yield stream
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        audits.setLevel(levels[1])


async def test_the_password_is_not_logged_whether_it_fits_or_not(server, authority, tmp_path, everything):
    fits, does_not = "geheim-4711", "geheim-4712"
    async with await opened(server.secure_address, directory(authority, tmp_path / "b1", f"tally:{fits}")) as metadata:
        await metadata.store.cluster_id()
    with pytest.raises(AccessDenied) as refused:
        await opened(server.secure_address, directory(authority, tmp_path / "b2", f"tally:{does_not}"))
    assert "kazoo" in everything.getvalue(), "which knows the password, and is asked for all that it has to say"
    assert not any(password in everything.getvalue() + str(refused.value) for password in (fits, does_not))


async def test_a_password_with_a_colon_in_it_is_the_same_to_both_sides(server, authority, tmp_path):
    security = directory(authority, tmp_path / "b1", "tally:se:cr:et")
    for _ in range(2):
        async with await opened(server.secure_address, security) as metadata:
            await metadata.store.cluster_id()


async def test_a_server_or_a_client_of_another_authority_is_not_connected_to(server, authority, tmp_path):
    stranger = Authority.create(tmp_path / "stranger")
    with pytest.raises(MetadataUnavailable):
        await opened(server.secure_address, directory(stranger, tmp_path / "s1"), timeout_seconds=2.0)
    forged = directory(stranger, tmp_path / "s2")
    (tmp_path / "s2/ca.crt").write_bytes((tmp_path / "authority/ca.crt").read_bytes())
    with pytest.raises(MetadataUnavailable):
        await opened(server.secure_address, forged, timeout_seconds=2.0)


async def test_a_server_whose_certificate_is_for_another_host_is_not_connected_to(server, authority, tmp_path):
    security = directory(authority, tmp_path / "b1")
    _, _, port = server.secure_address.rpartition(":")
    with pytest.raises(MetadataUnavailable):
        await opened(f"localhost:{port}", security, timeout_seconds=2.0)


async def test_a_connection_comes_back_with_the_certificate_that_is_there_then(server, authority, tmp_path):
    security = directory(authority, tmp_path / "b1")
    async with await opened(server.secure_address, security) as metadata:
        await metadata.store.cluster_id()
        fresh = Authority.create(tmp_path / "fresh")
        both = b"".join((tmp_path / name / "ca.crt").read_bytes() for name in ("authority", "fresh"))
        server.kill()
        fresh.issue(tmp_path / "zk", Subject(Role.BOOKIE, "zk", ("127.0.0.1",)), days=1)
        (tmp_path / "zk/ca.crt").write_bytes(both)
        (tmp_path / "b1/ca.crt").write_bytes(both)
        server.start()
        await metadata.store.cluster_id()


async def test_with_security_zk_uris_are_refused_and_without_it_zks_uris(authority, tmp_path):
    security = directory(authority, tmp_path / "b1")
    with pytest.raises(InvalidConfig, match="use zks://"):
        await opened("127.0.0.1:1", security, scheme="zk")
    with pytest.raises(InvalidConfig, match="needs a security directory"):
        await opened("127.0.0.1:1", "")


async def test_with_security_there_has_to_be_a_password_and_nothing_is_made_without(server, authority, tmp_path):
    """Otherwise new nodes would be open to every client with any certificate of this authority."""
    without = directory(authority, tmp_path / "b1", "")
    with pytest.raises(InvalidConfig, match=r"b1 has no zookeeper\.auth.*USER:PASSWORD"):
        await opened(server.secure_address, without)
    anonymous = KazooClient(server.address)
    anonymous.start()
    try:
        assert "tallybook" not in anonymous.get_children("/")
    finally:
        anonymous.stop()
        anonymous.close()


async def test_metadata_from_before_that_are_open_to_all_are_reported_until_they_are_closed(
    server, authority, tmp_path, caplog
):
    async with await open_metadata(
        f"zk://{server.address}/tallybook", create=True, clock=RealClock(), rng=SystemRng(), timeout_seconds=10.0
    ):
        pass
    assert not [record for record in caplog.records if record.name.startswith("tallybook")]
    security = directory(authority, tmp_path / "b1")
    async with await opened(server.secure_address, security):
        pass
    [line] = [record for record in caplog.records if record.name.startswith("tallybook")]
    assert line.levelname == "WARNING"
    assert "setAcl" in line.tallybook_fields["error"]
    assert line.tallybook_fields["path"].endswith("/tallybook")
    owner = KazooClient(server.address)
    owner.start()
    try:
        owner.set_acls("/tallybook", [make_digest_acl("tally", "secret", all=True)])
    finally:
        owner.stop()
        owner.close()
    caplog.clear()
    async with await opened(server.secure_address, security):
        pass
    assert not [record for record in caplog.records if record.name.startswith("tallybook")]

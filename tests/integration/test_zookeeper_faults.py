"""The ZooKeeper driver with a real server, over a network that loses answers, and with expired sessions."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from kazoo.client import KazooClient

from tallybook.bench.equipment.zookeeper_server import ZooKeeperServer
from tallybook.core.answers import Incarnation
from tallybook.core.errors import (
    DamagedFile,
    InvalidConfig,
    MetadataConflict,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NewerFormat,
    NoSuchLedger,
)
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, begin_recovery
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.store import BadVersion, BookieInfo, BookieMode, Ok, Unknown
from tallybook.metadata.uri import open_metadata
from tallybook.metadata.zookeeper.client import open_zookeeper
from tallybook.metadata.zookeeper.requests import delete, get, sync
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng

from ..support.waiting import until

pytestmark = pytest.mark.zookeeper

SESSION_SECONDS = 4.0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def root(request) -> str:
    """A root of its own for each test."""
    return f"/faults/{request.node.name.replace('[', '-').replace(']', '')}"


def ledger(ledger_id: int = 7) -> LedgerMetadata:
    return LedgerMetadata(ledger_id, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0)


def bookie(boot: int = 1, **fields) -> BookieInfo:
    return BookieInfo("b1", "host:1", Incarnation("uuid", boot), **fields)


async def connect(address: str, root: str, **options):
    options = {"session_seconds": SESSION_SECONDS, **options}
    return await open_zookeeper((address,), root, create=True, clock=RealClock(), rng=SystemRng(), **options)


async def returns(work, seconds: float = 20.0):
    """Wait for something that must happen."""
    return await asyncio.wait_for(work, seconds)


class Proxy:
    """The network between a client and the server. It can lose what the server answers, and cut connections."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self._pumps: list[asyncio.Task] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._passing = asyncio.Event()
        self._passing.set()
        self._accepting = True
        self.holds = asyncio.Event()
        """It holds an answer back."""
        self.address = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._accepting:
            writer.close()
            return
        host, port = self._server.address.split(":")
        upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
        self._writers += [writer, upstream_writer]
        self._pumps += [
            asyncio.ensure_future(self._pump(reader, upstream_writer, answers=False)),
            asyncio.ensure_future(self._pump(upstream_reader, writer, answers=True)),
        ]

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if answers:
                    if not self._passing.is_set():
                        self.holds.set()
                    await self._passing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()

    def hold_answers(self) -> None:
        """The server receives from the client; the client receives nothing."""
        self._passing.clear()
        self.holds.clear()

    async def cut(self, *, refuse: bool = False) -> None:
        """Break every connection, losing what was held; with ``refuse`` new ones are broken, too."""
        self._accepting = not refuse
        pumps, self._pumps = self._pumps, []
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        self._writers.clear()
        self._passing.set()

    def heal(self) -> None:
        """Accept connections again."""
        self._accepting = True


@contextlib.asynccontextmanager
async def proxied(server: ZooKeeperServer) -> AsyncIterator[Proxy]:
    proxy = Proxy(server)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    proxy.address = f"{host}:{port}"
    try:
        yield proxy
    finally:
        await proxy.cut(refuse=True)
        listener.close()
        await listener.wait_closed()


@contextlib.asynccontextmanager
async def rig(server, root, **options):
    """A client behind a proxy, the proxy, and a client that reaches the server directly."""
    async with (
        proxied(server) as proxy,
        await connect(server.address, root) as direct,
        await connect(proxy.address, root, **options) as client,
    ):
        try:
            yield client, proxy, direct
        finally:
            proxy.heal()


def session_of(client):
    """The session through which a client sends its requests."""
    return client.store._session


def hold_from_the_next_write(client, proxy: Proxy) -> None:
    """Hold the server's answers back once the client has something to change."""
    session = session_of(client)
    original = session.send_once

    async def send_once(request):
        session.send_once = original
        proxy.hold_answers()
        return await original(request)

    session.send_once = send_once


def requests_of(client) -> list:
    """Every request that the client sends from now on."""
    session, sent = session_of(client), []
    original = session._submit
    session._submit = lambda request: (sent.append(request), original(request))[1]
    return sent


async def expire(server: ZooKeeperServer, client) -> None:
    """End a client's session over a second connection, which asks ZooKeeper to close it."""
    session = session_of(client)._kazoo.client_id

    def close_session() -> None:
        thief = KazooClient(server.address, client_id=session)
        thief.start()
        thief.stop()
        thief.close()

    await asyncio.to_thread(close_session)


async def landed(direct, version: int) -> None:
    """Wait until the server has taken a write whose answer is held back."""

    async def newer() -> bool:
        return (await direct.store.read_ledger(7, linearizable=True)).version > version

    await until(newer)


async def listed(direct, ledger_ids: tuple[int, ...]) -> bool:
    return (await direct.store.list_ledgers()).ledger_ids == ledger_ids


async def connected(client, expected: bool) -> bool:
    return session_of(client)._connected.is_set() == expected


# --- writes whose answer is lost --------------------------------------------------------------------------------------


async def test_c07_an_update_that_was_applied_and_cut_off_is_unknown_and_not_a_conflict(server, root):
    async with rig(server, root) as (client, proxy, direct):
        created = await client.store.create_ledger(ledger())
        proxy.hold_answers()
        write = asyncio.ensure_future(client.store.update_ledger(begin_recovery(created.value), created.version))
        await landed(direct, created.version)
        await proxy.cut()
        assert isinstance(await returns(write), Unknown)
        back = await client.store.read_ledger(7, linearizable=True)
        assert back == (begin_recovery(created.value), created.version + 1)


async def test_c07_the_update_loop_recognises_its_own_edit(server, root):
    async with rig(server, root) as (client, proxy, direct):
        created = await client.store.create_ledger(ledger())
        proxy.hold_answers()
        updater = LedgerUpdater(client.store, RealClock(), SystemRng())
        update = asyncio.ensure_future(updater.update(7, begin_recovery, known=created))
        await landed(direct, created.version)
        await proxy.cut()
        assert await returns(update) == (begin_recovery(created.value), created.version + 1)


async def test_a_write_that_hangs_ends_in_the_deadline_as_unknown_and_may_land_later(server, root):
    async with rig(server, root, timeout_seconds=3, session_seconds=12) as (client, _, direct):
        created = await client.store.create_ledger(ledger())
        server.pause()
        try:
            result = await returns(client.store.update_ledger(begin_recovery(created.value), created.version))
            assert isinstance(result, Unknown)
        finally:
            server.resume()
        await landed(direct, created.version)
        assert (await direct.store.read_ledger(7)).value == begin_recovery(created.value)


async def test_a_creation_cut_off_is_unknown_and_the_same_call_settles_it(server, root):
    async with rig(server, root) as (client, proxy, direct):
        await client.store.create_ledger(ledger(8))
        proxy.hold_answers()
        creation = asyncio.ensure_future(client.store.create_ledger(ledger()))
        await until(lambda: listed(direct, (7, 8)))
        await proxy.cut()
        with pytest.raises(MetadataOutcomeUnknown):
            await returns(creation)
        assert await client.store.create_ledger(ledger()) == (ledger(), 0)


async def test_r09_a_deletion_cut_off_is_unknown_and_its_id_stays_used(server, root):
    async with rig(server, root) as (client, proxy, direct):
        created = await client.store.create_ledger(ledger())
        await client.store._tree.group(7, fresh=True)
        hold_from_the_next_write(client, proxy)
        deletion = asyncio.ensure_future(client.store.delete_ledger(7, created.version))
        await until(lambda: listed(direct, ()))
        await proxy.cut()
        assert isinstance(await returns(deletion), Unknown)
        with pytest.raises(NoSuchLedger):
            await client.store.read_ledger(7, linearizable=True)
        assert await client.store.delete_ledger(7, created.version) == BadVersion()


async def test_interrupted_cookie_and_registration_writes_are_resolved_by_the_same_call(server, root):
    async with rig(server, root) as (client, proxy, direct):
        proxy.hold_answers()
        write = asyncio.ensure_future(client.store.write_cookie("b1", b"cookie"))
        await until(lambda: direct.store.read_cookie("b1"))
        await proxy.cut()
        with pytest.raises(MetadataOutcomeUnknown):
            await returns(write)
        await client.store.write_cookie("b1", b"cookie")

        proxy.hold_answers()
        registering = asyncio.ensure_future(client.membership.register(bookie()))
        await until(direct.membership.bookies)
        path = client.membership.layout.bookie("b1")
        [(_, before)] = await session_of(direct).ask(get(path))
        await proxy.cut()
        registration = await returns(registering)
        [(_, after)] = await session_of(direct).ask(get(path))
        assert before.czxid == after.czxid, "the node was made a second time"
        assert await direct.membership.bookies() == {"b1": bookie()}
        await registration.update(bookie(mode=BookieMode.READ_ONLY))


async def test_an_id_block_of_unknown_outcome_is_skipped_not_used_twice(server, root):
    async with rig(server, root) as (client, proxy, direct):
        assert [await client.store.next_ledger_id() for _ in range(3)] == [0, 1, 2]  # blocks of 1 and 2
        assert await direct.store.id_counter() == 3
        hold_from_the_next_write(client, proxy)
        drawing = asyncio.ensure_future(client.store.next_ledger_id())

        async def taken_by_a_client() -> bool:
            return await direct.store.id_counter() > 3

        await until(taken_by_a_client)
        await proxy.cut()
        assert await returns(drawing) == 7, "the block of 4 ids from 3 on may be somebody's"


# --- reads, and no server ---------------------------------------------------------------------------------------------


async def test_a_read_cut_off_is_repeated_within_its_deadline(server, root):
    async with rig(server, root) as (client, proxy, _):
        created = await client.store.create_ledger(ledger())
        for linearizable in (False, True):
            proxy.hold_answers()
            read = asyncio.ensure_future(client.store.read_ledger(7, linearizable=linearizable))
            await returns(proxy.holds.wait())
            await proxy.cut()
            assert await returns(read) == created


async def test_without_a_connection_nothing_is_sent_and_everything_says_so_in_time(server, root):
    async with rig(server, root, timeout_seconds=0.5) as (client, proxy, direct):
        created = await client.store.create_ledger(ledger())
        await proxy.cut(refuse=True)
        await until(lambda: connected(client, False))
        for operation in (
            lambda: client.store.read_ledger(7),
            lambda: client.store.update_ledger(begin_recovery(created.value), created.version),
            lambda: client.store.delete_ledger(7, created.version),
            lambda: client.store.create_ledger(ledger(8)),
            client.store.next_ledger_id,
            client.store.list_ledgers,
            client.membership.bookies,
            lambda: client.membership.register(bookie()),
        ):
            with pytest.raises(MetadataUnavailable, match=f"zk://{proxy.address}{root}: no server answers"):
                await returns(operation(), 5)
        proxy.heal()
        await until(lambda: connected(client, True))
        assert await direct.store.read_ledger(7) == await client.store.read_ledger(7) == created
        assert await direct.store.list_ledgers() == ((7,), True)


async def test_opening_an_address_without_a_server_names_the_uri(server, root):
    async with proxied(server) as proxy:
        await proxy.cut(refuse=True)
        uri = f"zk://{proxy.address}/tallybook"
        with pytest.raises(MetadataUnavailable, match=f"{uri}: no server answers within 0.3 s"):
            await open_metadata(uri, create=True, clock=RealClock(), rng=SystemRng(), timeout_seconds=0.3)


async def test_a_uri_of_a_server_that_is_there_opens(server, root):
    uri = f"zk://{server.address}{root}/deep/below"
    async with await open_metadata(uri, create=True, clock=RealClock(), rng=SystemRng()) as metadata:
        assert await metadata.store.list_ledgers() == ((), True)


# --- sessions that end ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_seconds", [0.3, 20], ids=["outage beyond the deadline", "short outage"])
async def test_c41_watches_wake_on_a_new_session_for_what_was_missed_in_between(server, root, timeout_seconds):
    async with rig(server, root, timeout_seconds=timeout_seconds) as (client, proxy, direct):
        created = await client.store.create_ledger(ledger())
        watch, bookies = client.store.watch_ledger(7), client.membership.watch()
        for waiting in (watch, bookies):
            await returns(waiting.changed())
        await proxy.cut(refuse=True)
        await expire(server, client)
        replaced = replace(created.value, fragments=(Fragment(0, ("b9",)),))
        await direct.store.update_ledger(replaced, created.version)
        await direct.membership.register(bookie())
        with contextlib.suppress(MetadataUnavailable, TimeoutError):
            await asyncio.wait_for(client.store.list_ledgers(), 0.5)
        proxy.heal()
        await returns(watch.changed())
        await returns(bookies.changed())
        assert (await client.store.read_ledger(7)).value == replaced
        assert await client.membership.bookies() == {"b1": bookie()}
        again = await client.store.read_ledger(7)
        await direct.store.delete_ledger(7, again.version)

        async def follow() -> None:
            while True:
                await client.store.read_ledger(7)
                await watch.changed()

        with pytest.raises(NoSuchLedger):
            await returns(follow())


async def test_watches_wake_after_a_lost_connection_within_the_session(server, root):
    async with rig(server, root) as (client, proxy, direct):
        created = await client.store.create_ledger(ledger())
        watch = client.store.watch_ledger(7)
        await returns(watch.changed())
        for expected in (1, 2, 3):
            await proxy.cut(refuse=True)
            current = await direct.store.read_ledger(7, linearizable=True)
            changed = replace(created.value, custom={"n": b"%d" % expected})
            await direct.store.update_ledger(changed, current.version)
            proxy.heal()
            async with asyncio.timeout(20):
                while (await client.store.read_ledger(7)).version != expected:
                    await watch.changed()


async def test_r07_a_registration_ends_with_its_session_and_a_new_one_can_be_made(server, root):
    async with rig(server, root) as (client, proxy, direct):
        registration = await client.membership.register(bookie())
        await proxy.cut(refuse=True)
        await expire(server, client)
        assert await direct.membership.bookies() == {}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(registration.lost(), 0.2)
        proxy.heal()
        await returns(registration.lost())
        with pytest.raises(MetadataConflict):
            await registration.update(bookie(mode=BookieMode.READ_ONLY))
        await client.membership.register(bookie())
        assert await direct.membership.bookies() == {"b1": bookie()}


async def test_the_death_of_the_task_that_arms_watches_ends_them_and_the_registrations(server, root, monkeypatch):
    async with await connect(server.address, root) as client:
        watch, registration = client.store.watch_ledger(7), await client.membership.register(bookie())
        await returns(watch.changed())

        def die(_key):
            raise RuntimeError("a defect")

        monkeypatch.setattr(client.store._hub, "_arming", die)
        await client.store.create_ledger(ledger())
        await returns(registration.lost())

        async def follow() -> None:
            while True:
                await watch.changed()

        with pytest.raises(MetadataUnavailable):
            await returns(follow())


async def test_a_registration_survives_a_lost_connection(server, root):
    async with rig(server, root) as (client, proxy, direct):
        registration = await client.membership.register(bookie())
        for _ in range(3):
            await proxy.cut()
            await client.store.list_ledgers()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(registration.lost(), 0.3)
        assert await direct.membership.bookies() == {"b1": bookie()}


async def test_a_registration_whose_node_an_operator_removed_is_lost(server, root):
    async with rig(server, root) as (client, _, direct):
        registration = await client.membership.register(bookie())
        path = client.membership.layout.bookie("b1")
        await session_of(direct).ask(delete(path))
        await returns(registration.lost())


async def test_the_first_read_of_a_new_session_is_preceded_by_a_sync(server, root):
    async with rig(server, root) as (client, proxy, _):
        await client.store.create_ledger(ledger())
        sent = requests_of(client)
        await client.store.read_ledger(7)
        await client.store.read_ledger(7, linearizable=True)
        assert [request is sync for request in sent] == [False, True, False]
        await proxy.cut(refuse=True)
        await expire(server, client)
        proxy.heal()

        async def expired() -> bool:
            return session_of(client)._must_sync

        await until(expired)
        sent.clear()
        await client.store.read_ledger(7)
        await client.store.read_ledger(7)
        assert [request is sync for request in sent] == [True, False, False]


async def test_what_must_not_be_stale_is_preceded_by_a_sync(server, root):
    async with await connect(server.address, root) as client:
        await client.store.create_ledger(ledger())
        sent = requests_of(client)
        for read in (
            lambda: client.store.read_ledger(7, linearizable=True),
            client.store.id_counter,
            client.store.list_ledgers,
            lambda: client.store.read_cookie("b1"),
        ):
            sent.clear()
            await read()
            assert [request is sync for request in sent] == [True, *[False] * (len(sent) - 1)]


# --- the server restarts ----------------------------------------------------------------------------------------------


async def test_clients_go_on_after_the_server_was_killed_and_restarted(tmp_path):
    server = ZooKeeperServer(tmp_path, durable=True)
    await asyncio.to_thread(server.start)
    try:
        # The server has a minute to come up, and on a busy machine it takes that.
        async with await connect(server.address, "/tallybook", timeout_seconds=180, session_seconds=60) as client:
            created = await client.store.create_ledger(ledger())
            registration = await client.membership.register(bookie())
            await asyncio.to_thread(server.kill)
            read = asyncio.ensure_future(client.store.read_ledger(7, linearizable=True))
            await asyncio.to_thread(server.start)
            assert await returns(read, 200) == created
            assert await client.store.update_ledger(begin_recovery(created.value), created.version) == Ok(1)
            if not await client.membership.bookies():
                # The server took the first connection before it could answer on it, and that cost the session.
                await returns(registration.lost())
                registration = await client.membership.register(bookie())
            assert list(await client.membership.bookies()) == ["b1"]
            await registration.close()
            assert await client.membership.bookies() == {}
    finally:
        await asyncio.to_thread(server.kill)


# --- what lies there --------------------------------------------------------------------------------------------------


async def put(server, path: str, data: bytes) -> None:
    def write() -> None:
        kazoo = KazooClient(server.address)
        kazoo.start()
        kazoo.ensure_path(path)
        kazoo.set(path, data)
        kazoo.stop()
        kazoo.close()

    await asyncio.to_thread(write)


async def test_a_root_that_holds_something_else_is_refused(server, root):
    await put(server, f"{root}/brokers", b"")
    with pytest.raises(InvalidConfig, match=f"the node {root} is not that of a cluster"):
        await connect(server.address, root)
    await put(server, f"{root}/format", b"json")
    with pytest.raises(InvalidConfig, match=f"the node {root} is not that of a cluster"):
        await connect(server.address, root)


async def test_a_root_of_a_newer_version_is_named_as_such(server, root):
    await (await connect(server.address, root)).close()
    await put(server, f"{root}/format", b"2")
    with pytest.raises(NewerFormat, match="the layout is of format 2, this Tallybook knows 1"):
        await connect(server.address, root)


async def test_damaged_nodes_are_named_and_never_taken_for_absence(server, root):
    async with await connect(server.address, root) as client:
        await client.store.create_ledger(ledger())
        path = client.store._layout.ledger(7)
        await put(server, path, b"garbage")
        with pytest.raises(DamagedFile, match=f"node {path}: 7 bytes are too few for a header"):
            await client.store.read_ledger(7)
        await put(server, f"{root}/ids", b"many")
        with pytest.raises(DamagedFile, match=f"node {root}/ids holds b'many'"):
            await client.store.id_counter()
        await put(server, f"{root}/ledgers/junk", b"")
        with pytest.raises(DamagedFile, match="'junk' does not belong there"):
            await client.store.list_ledgers()
        await put(server, f"{root}/bookies/b-b1", b"garbage")
        with pytest.raises(DamagedFile, match=f"node {root}/bookies/b-b1"):
            await client.membership.bookies()


async def test_clients_that_meet_an_empty_root_at_once_agree(server, root):
    clients = await asyncio.gather(*(connect(server.address, f"{root}/a/b") for _ in range(5)))
    try:
        assert len({await client.store.cluster_id() for client in clients}) == 1
    finally:
        for client in clients:
            await client.close()


async def test_a_page_looks_up_no_more_than_it_needs(server, root):
    async with await connect(server.address, root) as client:
        for ledger_id in (1, 2, 5000, 2**40, 2**50):
            await client.store.create_ledger(ledger(ledger_id))
        sent = requests_of(client)
        assert await client.store.list_ledgers(limit=1) == ((1,), False)
        # A sync, and one lookup for each of the five levels above the ledgers.
        assert len(sent) == 6

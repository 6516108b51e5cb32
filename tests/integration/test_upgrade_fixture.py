"""Clusters of earlier releases: the present bookies boot from their files, and nothing is missing.

tests/fixtures has a cluster of each release, killed in the middle of its work, with a list of what was confirmed. It
also has the metadata of the cluster as they would be in ZooKeeper, from where everything has to be readable as well.
"""

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tallybook.bench.equipment.bookies import metadata_in
from tallybook.bench.equipment.zookeeper_server import ZooKeeperServer
from tallybook.bookie.journal import format as journal_format
from tallybook.bookie.journal.inspect import inspect_journal, live_blocks
from tallybook.bookie.ledgers import state as ledger_state
from tallybook.bookie.storage.index.rocksdb import RocksIndex
from tallybook.client import Client
from tallybook.core.errors import LedgerExists, NoSuchLedger
from tallybook.core.quorum import Quorum
from tallybook.core.settings import ClientSettings, StorageSettings
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.records.listing import record_names
from tallybook.metadata.transactions import PENDING, Transaction, commit, read_view
from tallybook.metadata.uri import open_metadata
from tallybook.metadata.zookeeper import layout
from tallybook.runtime.clock import RealClock
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.tasks import ThreadWorkers
from tallybook.sim.upgrade.contents import (
    BIRTH_MS,
    DELIVERED_STREAM,
    ENDED_STREAM,
    LONG_STREAM,
    MADE_IN,
    SINK,
    STREAM,
    SUBSCRIPTION,
    checksum,
    payloads,
)
from tallybook.sim.upgrade.fixture import WIRE_SUFFIX, names_in, nodes_of, places_of, say_where, unpack
from tallybook.spark.ledgers.offset import StreamOffset
from tallybook.spark.query.snapshot import parse_snapshot
from tallybook.spark.streams.offsets import RecordOffset
from tallybook.stream import Start, StreamStore

from ..formats import FORMATS

FIXTURES = Path(__file__).parents[1] / "fixtures"
NEW_ENTRIES = 100


class Cluster:
    """The bookies of a fixture, with today's code.

    Args:
        metadata: URI of the metadata; not given: as they were left.
    """

    def __init__(self, start_bookie, root: Path, told: dict, metadata: str = "") -> None:
        self.metadata = metadata or metadata_in(root)
        self._settings = ClientSettings(archive_keys=str(root / told["keys"]))
        self._begin = lambda name: start_bookie(
            root / name, name, self.metadata, *places_of(name, told["places"], root)
        )
        self._names = told["bookies"]
        self._bookies = []

    def client(self) -> Client:
        """Today's, with the keys of the archive."""
        return Client(self.metadata, self._settings)

    async def start(self) -> None:
        """Start all; return when all are ready."""
        self._bookies = [self._begin(name) for name in self._names]
        async with asyncio.timeout(60):
            while not all(bookie.ready() for bookie in self._bookies):  # noqa: ASYNC110 (other processes set no event)
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Stop all cleanly."""
        bookies, self._bookies = self._bookies, []
        for bookie in bookies:
            bookie.process.terminate()
        for bookie in bookies:
            await asyncio.to_thread(bookie.process.join, 60)
            assert bookie.process.exitcode == 0

    def kill(self) -> None:
        """Leave nothing behind."""
        for bookie in self._bookies:
            bookie.kill()
            assert bookie.process.exitcode in (0, -signal.SIGKILL)


async def read(client: Client, told: dict, *, more: int = 0) -> list[bytes]:
    """All entries of a ledger; except for ``more``, it has none that were not confirmed."""
    reader = await client.open_ledger(told["id"], password=told.get("password", "").encode())
    last = reader.last_add_confirmed
    assert told["entries"] <= last + 1 <= told["entries"] + more
    return [entry.payload async for entry in reader.read(0, last)] if last >= 0 else []


async def check_ledgers(client: Client, ledgers: dict) -> None:
    """Every ledger is as it was left, or has come to its end; and is in view, if its transaction was committed."""
    view = await read_view(client.world.store)
    for tag, told in ledgers.items():
        if told["state"] == "deleted":
            with pytest.raises(NoSuchLedger):
                await client.open_ledger(told["id"])
            continue
        before = await client.ledger_metadata(told["id"])
        assert view.sees(before) == told.get("seen", True), tag
        assert (before.state is LedgerState.CLOSED) == (told["state"] == "closed")
        assert {key: value.hex() for key, value in before.custom.items()} == told.get("custom", {})
        assert (before.archived is not None, before.copies_released) == (told.get("archived", False),) * 2
        # Of an open ledger the last entry may have been durable, and not yet said to be.
        found = await read(client, told, more=0 if told["state"] == "closed" else 1)
        assert checksum(found[: told["entries"]]) == told["sha256"], tag
        assert (await client.ledger_metadata(told["id"])).state is LedgerState.CLOSED
        told["state"] = "closed"
    assert [each async for each in client.list_ledgers()], "listings go on"


async def check_streams(client: Client, told: dict, *, more: int) -> None:
    """Every record of every stream, with what it carries; and subscriptions are where they were."""
    streams = StreamStore(client)
    for name, of_stream in told.items():
        inside = StreamStore(client, namespace=of_stream["namespace"]) if "namespace" in of_stream else streams
        records = [record async for record in inside.reader(name, follow=False)]
        assert len(records) == of_stream["records"] + more * (name == STREAM)
        assert checksum(record.payload for record in records[: of_stream["records"]]) == of_stream["sha256"]
        assert [record.sequence for record in records] == list(range(len(records)))
    records = [record async for record in streams.reader(STREAM, start=Start.sequence(590), follow=False)]
    assert records[0].timestamp_ms == BIRTH_MS + 590_000
    assert (records[0].key, records[0].txid, records[0].dedup_id) == (b"2", 590, b"order-590")
    found = await anext(aiter(streams.reader(STREAM, start=Start.timestamp(BIRTH_MS + 123_000), follow=False)))
    assert found.sequence == 123
    await streams.close()


async def finish_what_was_begun(client: Client, streams: StreamStore, ledgers: dict) -> None:
    """Commit the transaction that was not, and bring the batch into its stream that was committed and cut off."""
    begun = ledgers["sold-3"]
    updater = LedgerUpdater(client.world.store, client.world.clock, client.world.rng)
    assert await commit(updater, Transaction(SINK, 3, MADE_IN), [begun["id"]])
    del begun["custom"][PENDING]
    begun["seen"] = True
    assert await streams.keep() == 0


def check_spark(told: dict) -> None:
    """Data stored by Spark are decoded, and would be encoded to the same bytes."""
    assert StreamOffset.parse(told["ledgers"]).json() == told["ledgers"]
    assert RecordOffset.parse(told["streams"]).json() == told["streams"]
    assert str(parse_snapshot(told["snapshot"])) == told["snapshot"]


async def go_on(client: Client, streams: StreamStore, told: dict) -> tuple[int, int]:
    """Write as before: to a new ledger, and to the stream; the ledger, and how many records came to the stream."""
    async with await client.create_ledger() as writer:
        await writer.append_many(payloads("new", NEW_ENTRIES))
    async with await streams.writer(STREAM) as stream:
        known = await stream.append(b"sent again", dedup_id=f"order-{told['records'] - 1}", txid=told["records"])
        last = [record async for record in streams.reader(STREAM, start=Start.at(known), follow=False)]
        assert last[0].payload == payloads(STREAM, 1, told["records"] - 1)[0], "it is there once"
        await stream.append_many(payloads("new", NEW_ENTRIES))
        await stream.commit()
    async with await streams.subscribe(STREAM, SUBSCRIPTION, follow=False) as reader:
        first = await anext(aiter(reader))
        assert first.sequence == told["subscriptions"][SUBSCRIPTION]
        await reader.advance(first.position)
    return writer.id, NEW_ENTRIES


async def read_and_gone_on_with(cluster: Cluster, told: dict) -> None:
    """All confirmed entries are there; so are new ones, after a restart of the bookies."""
    check_spark(told["spark"])
    try:
        await cluster.start()
        async with cluster.client() as client, StreamStore(client) as streams:
            await check_ledgers(client, told["ledgers"])
            await finish_what_was_begun(client, streams, told["ledgers"])
            # What a writer that died had confirmed is seen by all once another one has taken over.
            ledger_id, count = await go_on(client, streams, told["streams"][STREAM])
            await check_streams(client, told["streams"], more=count)
        await cluster.stop()
        await cluster.start()
        async with cluster.client() as client, StreamStore(client) as streams:
            await check_ledgers(client, told["ledgers"])
            await check_streams(client, told["streams"], more=count)
            reader = await client.open_ledger(ledger_id)
            assert [entry.payload async for entry in reader.read(0, count - 1)] == payloads("new", count)
            async with await streams.subscribe(STREAM, SUBSCRIPTION, follow=False) as behind:
                found = await anext(aiter(behind))
                assert found.sequence == told["streams"][STREAM]["subscriptions"][SUBSCRIPTION] + 1
        await cluster.stop()
    finally:
        cluster.kill()


@pytest.mark.parametrize("name", names_in(FIXTURES))
async def test_everything_that_a_release_has_confirmed_is_read_and_gone_on_with(name, start_bookie, tmp_path):
    told = await unpack(FIXTURES, name, tmp_path)
    await read_and_gone_on_with(Cluster(start_bookie, tmp_path, told), told)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


def put_nodes(address: str, root: str, nodes: dict[str, bytes]) -> None:
    """Make nodes below ``root``, as a release has left them."""
    client = KazooClient(address)
    client.start()
    try:
        client.create(root)
        for path, value in nodes.items():
            client.create(f"{root}/{path}", value)
    finally:
        client.stop()
        client.close()


@pytest.mark.zookeeper
@pytest.mark.parametrize("name", names_in(FIXTURES))
async def test_the_same_is_true_of_a_release_that_had_its_metadata_in_zookeeper(
    name, zookeeper, start_bookie, tmp_path
):
    told = await unpack(FIXTURES, name, tmp_path)
    for file in tmp_path.glob("metadata.db*"):
        file.unlink()
    root = f"/release-{name}"
    await asyncio.to_thread(put_nodes, zookeeper.address, root, nodes_of(FIXTURES, name))
    metadata = f"zk://{zookeeper.address}{root}"
    await say_where(metadata, tmp_path)
    async with await open_metadata(metadata, clock=RealClock(), rng=SystemRng()) as found:
        # What the bookies are about to compare theirs with.
        cookies = [await found.store.read_cookie(bookie) for bookie in told["bookies"]]
        assert cookies == [(tmp_path / bookie / "cookie").read_bytes() for bookie in told["bookies"]]
        for ledger in told["ledgers"].values():
            if ledger["state"] == "deleted":
                again = LedgerMetadata(ledger["id"], Quorum(1, 1, 1), (Fragment(0, ("b0",)),), "somebody else", 0)
                with pytest.raises(LedgerExists, match="existed and was deleted"):
                    await found.store.create_ledger(again)
    await read_and_gone_on_with(Cluster(start_bookie, tmp_path, told, metadata), told)


@pytest.mark.parametrize("name", names_in(FIXTURES))
def test_a_fixture_has_ledgers_and_streams_of_every_kind(name):
    told = json.loads((FIXTURES / f"{name}.json").read_text())
    ledgers = told["ledgers"].values()
    assert {each["state"] for each in ledgers} == {"open", "closed", "deleted"}
    assert {"fenced", "missed", "striped", "chosen", "deferred", "empty", "sealed"} <= set(told["ledgers"])
    assert {(each.get("archived", False), "password" in each) for each in ledgers} == set(
        product((True, False), repeat=2)
    )
    assert set(told["streams"]) == {STREAM, ENDED_STREAM, DELIVERED_STREAM, LONG_STREAM}
    assert (FIXTURES / f"{name}.tar.xz").stat().st_size < 1_000_000


# --- one of everything ------------------------------------------------------------------------------------------------


@dataclass
class Left:
    """The content of a fixture.

    Args:
        kinds: of records in the journals.
        rows: in the indexes, each that of a batch.
        states: versions of the states in the indexes.
    """

    root: Path
    told: dict[str, Any]
    records: dict[str, bytes]
    kinds: set[str]
    rows: int
    states: set[int]

    def files(self, pattern: str) -> list[Path]:
        """Files of any bookie, or of the archive, whose path matches."""
        return [path for path in sorted(self.root.glob(pattern)) if path.is_file() and path.stat().st_size]

    def texts(self, pattern: str, begins: str) -> bool:
        """Whether one of these files has this prefix."""
        return any(path.read_bytes().startswith(begins.encode()) for path in self.files(pattern))

    def all_have(self, pattern: str, text: str) -> bool:
        """Whether such files exist, and each contains this."""
        files = self.files(pattern)
        return bool(files) and all(text in path.read_text() for path in files)

    def formats(self, prefix: str) -> set[int]:
        """The records whose names have this prefix."""
        return {json.loads(value)["format"] for name, value in self.records.items() if name.startswith(prefix)}


def file(pattern: str) -> Callable[[Left], object]:
    return lambda left: left.files(pattern)


def record(prefix: str, version: int = 1) -> Callable[[Left], object]:
    return lambda left: version in left.formats(prefix)


HELD: dict[str, Callable[[Left], object]] = {
    "batch": file("b*/ledgers/entrylog-*.log"),
    "superblock of a journal": file("b*/journal/superblock"),
    "segment and block of a journal": file("b*/journal/segment-*"),
    "record of a journal": lambda left: left.kinds == KINDS - OF_OLD_CLIENTS,
    "entry log": file("b2-logs-*/entrylog-*.log"),
    "lengths of entry logs": file("b*/ledgers/lengths"),
    "row and state in the index": lambda left: left.rows and left.states,
    "state of a ledger": lambda left: left.states == {ledger_state.TOMBSTONE_VERSION, ledger_state.NEWEST_VERSION},
    "mark of the index": file("b*/index/synced"),
    "cookie": lambda left: left.texts("b*/cookie", "tallybook cookie 1"),
    "format file": lambda left: left.texts("b2/FORMAT", "tallybook bookie-directory 2"),
    "cookie of a place": lambda left: left.texts("b2-*/cookie", "tallybook place 1"),
    "limbo marker": file("b*/limbo"),
    "note of the scrub": file("b*/scrub"),
    "run file": lambda left: left.all_have("b*/run.json", '"format"'),
    "ledger and live bookie": file("metadata.db"),
    "SQLite schema": file("metadata.db"),
    "ZooKeeper layout": lambda left: nodes_of(FIXTURES, left.told["name"])["format"] == str(layout.FORMAT).encode(),
    "sink": record("sinks/", 2),
    "place of the archive": record("archive/location"),
    "sealing of the archive": record("archive/sealed"),
    "sealed object": file("archive/sealed/keys/**/*"),
    "keys of an archive": file("archive-keys.json"),
    "leader, repair, offloader": record("repair/status"),
    "archive object": file("archive/sets/*.parquet"),
    "manifest of the archive": file("archive/sealed/objects/_manifest.parquet"),
    "records of streams in the archive": file("archive/sealed/objects/_records.parquet"),
    "name of a stream": record("stream-names/"),
    "stream and chapter": lambda left: left.formats("stream-heads/") and left.formats("stream-chapters/"),
    "namespace": record("stream-namespaces/"),
    "subscription": record("stream-subscriptions/"),
    "delivery": record("stream-deliveries/"),
    "envelope": lambda left: left.told["streams"],
    "Spark offset over ledgers": lambda left: left.told["spark"]["ledgers"],
    "Spark offset over streams": lambda left: left.told["spark"]["streams"],
    "snapshot": lambda left: left.told["spark"]["snapshot"],
    "wire": lambda left: (FIXTURES / f"{left.told['name']}{WIRE_SUFFIX}").exists(),
}
"""The evidence of each format in a fixture."""

VERSION_AT = 4
"""The offset of the version in the state of a ledger."""

KINDS = {
    name.removeprefix("KIND_").lower().replace("_", " ") for name in vars(journal_format) if name.startswith("KIND_")
}

OF_OLD_CLIENTS = {"ledger key"}
"""Written for ledgers without an identity, which clients of this version give to every ledger."""


async def kinds_in(directory: str) -> set[str]:
    """Kinds of the records in a journal."""
    disk = RealDisk()
    try:
        blocks = live_blocks(disk, await inspect_journal(disk, directory))
        return {each.kind async for block in blocks for each in block.records}
    finally:
        await disk.close()


async def indexed_in(directory: str) -> tuple[int, set[int]]:
    """The number of rows of an index, up to a thousand, and the versions of its states; all are decoded."""
    disk, workers = RealDisk(), ThreadWorkers(2, "index")
    try:
        index = await RocksIndex.open(disk, directory, workers, StorageSettings(), create=False)
        try:
            rows = await index.rows_after(-1, -1, 1000)
            states = {each: await index.load_state(each) for each in await index.ledger_ids(-1, 10_000)}
        finally:
            await index.close()
    finally:
        await workers.close()
        await disk.close()
    for ledger_id, state in states.items():
        if state is not None:
            ledger_state.decode_row(ledger_id, state)
    return len(rows), {state[VERSION_AT] for state in states.values() if state is not None}


def journals_in(root: Path) -> list[str]:
    return [
        str(path.parent) for pattern in ("b*/journal", "b*-journal-*") for path in root.glob(f"{pattern}/superblock")
    ]


def indexes_in(root: Path) -> list[str]:
    return [str(path) for path in root.glob("b*/index")]


async def connection_ended(name: str, root: Path) -> Left:
    told = await unpack(FIXTURES, name, root)
    client = await open_metadata(metadata_in(root), clock=RealClock(), rng=SystemRng())
    try:
        found = {each: await client.store.read_record(each) async for each in record_names(client.store, "")}
    finally:
        await client.close()
    kinds = set().union(*[await kinds_in(directory) for directory in journals_in(root)])
    indexes = [await indexed_in(directory) for directory in indexes_in(root)]
    values = {each: record.value for each, record in found.items() if record is not None}
    rows, states = sum(count for count, _ in indexes), set().union(*(versions for _, versions in indexes))
    return Left(root, {**told, "name": name}, values, kinds, rows, states)


async def test_the_newest_fixture_has_one_of_every_format(tmp_path):
    """A format that comes before its version is released: have the fixture of that version made anew."""
    assert HELD.keys() == FORMATS.keys()
    left = await connection_ended(names_in(FIXTURES)[-1], tmp_path)
    assert [name for name, shows in HELD.items() if not shows(left)] == []


def test_every_release_has_a_fixture():
    settings = ConfigParser()
    settings.read(FIXTURES.parents[1] / "setup.cfg")
    assert settings["metadata"]["version"] in names_in(FIXTURES)

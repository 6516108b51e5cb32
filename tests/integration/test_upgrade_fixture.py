"""What earlier releases have left is all there: their files, booted on by today's bookies and read by today's clients.

tests/fixtures has a cluster of each release, killed in the middle of its work, and says what was confirmed in it.
"""

import asyncio
import json
import signal
from configparser import ConfigParser
from itertools import product
from pathlib import Path

import pytest

from tallybook.bench.bookies import metadata_in
from tallybook.client import Client
from tallybook.core.errors import NoSuchLedger
from tallybook.metadata.model import LedgerState
from tallybook.sim.upgrade.contents import BIRTH_MS, ENDED_STREAM, STREAM, SUBSCRIPTION, checksum, payloads
from tallybook.sim.upgrade.fixture import names_in, unpack
from tallybook.stream import Start, StreamStore

FIXTURES = Path(__file__).parents[1] / "fixtures"
NEW_ENTRIES = 100


class Cluster:
    """The bookies of a fixture, with today's code."""

    def __init__(self, start_bookie, root: Path, names: list[str]) -> None:
        self.metadata = metadata_in(root)
        self._begin = lambda name: start_bookie(root / name, name, self.metadata)
        self._names = names
        self._bookies = []

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
    """All entries of a ledger; nobody may have added any that were not confirmed, but for ``more``."""
    reader = await client.open_ledger(told["id"], password=told.get("password", "").encode())
    last = reader.last_add_confirmed
    assert told["entries"] <= last + 1 <= told["entries"] + more
    return [entry.payload async for entry in reader.read(0, last)] if last >= 0 else []


async def check_ledgers(client: Client, ledgers: dict) -> None:
    """Every ledger is as it was left, or has come to its end."""
    for tag, told in ledgers.items():
        if told["state"] == "deleted":
            with pytest.raises(NoSuchLedger):
                await client.open_ledger(told["id"])
            continue
        before = await client.ledger_metadata(told["id"])
        assert (before.state is LedgerState.CLOSED) == (told["state"] == "closed")
        assert {key: value.hex() for key, value in before.custom.items()} == told.get("custom", {})
        assert (before.archived is not None, before.copies_released) == (told.get("archived", False),) * 2
        # Of an open ledger the last entry may have been durable, and not yet said to be.
        found = await read(client, told, more=0 if told["state"] == "closed" else 1)
        assert checksum(found[: told["entries"]]) == told["sha256"], tag
        assert (await client.ledger_metadata(told["id"])).state is LedgerState.CLOSED
        told["state"] = "closed"
    assert [each async for each in client.list_ledgers()], "listings go on"


async def check_streams(streams: StreamStore, told: dict, *, more: int) -> None:
    """Every record of every stream, with what it carries; and subscriptions are where they were."""
    for name, of_stream in told.items():
        records = [record async for record in streams.reader(name, follow=False)]
        assert len(records) == of_stream["records"] + more * (name == STREAM)
        assert checksum(record.payload for record in records[: of_stream["records"]]) == of_stream["sha256"]
        assert [record.sequence for record in records] == list(range(len(records)))
    records = [record async for record in streams.reader(STREAM, start=Start.sequence(590), follow=False)]
    assert records[0].timestamp_ms == BIRTH_MS + 590_000
    assert (records[0].key, records[0].txid, records[0].dedup_id) == (b"2", 590, b"order-590")
    found = await anext(aiter(streams.reader(STREAM, start=Start.timestamp(BIRTH_MS + 123_000), follow=False)))
    assert found.sequence == 123


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


@pytest.mark.parametrize("name", names_in(FIXTURES))
async def test_everything_that_a_release_has_confirmed_is_read_and_gone_on_with(name, start_bookie, tmp_path):
    told = await unpack(FIXTURES, name, tmp_path)
    cluster = Cluster(start_bookie, tmp_path, told["bookies"])
    try:
        await cluster.start()
        async with Client(cluster.metadata) as client, StreamStore(client) as streams:
            await check_ledgers(client, told["ledgers"])
            # What a writer that died had confirmed is seen by all once another one has taken over.
            ledger_id, count = await go_on(client, streams, told["streams"][STREAM])
            await check_streams(streams, told["streams"], more=count)
        await cluster.stop()
        await cluster.start()
        async with Client(cluster.metadata) as client, StreamStore(client) as streams:
            await check_ledgers(client, told["ledgers"])
            await check_streams(streams, told["streams"], more=count)
            reader = await client.open_ledger(ledger_id)
            assert [entry.payload async for entry in reader.read(0, count - 1)] == payloads("new", count)
            async with await streams.subscribe(STREAM, SUBSCRIPTION, follow=False) as behind:
                found = await anext(aiter(behind))
                assert found.sequence == told["streams"][STREAM]["subscriptions"][SUBSCRIPTION] + 1
        await cluster.stop()
    finally:
        cluster.kill()


@pytest.mark.parametrize("name", names_in(FIXTURES))
def test_a_fixture_has_one_of_everything(name):
    told = json.loads((FIXTURES / f"{name}.json").read_text())
    ledgers = told["ledgers"].values()
    assert {each["state"] for each in ledgers} == {"open", "closed", "deleted"}
    assert {"fenced", "missed", "striped", "chosen", "deferred", "empty"} <= set(told["ledgers"])
    assert {(each.get("archived", False), "password" in each) for each in ledgers} == set(
        product((True, False), repeat=2)
    )
    assert set(told["streams"]) == {STREAM, ENDED_STREAM}
    assert (FIXTURES / f"{name}.tar.xz").stat().st_size < 1_000_000


def test_every_release_has_a_fixture():
    settings = ConfigParser()
    settings.read(FIXTURES.parents[1] / "setup.cfg")
    assert settings["metadata"]["version"] in names_in(FIXTURES)

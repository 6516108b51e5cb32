"""The metadata of a cluster are replaced by an older copy: real bookie processes, metadata in SQLite."""

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import OtherLedger
from tallybook.metadata.records.restored_store import RECORD, decode_restore_record

BOOKIES = ("b1", "b2", "b3")


@asynccontextmanager
async def running(start_bookie: Callable[..., Any], root: Path) -> AsyncIterator[str]:
    """A life of three bookies on the same directories, ended by force."""
    uri = f"sqlite:///{root}/metadata.db"
    bookies = [start_bookie(root / name, name, uri, "collection.interval_ms=200") for name in BOOKIES]
    try:
        async with asyncio.timeout(60):
            while not all(bookie.ready() for bookie in bookies):  # noqa: ASYNC110 (other processes set no event)
                await asyncio.sleep(0.01)
        yield uri
    finally:
        for bookie in bookies:
            bookie.process.kill()
            bookie.process.join()


def copy_of(root: Path) -> None:
    """Copy the metadata, as the runbook says."""
    with closing(sqlite3.connect(root / "metadata.db")) as store, closing(sqlite3.connect(root / "copy.db")) as copy:
        store.backup(copy)


def restore(root: Path) -> None:
    """Put the copy in the place of the metadata."""
    for suffix in ("", "-wal", "-shm"):
        (root / f"metadata.db{suffix}").unlink(missing_ok=True)
    shutil.copy(root / "copy.db", root / "metadata.db")


async def written(client: Client, text: bytes, **how: Any) -> int:
    """A closed ledger of one entry."""
    writer = await client.create_ledger(**how)
    await writer.append(text)
    await writer.close()
    return writer.id


async def entries(client: Client, ledger_id: int) -> list[bytes]:
    reader = await client.open_ledger(ledger_id)
    return [entry.payload async for entry in reader.read(0, reader.last_add_confirmed)]


async def test_ids_are_not_handed_out_again_and_entries_of_forgotten_ledgers_are_never_served_under_new_ones(
    start_bookie: Callable[..., Any], tmp_path: Path
) -> None:
    async with running(start_bookie, tmp_path) as uri, Client(uri) as client:
        known = await written(client, b"known")
        copy_of(tmp_path)
        forgotten = [await written(client, b"forgotten") for _ in range(12)]
    restore(tmp_path)
    async with running(start_bookie, tmp_path) as uri, Client(uri) as client:
        assert await entries(client, known) == [b"known"]
        new = [await written(client, b"new") for _ in range(3)]
        assert min(new) > max(forgotten)
        assert [await entries(client, each) for each in new] == [[b"new"]] * 3
        record = await client.world.store.read_record(RECORD)
        assert record is not None
        behind = decode_restore_record(RECORD, record.value)
        assert behind.pauses
        assert behind.highest_id >= max(forgotten)

        # An id that was handed out before the bookies had raised the counter.
        again = await client.create_ledger(ledger_id=forgotten[0])
        with pytest.raises(OtherLedger, match=f"ledger {forgotten[0]}"):
            await again.append(b"again")
        with pytest.raises(OtherLedger):
            await client.open_ledger(forgotten[0])
        for name in BOOKIES:
            held = await (await client.world.connections.get(name)).held_ledgers(-1, 100)
            assert set(forgotten) <= {each.ledger_id for each in held.ledgers}, "whole, until an operator decides"

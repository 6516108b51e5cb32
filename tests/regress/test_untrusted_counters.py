"""Metadata with something else in place of a number are reported as damaged, or left alone."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tallybook.core.errors import DamagedFile
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.records.update import RecordUpdater
from tallybook.metadata.uri import open_metadata
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng
from tallybook.stream.catalog.catalog import StreamCatalog
from tallybook.stream.names import CHAPTERS

STREAM = "5f0c9a21" * 4


@pytest.mark.parametrize("value", ["", "x", "-5", "1_0", "9" * 5_000])
async def test_a_counter_in_sqlite_that_is_no_number_is_damaged(value: str, tmp_path: Path):
    uri = f"sqlite://{tmp_path}/metadata.db"
    async with await open_metadata(uri, create=True, clock=RealClock(), rng=SeededRng("counters")) as metadata:
        assert await metadata.store.id_counter() == 0
        with closing(sqlite3.connect(tmp_path / "metadata.db")) as connection:
            connection.execute("UPDATE facts SET value = ? WHERE name = 'next_ledger_id'", (value,))
            connection.commit()
        with pytest.raises(DamagedFile, match="instead of a number"):
            await metadata.store.id_counter()
        with pytest.raises(DamagedFile, match="instead of a number"):
            await metadata.store.next_ledger_id()


async def test_a_record_among_chapters_that_is_named_otherwise_is_left_alone():
    rng, clock = SeededRng("chapters"), RealClock()
    store = MemoryMetadata(rng).client().store
    for name in ("3", "17", "x", "-1", "007", "\u0663", "1/2", "9" * 400):
        await store.write_record(f"{CHAPTERS}{STREAM}/{name}", b"", None)
    assert sorted(await StreamCatalog(store, RecordUpdater(store, clock, rng)).chapter_numbers(STREAM)) == [3, 17]

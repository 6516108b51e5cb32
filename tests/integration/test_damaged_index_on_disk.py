"""A bookie on a real disk whose RocksDB is damaged: rows are repaired, and a lost block stops nothing."""

import asyncio
from pathlib import Path

import pytest

from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.storage.index.format import row_key
from tallybook.bookie.storage.index.rocksdb import RocksIndex
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import AddAnswer, EntryRange
from tallybook.core.errors import EntryUnknown
from tallybook.core.ids import MAX_ID
from tallybook.sim.stage.disk_bookie import KnownMetadata, batch_of

from ..support.real_bookie import RealBookie, real_bookie
from ..support.rocks import rows_of

LEDGERS = range(1, 31)
BATCHES, COUNT = 50, 2
LAST = BATCHES * COUNT - 1


def batch(ledger_id: int, number: int) -> bytes:
    return batch_of(number * COUNT, COUNT, ledger_id=ledger_id)


def metadata_of(cookies: dict[str, bytes]) -> KnownMetadata:
    return KnownMetadata(
        confirmed_prefixes={each: ConfirmedPrefix(LAST, closed=True) for each in LEDGERS}, cookies=cookies
    )


async def add(made: RealBookie, data: bytes, *, repair: bool = False) -> int:
    answered: asyncio.Future[AddAnswer] = asyncio.get_running_loop().create_future()
    made.bookie.add(data, b"", answered.set_result, kind=AddKind.REPAIR if repair else AddKind.ORDINARY)
    return (await answered).code


async def filled(made: RealBookie) -> None:
    for ledger_id in LEDGERS:
        assert (
            await asyncio.gather(*(add(made, batch(ledger_id, number)) for number in range(BATCHES))) == [0] * BATCHES
        )
    await made.bookie.flush()


def index_of(made: RealBookie) -> RocksIndex:
    index = made.parts.index
    assert isinstance(index, RocksIndex)
    return index


async def read(made: RealBookie, ledger_id: int, entry_id: int) -> bytes:
    return bytes((await made.bookie.read_batches(ledger_id, entry_id, entry_id, 1)).batches[0])


async def test_a_repair_puts_good_copies_over_damaged_rows(tmp_path: Path) -> None:
    async with real_bookie(str(tmp_path), metadata_of({}), pytest.fail) as made:
        await filled(made)
        rows = rows_of(index_of(made))
        for first in (0, 40, 42, LAST - 1):
            value = bytearray(rows.get(row_key(7, first)))
            value[17] ^= 1
            rows.put(row_key(7, first), bytes(value))
        for entry_id in (1, 40, 43, LAST):
            with pytest.raises(EntryUnknown):
                await read(made, 7, entry_id)
        held = await made.bookie.held(7, 0, LAST)
        assert (held.ranges, held.limbo) == ((EntryRange(2, 39), EntryRange(44, LAST - 2)), True)
        assert [each.first_entry_id for each in await made.bookie.damaged((-1, -1), 10)] == [0, 40, 42, LAST - 1]
        for number in (0, 20, 21, BATCHES - 1):
            assert await add(made, batch(7, number), repair=True) == 0
        await made.bookie.flush()
        held = await made.bookie.held(7, 0, LAST)
        assert (held.ranges, held.limbo) == ((EntryRange(0, LAST),), False)
        assert await made.bookie.damaged((-1, -1), 10) == ()
        for number in range(BATCHES):
            assert await read(made, 7, number * COUNT + 1) == batch(7, number)


async def test_a_block_that_cannot_be_read_costs_what_is_in_it_and_stops_nothing(tmp_path: Path) -> None:
    cookies: dict[str, bytes] = {}
    async with real_bookie(str(tmp_path), metadata_of(cookies), pytest.fail) as made:
        await filled(made)
        rows = rows_of(index_of(made))
        rows.flush()
        await index_of(made).compact(0, MAX_ID - 1)
    await asyncio.to_thread(spoil, tmp_path)
    metadata = metadata_of(cookies)
    async with real_bookie(str(tmp_path), metadata, pytest.fail) as made:
        missing, unreadable = set(), set()
        for ledger_id in LEDGERS:
            held = await made.bookie.held(ledger_id, 0, LAST)
            there = {each for span in held.ranges for each in range(span.first, span.last + 1)}
            missing |= {(ledger_id, each) for each in set(range(LAST + 1)) - there}
            unreadable |= {ledger_id} if held.limbo else set()
        assert {ledger_id for ledger_id, _ in missing} == unreadable
        assert 0 < len(unreadable) < len(LEDGERS)
        for ledger_id, entry_id in missing:
            with pytest.raises(EntryUnknown):
                await read(made, ledger_id, entry_id)
        for ledger_id in set(LEDGERS) - unreadable:
            assert await read(made, ledger_id, LAST) == batch(ledger_id, BATCHES - 1)
        ledger_id, entry_id = min(missing)
        assert await add(made, batch(ledger_id, entry_id // COUNT), repair=True) == EntryUnknown.wire_code
        await made.parts.scrub.run_pass()
        gone = max(set(LEDGERS) - unreadable)
        metadata.dispositions[gone] = LedgerDisposition.RELEASED
        await made.bookie.collect()
        stats = made.bookie.stats()
        assert (stats["scrub_rounds_total"], stats["ledgers_dropped_total"]) == (1, 1)
        assert stats["index_untold_total"] >= 2
        listed = await made.bookie.held_ledgers(-1, 1000)
        assert {each.ledger_id for each in listed.ledgers} >= set(LEDGERS) - unreadable - {gone}
        assert listed.complete
    # The scrub has given that index up, and the entry logs are whole.
    async with real_bookie(str(tmp_path), metadata, pytest.fail) as made:
        assert (await made.bookie.status()).limbo_events == 1
        for ledger_id in set(LEDGERS) - {gone}:
            assert (await made.bookie.held(ledger_id, 0, LAST)).ranges == (EntryRange(0, LAST),)
            for number in range(BATCHES):
                assert await read(made, ledger_id, number * COUNT) == batch(ledger_id, number)


def spoil(root: Path) -> None:
    """Change a byte in the middle of the one table that has the rows."""
    tables = sorted(root.rglob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(tables[-1].read_bytes())
    assert len(data) > 20_000
    data[len(data) // 2] ^= 1
    tables[-1].write_bytes(data)

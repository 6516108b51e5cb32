"""Reads of archive objects: number of requests, caches, and verification of everything that is returned."""

import asyncio

import pytest

from tallybook.archive.encoder import EncoderOptions
from tallybook.archive.reader import ArchiveReader, ArchiveReaderSettings
from tallybook.core.batch import verify_batch
from tallybook.core.errors import EntryAbsent, ObjectDamaged, ObjectMissing
from tallybook.core.limits import KIB, MIB
from tallybook.metadata.ledger.archived import Receipt
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import InlineWorkers, Tasks

from .archive_parts import KEY, WRITTEN_AT_US, CountingStore, batches, new_tasks, put_object


@pytest.fixture
def tasks() -> Tasks:
    return new_tasks()


async def archived(
    store: CountingStore, ledgers: dict[int, tuple[int, int, int]], options: EncoderOptions | None = None
) -> tuple[dict[int, Receipt], dict[int, list[bytes]]]:
    """Put ledgers of so many entries, of such a size, so many in a batch, into one object."""
    made = {ledger_id: batches(*shape, seed=ledger_id) for ledger_id, shape in ledgers.items()}
    written = {ledger_id: [each for batch in found for each in batch] for ledger_id, found in made.items()}
    return await put_object(store, made, options, "an-object"), written


async def test_one_entry_costs_one_read_of_one_page_once_the_index_is_there(tasks: Tasks) -> None:
    store = CountingStore()
    found, written = await archived(store, {1: (20_000, 300, 100)})
    reader = ArchiveReader(store, InlineWorkers(), tasks, ArchiveReaderSettings(page_cache_bytes=0))
    await reader.entry(found[1], 1, 0)
    assert len(store.reads) == 2, "the index, which is in one piece, and a page"
    store.reads.clear()
    rng = SeededRng(2)
    wanted = [rng.randint(0, 19_999) for _ in range(200)]
    for entry_id in wanted:
        entry = await reader.entry(found[1], 1, entry_id)
        assert (entry.entry_id, entry.payload, entry.written_at_us) == (
            entry_id, written[1][entry_id], WRITTEN_AT_US + entry_id // 100 * 100,
        )  # fmt: skip
    assert len(store.reads) == 200
    assert max(size for _, size in store.reads) <= 128 * KIB


async def test_a_scan_reads_every_byte_about_once_in_large_pieces(tasks: Tasks) -> None:
    store = CountingStore()
    found, _ = await archived(store, {1: (8_000, 1_000, 64)})
    reader = ArchiveReader(store, InlineWorkers(), tasks)
    position, seen = 0, 0
    while position < 8_000:
        for header, batch in await reader.batches(found[1], 1, position, 7_999, 1 << 20):
            assert verify_batch(batch) == header
            seen += header.payload_bytes
            position = header.last_entry_id + 1
    assert seen == 8_000_000
    assert sum(size for _, size in store.reads) < 1.1 * found[1].object_bytes
    assert len(store.reads) < 14


async def test_a_page_that_small_ledgers_share_is_read_once_for_all_of_them(tasks: Tasks) -> None:
    store = CountingStore()
    found, _ = await archived(store, dict.fromkeys(range(200), (3, 100, 3)))
    reader = ArchiveReader(store, InlineWorkers(), tasks)
    for ledger_id in range(200):
        await reader.batches(found[ledger_id], ledger_id, 0, 2, MIB)
    assert len(store.reads) < 5
    assert not reader._pages, "the last of them has passed it"


async def test_sequential_reads_of_single_entries_fetch_each_page_about_once(tasks: Tasks) -> None:
    store = CountingStore()
    found, _ = await archived(store, {1: (2_000, 1_000, 64)})
    reader = ArchiveReader(store, InlineWorkers(), tasks)
    for entry_id in range(2_000):
        await reader.batches(found[1], 1, entry_id, entry_id, MIB)
    assert sum(size for _, size in store.reads) < 1.5 * found[1].object_bytes


async def test_readers_that_come_at_once_share_one_read_of_the_index(tasks: Tasks) -> None:
    store = CountingStore()
    found, _ = await archived(store, {1: (100, 50, 10)})
    reader = ArchiveReader(store, InlineWorkers(), tasks)
    await asyncio.gather(*(reader.directory(found[1]) for _ in range(50)))
    assert len(store.reads) == 1


async def test_a_cancelled_waiter_does_not_take_the_index_from_the_others(tasks: Tasks) -> None:
    store = CountingStore()
    found, _ = await archived(store, {1: (100, 50, 10)})
    reader = ArchiveReader(store, InlineWorkers(), tasks)
    first, second = (asyncio.ensure_future(reader.directory(found[1])) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).object_id == "an-object"


async def test_caches_stay_within_their_bounds(tasks: Tasks) -> None:
    store = CountingStore()
    options = EncoderOptions(row_group_bytes=20_000, page_bytes=2_000)
    found, written = await archived(store, dict.fromkeys(range(20), (200, 100, 7)), options)
    small = ArchiveReaderSettings(index_cache_bytes=20_000, page_cache_bytes=10_000)
    reader = ArchiveReader(store, InlineWorkers(), tasks, small)
    rng = SeededRng(3)
    for _ in range(200):
        ledger_id, entry_id = rng.randint(0, 19), rng.randint(0, 199)
        assert (await reader.entry(found[ledger_id], ledger_id, entry_id)).payload == written[ledger_id][entry_id]
        told = reader.readings()
        assert 0 < told["cache_bytes_index"] <= told["cache_max_bytes_index"] == 20_000
        assert 0 < told["cache_bytes_pages"] <= told["cache_max_bytes_pages"] == 10_000
    assert min(told[f"cache_{what}_{cache}"] for what in ("hits", "misses") for cache in ("index", "pages")) > 0
    assert told["cache_hits_pages"] + told["cache_misses_pages"] == 200


@pytest.mark.parametrize("whole", [False, True])
async def test_no_damaged_byte_gets_out(tasks: Tasks, whole: bool) -> None:
    store = CountingStore()
    found, written = await archived(store, {1: (60, 20, 7)}, EncoderOptions(page_bytes=300))
    good = await store.read(KEY, 0, found[1].object_bytes)
    for at in range(4, found[1].index.end, 7):
        await store.put(KEY, good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        reader = ArchiveReader(store, InlineWorkers(), tasks)
        for entry_id in (0, 31, 59):
            try:
                if whole:
                    for _, batch in await reader.batches(found[1], 1, entry_id, 59, 1):
                        verify_batch(batch)
                else:
                    assert (await reader.entry(found[1], 1, entry_id)).payload == written[1][entry_id]
            except ObjectDamaged:
                continue


async def test_another_object_under_the_same_key_is_noticed(tasks: Tasks) -> None:
    store = CountingStore()
    found, _ = await archived(store, {1: (100, 50, 10)})
    reader = ArchiveReader(store, InlineWorkers(), tasks)
    await archived(store, {1: (100, 51, 10)})
    with pytest.raises(ObjectDamaged, match=KEY):
        await reader.entry(found[1], 1, 5)
    await store.delete(KEY)
    with pytest.raises(ObjectMissing, match=KEY):
        await reader.entry(found[1], 1, 5)


async def test_beyond_the_end_there_is_nothing_and_other_ledgers_are_not_there(tasks: Tasks) -> None:
    store = CountingStore()
    found, _ = await archived(store, {1: (100, 50, 10), 3: (0, 1, 1)})
    reader = ArchiveReader(store, InlineWorkers(), tasks)
    for ledger_id, entry_id in [(1, 100), (3, 0)]:
        with pytest.raises(EntryAbsent):
            await reader.entry(found[ledger_id], ledger_id, entry_id)
    with pytest.raises(ObjectDamaged, match="does not contain ledger 2"):
        await reader.entry(found[1], 2, 0)


async def test_the_place_of_an_entry_is_where_its_page_and_its_batch_are(tasks: Tasks) -> None:
    store = CountingStore()
    found, _ = await archived(store, {1: (3_000, 300, 70), 2: (500, 300, 7)})
    reader = ArchiveReader(store, InlineWorkers(), tasks)
    for ledger_id, entry_id, per_batch in ((1, 0, 70), (1, 2_999, 70), (2, 250, 7)):
        place = await reader.place(found[ledger_id], ledger_id, entry_id)
        [(header, batch)] = await reader.batches(found[ledger_id], ledger_id, entry_id, entry_id, 1)
        first = entry_id // per_batch * per_batch
        assert (place.first_entry_id, place.batch_crc) == (first, verify_batch(batch).crc)
        assert place.last_entry_id == header.last_entry_id
        store.reads.clear()
        fresh = ArchiveReader(store, InlineWorkers(), tasks)
        await fresh.entry(found[ledger_id], ledger_id, entry_id)
        assert (place.page_offset, place.page_bytes) in store.reads
    with pytest.raises(EntryAbsent):
        await reader.place(found[1], 1, 3_000)
    await store.delete(KEY)
    reader.forget(KEY)
    with pytest.raises(ObjectMissing):
        await reader.place(found[1], 1, 0)

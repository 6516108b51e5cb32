"""Reading out of archive objects: how few requests it takes, what is cached, and that nothing unchecked gets out."""

import asyncio

import pytest

from tallybook.archive.object_check import Found
from tallybook.archive.object_encoder import EncoderOptions, ObjectEncoder
from tallybook.archive.objects.memory import MemoryStore
from tallybook.archive.packing import receipts
from tallybook.archive.reader import ArchiveReader, ArchiveReaderSettings
from tallybook.core.batch import encode_batch, verify_batch
from tallybook.core.errors import EntryAbsent, ObjectDamaged, ObjectMissing
from tallybook.core.limits import KIB, MIB
from tallybook.metadata.archived import Receipt
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import InlineWorkers, Tasks

KEY = "ledgers/x.parquet"


class Counting(MemoryStore):
    """Remembers every ranged read."""

    def __init__(self) -> None:
        super().__init__(RealClock())
        self.reads: list[tuple[int, int]] = []

    async def read(self, key: str, offset: int, size: int) -> bytes:
        self.reads.append((offset, size))
        await asyncio.sleep(0)
        return await super().read(key, offset, size)


@pytest.fixture
def tasks() -> Tasks:
    def died(name: str, error: BaseException) -> None:
        raise AssertionError(name) from error

    return Tasks("reader", died)


async def archived(
    store: MemoryStore, ledgers: dict[int, tuple[int, int, int]], options: EncoderOptions | None = None
) -> tuple[dict[int, Receipt], dict[int, list[bytes]]]:
    """Put ledgers of so many entries, of such a size, so many in a batch, into one object."""
    rng, encoder, written = SeededRng(1), ObjectEncoder("an-object", 17, options), dict[int, list[bytes]]()
    found = {}
    for ledger_id, (count, size, per_batch) in ledgers.items():
        encoder.begin(ledger_id, b"")
        written[ledger_id] = [rng.token(size) for _ in range(count)]
        for first in range(0, count, per_batch):
            payloads = written[ledger_id][first : first + per_batch]
            batch = encode_batch(
                ledger_id, first, payloads, lac=-1, ledger_length=(first + len(payloads)) * size, written_at_us=first
            )
            encoder.add(batch, verify_batch(batch))
        ledger = encoder.end()
        found[ledger_id] = Found(ledger.entries, ledger.payload_bytes, ledger.rolling_crc)
    encoded = encoder.finish()
    await store.put(KEY, b"".join(encoder.take()))
    return receipts(encoded, found, KEY, 17), written


async def test_one_entry_costs_one_read_of_one_page_once_the_index_is_there(tasks: Tasks) -> None:
    store = Counting()
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
            entry_id, written[1][entry_id], entry_id // 100 * 100,
        )  # fmt: skip
    assert len(store.reads) == 200
    assert max(size for _, size in store.reads) <= 128 * KIB


async def test_a_scan_reads_every_byte_about_once_in_large_pieces(tasks: Tasks) -> None:
    store = Counting()
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


async def test_a_scan_keeps_the_page_at_which_it_goes_on_and_leaves_none_behind(tasks: Tasks) -> None:
    store = Counting()
    found, _ = await archived(store, {1: (500, 100, 7), 2: (500, 100, 7)}, EncoderOptions(page_bytes=2_000))
    reader = ArchiveReader(store, InlineWorkers(), tasks)
    await reader.batches(found[2], 2, 250, 250, 1)
    assert len(reader._pages) == 1
    store.reads.clear()
    await reader.batches(found[2], 2, 250, 250, 1)
    assert store.reads == []
    position = most = 0
    while position < 500:
        [*_, (header, _)] = await reader.batches(found[1], 1, position, 499, 1_000)
        position = header.last_entry_id + 1
        most = max(most, len(reader._pages))
    assert most == 2
    assert len(reader._pages) == 2, "that of the other scan, and the one in which the next ledger follows"
    await reader.batches(found[2], 2, 0, 499, MIB)
    assert not reader._pages
    await reader.entry(found[1], 1, 250)
    assert len(reader._pages) == 1, "who asks for one entry may ask for its neighbour"


async def test_a_page_that_small_ledgers_share_is_read_once_for_all_of_them(tasks: Tasks) -> None:
    store = Counting()
    found, _ = await archived(store, dict.fromkeys(range(200), (3, 100, 3)))
    reader = ArchiveReader(store, InlineWorkers(), tasks)
    for ledger_id in range(200):
        await reader.batches(found[ledger_id], ledger_id, 0, 2, MIB)
    assert len(store.reads) < 5
    assert not reader._pages, "the last of them has passed it"


async def test_who_reads_one_entry_after_the_other_fetches_each_page_about_once(tasks: Tasks) -> None:
    store = Counting()
    found, _ = await archived(store, {1: (2_000, 1_000, 64)})
    reader = ArchiveReader(store, InlineWorkers(), tasks)
    for entry_id in range(2_000):
        await reader.batches(found[1], 1, entry_id, entry_id, MIB)
    assert sum(size for _, size in store.reads) < 1.5 * found[1].object_bytes


async def test_readers_that_come_at_once_share_one_read_of_the_index(tasks: Tasks) -> None:
    store = Counting()
    found, _ = await archived(store, {1: (100, 50, 10)})
    reader = ArchiveReader(store, InlineWorkers(), tasks)
    await asyncio.gather(*(reader.directory(found[1]) for _ in range(50)))
    assert len(store.reads) == 1


async def test_who_gives_up_waiting_does_not_take_the_index_from_the_others(tasks: Tasks) -> None:
    store = Counting()
    found, _ = await archived(store, {1: (100, 50, 10)})
    reader = ArchiveReader(store, InlineWorkers(), tasks)
    first, second = (asyncio.ensure_future(reader.directory(found[1])) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).object_id == "an-object"


async def test_caches_stay_within_their_bounds(tasks: Tasks) -> None:
    store = Counting()
    options = EncoderOptions(row_group_bytes=20_000, page_bytes=2_000)
    found, written = await archived(store, dict.fromkeys(range(20), (200, 100, 7)), options)
    small = ArchiveReaderSettings(index_cache_bytes=20_000, page_cache_bytes=10_000)
    reader = ArchiveReader(store, InlineWorkers(), tasks, small)
    rng = SeededRng(3)
    for _ in range(200):
        ledger_id, entry_id = rng.randint(0, 19), rng.randint(0, 199)
        assert (await reader.entry(found[ledger_id], ledger_id, entry_id)).payload == written[ledger_id][entry_id]
        assert reader._index.currsize <= 20_000
        assert reader._pages.currsize <= 10_000
    told = reader.readings()
    for cache, held, most in (("index", reader._index, 20_000), ("pages", reader._pages, 10_000)):
        assert (told[f"cache_bytes_{cache}"], told[f"cache_max_bytes_{cache}"]) == (held.currsize, most)
        assert min(told[f"cache_hits_{cache}"], told[f"cache_misses_{cache}"]) > 0
    assert told["cache_hits_pages"] + told["cache_misses_pages"] == 200


@pytest.mark.parametrize("batches", [False, True])
async def test_no_damaged_byte_gets_out(tasks: Tasks, batches: bool) -> None:
    store = Counting()
    found, written = await archived(store, {1: (60, 20, 7)}, EncoderOptions(page_bytes=300))
    good = await store.read(KEY, 0, found[1].object_bytes)
    for at in range(4, found[1].index.end, 7):
        await store.put(KEY, good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        reader = ArchiveReader(store, InlineWorkers(), tasks)
        for entry_id in (0, 31, 59):
            try:
                if batches:
                    for _, batch in await reader.batches(found[1], 1, entry_id, 59, 1):
                        verify_batch(batch)
                else:
                    assert (await reader.entry(found[1], 1, entry_id)).payload == written[1][entry_id]
            except ObjectDamaged:
                continue


async def test_another_object_under_the_same_key_is_noticed(tasks: Tasks) -> None:
    store = Counting()
    found, _ = await archived(store, {1: (100, 50, 10)})
    reader = ArchiveReader(store, InlineWorkers(), tasks)
    await archived(store, {1: (100, 51, 10)})
    with pytest.raises(ObjectDamaged, match=KEY):
        await reader.entry(found[1], 1, 5)
    await store.delete(KEY)
    with pytest.raises(ObjectMissing, match=KEY):
        await reader.entry(found[1], 1, 5)


async def test_beyond_the_end_there_is_nothing_and_other_ledgers_are_not_there(tasks: Tasks) -> None:
    store = Counting()
    found, _ = await archived(store, {1: (100, 50, 10), 3: (0, 1, 1)})
    reader = ArchiveReader(store, InlineWorkers(), tasks)
    for ledger_id, entry_id in [(1, 100), (3, 0)]:
        with pytest.raises(EntryAbsent):
            await reader.entry(found[ledger_id], ledger_id, entry_id)
    with pytest.raises(ObjectDamaged, match="does not hold ledger 2"):
        await reader.entry(found[1], 2, 0)


async def test_the_place_of_an_entry_is_where_its_page_and_its_batch_are(tasks: Tasks) -> None:
    store = Counting()
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

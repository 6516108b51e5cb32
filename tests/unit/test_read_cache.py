"""The read cache: bounded, correct, and not flushed by one pass over a large ledger."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tallybook.bookie.storage.first_entries import FirstEntries
from tallybook.bookie.storage.read_cache import GHOST_BYTES, ReadCache
from tallybook.bookie.storage.write_cache import BATCH_OVERHEAD_BYTES

SIZE = 1000
COST = SIZE + BATCH_OVERHEAD_BYTES
ENTRIES = 10


def body(ledger_id: int, first: int) -> bytes:
    return b"%d/%d" % (ledger_id, first) + bytes(SIZE - len(b"%d/%d" % (ledger_id, first)))


def put(cache: ReadCache, ledger_id: int, number: int) -> None:
    first = ENTRIES * number
    cache.put(ledger_id, first, first + ENTRIES - 1, body(ledger_id, first))


def read(cache: ReadCache, ledger_id: int, number: int) -> bool:
    """Read a batch as a bookie does: from the cache, else from "disk" into the cache. Whether it was a hit."""
    found = cache.find(ledger_id, ENTRIES * number)
    if found is None:
        put(cache, ledger_id, number)
        return False
    assert found.batch == body(ledger_id, ENTRIES * number)
    return True


def test_every_entry_of_a_batch_finds_it_and_its_neighbours_do_not():
    cache = ReadCache(100 * COST)
    cache.put(7, 10, 14, b"batch")
    assert [cache.find(7, each) is not None for each in range(8, 17)] == [False, False, *[True] * 5, False, False]
    assert cache.find(7, 12) == (7, 10, 14, b"batch")
    assert cache.find(6, 12) is None
    assert cache.find(8, 12) is None


def test_nothing_is_kept_beyond_the_budget_and_nothing_larger_than_it():
    cache = ReadCache(10 * COST)
    for number in range(100):
        put(cache, 7, number)
        assert cache.held_bytes <= 10 * COST
    assert 8 <= len(cache) <= 10
    cache.put(8, 0, 0, bytes(10 * COST))
    assert cache.find(8, 0) is None


def test_a_cache_of_no_bytes_keeps_nothing():
    cache = ReadCache(0)
    put(cache, 7, 0)
    assert (len(cache), cache.held_bytes, cache.find(7, 0)) == (0, 0, None)


def test_a_forgotten_ledger_is_gone_and_gives_its_bytes_back():
    cache = ReadCache(100 * COST)
    for number in range(5):
        put(cache, 7, number)
        put(cache, 8, number)
    for _ in range(3):
        read(cache, 7, 1)
    cache.forget(7)
    cache.forget(9)
    assert [cache.find(7, ENTRIES * number) for number in range(5)] == [None] * 5
    assert all(cache.find(8, ENTRIES * number) for number in range(5))
    assert cache.held_bytes == 5 * COST


# -- what stays -----------------------------------------------------------------------------


def warm(cache: ReadCache, count: int) -> None:
    """Batches that readers read again, among others that are read once."""
    for turn in range(20):
        for number in range(count):
            read(cache, 1, number)
            read(cache, 2, 100_000 + 1000 * turn + number)


@pytest.mark.parametrize("step", [1, ENTRIES], ids=["entry by entry", "batch by batch"])
def test_a_scan_of_a_large_ledger_does_not_evict_recently_read_batches(step):
    cache = ReadCache(100 * COST)
    warm(cache, 50)
    for entry_id in range(0, ENTRIES * 5_000, step):
        if cache.find(3, entry_id) is None:
            put(cache, 3, entry_id // ENTRIES)
    assert sum(cache.find(1, ENTRIES * number) is not None for number in range(50)) >= 48


def test_what_two_readers_have_read_is_spared_by_a_scan_and_what_one_has_read_is_not():
    cache = ReadCache(100 * COST)
    for number in range(5):
        for ledger_id in (1, 2):
            first = ENTRIES * number
            cache.put(ledger_id, first, first + ENTRIES - 1, body(ledger_id, first), first + ENTRIES - 1)
        assert cache.find(1, ENTRIES * number)
    for number in range(1_000):
        read(cache, 3, number)
    assert [cache.find(1, ENTRIES * number) is not None for number in range(5)] == [True] * 5
    assert [cache.find(2, ENTRIES * number) is not None for number in range(5)] == [False] * 5


def test_what_was_hot_once_gives_way_to_what_is_hot_now():
    cache = ReadCache(100 * COST)
    warm(cache, 80)
    for _ in range(30):
        for number in range(80):
            read(cache, 4, number)
    assert all(cache.find(4, ENTRIES * number) for number in range(80))


def test_a_batch_that_returns_soon_after_it_left_is_kept_longer():
    cache = ReadCache(100 * COST)
    for number in range(100):
        put(cache, 9, number)
    put(cache, 1, 0)
    for number in range(100, 200):
        read(cache, 9, number)
    assert not read(cache, 1, 0)
    for number in range(200, 1_200):
        read(cache, 9, number)
    assert read(cache, 1, 0)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), unique=True), st.randoms())
def test_first_entries_find_the_batch_that_may_hold_an_entry(starts, random):
    firsts = FirstEntries()
    for start in starts:
        firsts.add(*start)
    for start in random.sample(starts, len(starts) // 2):
        firsts.discard(*start)
        starts.remove(start)
    for ledger_id in range(3):
        assert list(firsts.of(ledger_id)) == sorted(first for each, first in starts if each == ledger_id)
        for entry_id in range(31):
            below = [start for start in starts if start[0] == ledger_id and start[1] <= entry_id]
            assert firsts.at_or_before(ledger_id, entry_id) == max(below, default=None)
    assert list(firsts.take_ledger(1)) == sorted(first for each, first in starts if each == 1)
    assert not firsts.of(1)


class CacheMachine(RuleBasedStateMachine):
    """The model keeps everything that was put and not forgotten. The cache may have less, and nothing else."""

    BUDGET = 8 * COST

    def __init__(self) -> None:
        super().__init__()
        self.cache = ReadCache(self.BUDGET)
        self.model: dict[tuple[int, int], bytes] = {}
        self.looks = 0

    @rule(ledger_id=st.integers(0, 3), number=st.integers(0, 12), size=st.integers(0, 5000), read_to=st.integers(-1, 9))
    def put(self, ledger_id: int, number: int, size: int, read_to: int) -> None:
        first = ENTRIES * number
        batch = self.model.setdefault((ledger_id, first), bytes([ledger_id, number]) + bytes(size))
        self.cache.put(ledger_id, first, first + ENTRIES - 1, batch, None if read_to < 0 else first + read_to)

    @rule(ledger_id=st.integers(0, 3), entry_id=st.integers(0, 13 * ENTRIES))
    def find(self, ledger_id: int, entry_id: int) -> None:
        found = self.cache.find(ledger_id, entry_id)
        self.looks += 1
        if found is not None:
            first = entry_id - entry_id % ENTRIES
            assert found == (ledger_id, first, first + ENTRIES - 1, self.model[ledger_id, first])

    @rule(ledger_id=st.integers(0, 3))
    def forget(self, ledger_id: int) -> None:
        self.cache.forget(ledger_id)
        self.model = {key: batch for key, batch in self.model.items() if key[0] != ledger_id}

    @invariant()
    def the_books_balance(self) -> None:
        cache = self.cache
        items = [item for queue in (cache._small, cache._main) for item in queue.items.values()]
        of_items = sum(len(item.cached.batch) + BATCH_OVERHEAD_BYTES for item in items)
        assert cache.held_bytes == of_items + GHOST_BYTES * len(cache._ghosts) <= self.BUDGET
        assert len(items) == len(cache)
        assert cache.hits + cache.misses == self.looks


TestCacheMachine = CacheMachine.TestCase

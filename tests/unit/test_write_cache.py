"""The write cache: an entry stays visible until it is released."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.bookie.storage.write_cache import BATCH_OVERHEAD_BYTES, WriteCache
from tallybook.core.errors import InvariantViolation
from tallybook.runtime.rng import SeededRng


def put(cache: WriteCache, ledger_id: int, first: int, last: int) -> bytes:
    batch = b"%d:%d-%d" % (ledger_id, first, last)
    cache.put(ledger_id, first, last, batch)
    return batch


def test_a_batch_is_found_by_each_of_its_entries_with_its_bounds_and_batches_are_flushed_in_order() -> None:
    cache = WriteCache(1 << 20, SeededRng(1))
    for first in (20, 0, 10):
        put(cache, 1, first, first + 9)
    batch = put(cache, 1, 30, 34)
    assert cache.find(1, 34) == (1, 30, 34, batch)
    assert cache.find(1, 35) is None
    assert [batch.first for batch in cache.swap().sorted_batches()] == [0, 10, 20, 30]


def test_two_swaps_without_a_release_are_a_defect() -> None:
    cache = WriteCache(1 << 20, SeededRng(1))
    cache.swap()
    with pytest.raises(InvariantViolation):
        cache.swap()


def test_a_buffer_takes_any_one_batch_and_then_what_fits_above_the_reserve() -> None:
    cache = WriteCache(8 * (BATCH_OVERHEAD_BYTES + 10), SeededRng(1))
    assert cache.fits(10**9)
    for first in range(3):
        assert cache.fits(10)
        cache.put(1, first, first, bytes(10))
    assert cache.fits(10)
    assert not cache.fits(10, reserve_bytes=1)
    assert not cache.fits(11)
    cache.swap()
    assert cache.fits(10)


def test_it_wants_a_flush_when_the_active_buffer_is_about_half_full_and_each_time_at_another_size() -> None:
    cache = WriteCache(1 << 20, SeededRng(1))
    sizes = set()
    for _ in range(20):
        while not cache.wants_flush:
            put(cache, 1, cache.active.batch_count, cache.active.batch_count)
        sizes.add(cache.active.held_bytes)
        cache.swap()
        cache.release()
    assert len(sizes) > 10
    assert 0.25 * (1 << 19) <= min(sizes) < max(sizes) <= 0.51 * (1 << 19)


def test_forgetting_a_ledger_gives_its_bytes_back() -> None:
    cache = WriteCache(1 << 20, SeededRng(1))
    put(cache, 1, 0, 4)
    before = cache.held_bytes
    put(cache, 2, 0, 4)
    cache.forget(2)
    cache.forget(3)
    assert cache.held_bytes == before
    assert cache.find(2, 0) is None


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=30), st.sets(st.integers(0, 29), max_size=3))
def test_lookups_agree_with_a_plain_list_of_batches(batches: list[tuple[int, int]], swaps: set[int]) -> None:
    """Batches of five entries, in any order, over swaps: find and overlapping say what a list would."""
    cache = WriteCache(1 << 20, SeededRng(1))
    held: dict[tuple[int, int], bytes] = {}
    for step, (ledger_id, number) in enumerate(batches):
        if step in swaps:
            if cache.flushing is not None:
                for found in cache.flushing.sorted_batches():
                    held.pop((found.ledger_id, found.first // 5), None)
                cache.release()
            cache.swap()
        if (ledger_id, number) not in held:
            held[ledger_id, number] = put(cache, ledger_id, 5 * number, 5 * number + 4)
    for ledger_id in range(3):
        for entry in range(66):
            expected = held.get((ledger_id, entry // 5))
            found = cache.find(ledger_id, entry)
            assert (found.batch if found else None) == expected
        mine = {number: batch for (ledger, number), batch in held.items() if ledger == ledger_id}
        for first in range(0, 60, 7):
            numbers = range(first // 5, (first + 6) // 5 + 1)
            expected_overlap = sorted(mine[number] for number in numbers if number in mine)
            assert sorted(map(bytes, cache.overlapping(ledger_id, first, first + 6))) == expected_overlap

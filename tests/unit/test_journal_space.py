"""The space accounting of the journal ring: admitted records fit, with blocks in any order."""

from hypothesis import given
from hypothesis import strategies as st

from tallybook.bookie.journal.format import RingGeometry
from tallybook.bookie.journal.space import SEAL_BYTES, RingSpace, charge_bytes
from tallybook.core.limits import BLOCK_BYTES, MIB


def ring_of(commit_blocks: int, spare_blocks: int = 0) -> RingSpace:
    commit_bytes = commit_blocks * BLOCK_BYTES
    return RingSpace(RingGeometry(2 * commit_bytes + spare_blocks * BLOCK_BYTES, 3), commit_bytes)


@given(
    commit_blocks=st.integers(2, 6),
    spare_blocks=st.integers(0, 4),
    remaining_blocks=st.integers(0, 15),
    ready_count=st.integers(0, 4),
    charges=st.lists(st.integers(1, 6), max_size=80),
)
def test_charges_that_add_up_to_what_is_writable_can_all_be_written(
    commit_blocks: int, spare_blocks: int, remaining_blocks: int, ready_count: int, charges: list[int]
) -> None:
    ring = ring_of(commit_blocks, spare_blocks)
    usable = ring.geometry.segment_bytes - BLOCK_BYTES
    remaining = min(remaining_blocks * BLOCK_BYTES, usable)
    promised = ring.writable_bytes(remaining, ready_count)
    remaining -= min(remaining, SEAL_BYTES)  # a seal came first
    for blocks in charges:
        charge = min(blocks, commit_blocks) * BLOCK_BYTES
        promised -= charge
        if promised < 0:
            return
        if charge > remaining:
            ready_count -= 1
            remaining = usable
            assert ready_count >= 0, "a promised block has no place"
        remaining -= charge


@given(st.integers(2, 256), st.integers(0, 100))
def test_with_everything_trimmed_the_smallest_ring_takes_the_largest_record(commits: int, spare: int) -> None:
    ring = ring_of(commits, spare)
    usable = ring.geometry.segment_bytes - BLOCK_BYTES
    # The open segment is full, the two others are free; or a seal has opened one of them.
    for remaining, ready_count in ((0, 2), (usable - SEAL_BYTES, 1)):
        free = ring.writable_bytes(remaining, ready_count) - ring.reserve_bytes
        assert ring.largest_body(free) >= ring.max_body_bytes
    assert ring.reserve_bytes >= charge_bytes(40), "a fence fits into what is kept back"


@given(st.integers(0, 4 * MIB))
def test_the_largest_body_is_the_largest_whose_charge_fits(free_bytes: int) -> None:
    body = ring_of(256).largest_body(free_bytes)
    assert body == 0 or charge_bytes(body) <= free_bytes
    assert charge_bytes(body + 1) > free_bytes

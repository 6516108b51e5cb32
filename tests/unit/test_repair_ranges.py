"""Entries that an ensemble position must have, and missing ones: compared with the definition, entry by entry."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.answers import EntryRange
from tallybook.core.quorum import Quorum
from tallybook.core.ranges import assigned_ranges, missing_ranges


def entries(ranges) -> list[int]:
    return [entry_id for each in ranges for entry_id in range(each.first, each.last + 1)]


def disjoint(edges: list[int]) -> list[EntryRange]:
    """Ascending, disjoint ranges out of any numbers."""
    points = sorted(set(edges))
    return [EntryRange(first, last) for first, last in zip(points[::2], points[1::2], strict=False)]


quorums = st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 7)).map(
    lambda sizes: Quorum(max(sizes[:2]), min(sizes[:2]), 1, stripe_entries=sizes[2])
)


@given(quorums, st.integers(0, 4), st.integers(0, 60), st.integers(-1, 60))
def test_a_place_holds_the_entries_whose_write_set_has_its_position(quorum, position, first, span) -> None:
    position %= quorum.ensemble
    last = first + span
    found = list(assigned_ranges(quorum, position, first, last))
    assert entries(found) == [each for each in range(first, last + 1) if position in quorum.write_set(each)]
    assert all(one.last + 1 < other.first for one, other in itertools.pairwise(found)), "neighbours are one"


def test_a_long_ledger_is_not_gone_through_before_its_first_range_comes() -> None:
    quorum = Quorum(3, 2, 2, stripe_entries=1)
    assert next(assigned_ranges(quorum, 0, 0, 2**62)) == EntryRange(0, 0)


@given(st.lists(st.integers(0, 80)), st.lists(st.integers(0, 80)))
def test_what_lacks_is_what_is_wanted_and_not_held(wanted, held) -> None:
    wanted_ranges, held_ranges = disjoint(wanted), disjoint(held)
    lacking = sorted(set(entries(wanted_ranges)) - set(entries(held_ranges)))
    assert entries(missing_ranges(wanted_ranges, held_ranges)) == lacking
    assert entries(missing_ranges(wanted_ranges, sorted([*held_ranges, *held_ranges]))) == lacking, "held twice"

"""Changes that a repair may make to ledger metadata, and those left to the writer."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.errors import InvalidArgument
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState, MissedRange, check_succession, close
from tallybook.metadata.ledger.repaired import immutable_fragments, remove_missed, replace_member, without


def ledger(*fragments: tuple[int, str], missed=(), last: int | None = 29) -> LedgerMetadata:
    """A ledger of three copies; each fragment is its first entry and the letters of its bookies."""
    opened = LedgerMetadata(
        7,
        Quorum(3, 3, 2),
        tuple(Fragment(first, tuple(names)) for first, names in fragments),
        "token",
        0,
        missed=missed,
    )
    return opened if last is None else close(opened, last, 100)


def test_a_bookie_takes_a_place_of_a_closed_ledger() -> None:
    before = ledger((0, "abc"), (10, "abd"))
    after = replace_member(before, 10, 1, "b", "e")
    assert [fragment.bookies for fragment in after.fragments] == [("a", "b", "c"), ("a", "e", "d")]
    check_succession(before, after)


@pytest.mark.parametrize(
    ("names", "change"),
    [
        ("aec", (0, 1, "b", "e")),  # it is done
        ("aec", (5, 0, "a", "x")),  # there is no such fragment
        ("axb", (0, 1, "b", "e")),  # b is back in another place, and e was given what belongs to place 1
    ],
)
def test_a_replacement_that_does_not_fit_any_more_changes_nothing(names: str, change: tuple) -> None:
    assert replace_member(ledger((0, names)), *change) == ledger((0, names))


def test_the_fragment_that_still_grows_is_the_writers() -> None:
    before = ledger((0, "abc"), (10, "abd"), last=None)
    with pytest.raises(InvalidArgument):
        replace_member(before, 10, 1, "b", "e")
    assert replace_member(before, 0, 1, "b", "e").fragments[0].bookies == ("a", "e", "c")
    assert immutable_fragments(before) == before.fragments[:1]
    assert immutable_fragments(replace(before, state=LedgerState.IN_RECOVERY)) == before.fragments[:1]


def test_no_bookie_has_two_positions_of_one_fragment() -> None:
    with pytest.raises(InvalidArgument):
        replace_member(ledger((0, "abc")), 0, 1, "b", "c")


def test_what_the_old_member_missed_goes_with_it_and_nothing_else() -> None:
    missed = (MissedRange("b", 5, 14), MissedRange("c", 5, 14))
    after = replace_member(ledger((0, "abc"), (10, "abc"), missed=missed), 0, 1, "b", "e")
    assert after.missed == (MissedRange("b", 10, 14), MissedRange("c", 5, 14))


def test_restored_copies_are_missed_no_more() -> None:
    before = ledger((0, "abc"), missed=(MissedRange("b", 5, 14), MissedRange("b", 20, 22)))
    assert remove_missed(before, "b", 0, 29).missed == ()
    assert remove_missed(before, "b", 8, 21).missed == (MissedRange("b", 5, 7), MissedRange("b", 22, 22))


@given(st.integers(0, 30), st.one_of(st.none(), st.integers(0, 30)), st.integers(0, 30), st.integers(0, 30))
def test_without_takes_out_exactly_those_entries(first, span, low, high) -> None:
    end = None if span is None else first + span
    left = without((MissedRange("b", first, end),), "b", low, high)
    horizon = 80
    before = set(range(first, (horizon if end is None else end) + 1))
    after = (
        {e for each in left for e in range(each.first_entry_id, (each.last_entry_id or horizon) + 1)} if left else set()
    )
    if any(each.last_entry_id == 0 for each in left):
        after = {0}
    assert after == before - set(range(low, high + 1))

"""``metadata/ledger/untrusted_copies.py``: which copies of a closed ledger are not trusted."""

from dataclasses import replace

from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, MissedRange, close
from tallybook.metadata.ledger.untrusted_copies import trusted_until, untrusted_bookies

OPEN = LedgerMetadata(
    1, Quorum(3, 3, 2), (Fragment(0, ("b0", "b1", "b2")),), "token", 0,
    missed=(MissedRange("b1", 10, 19), MissedRange("b1", 40, 40), MissedRange("b2", 15, 15)),
)  # fmt: skip
CLOSED = close(OPEN, 59, 600)


def test_a_copy_that_its_bookie_lacks_on_record_is_in_doubt() -> None:
    found = {entry_id: set(untrusted_bookies(CLOSED, entry_id)) for entry_id in (9, 10, 15, 19, 20, 40)}
    assert found == {9: set(), 10: {"b1"}, 15: {"b1", "b2"}, 19: {"b1"}, 20: set(), 40: {"b1"}}


def test_before_the_close_none_is_since_the_writer_recorded_it() -> None:
    growing = replace(OPEN, missed=(MissedRange("b1", 10, None),))
    assert untrusted_bookies(growing, 15) == frozenset()
    assert trusted_until(growing, "b1", 0, 59) == 59


def test_a_bookie_is_asked_for_what_is_before_a_copy_in_doubt_and_for_that_alone() -> None:
    asked = {(first, last): trusted_until(CLOSED, "b1", first, last) for first, last in [(0, 59), (0, 9), (12, 59)]}
    assert asked == {(0, 59): 9, (0, 9): 9, (12, 59): 12}
    assert trusted_until(CLOSED, "b1", 20, 59) == 39
    assert trusted_until(CLOSED, "b0", 0, 59) == 59

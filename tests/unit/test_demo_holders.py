"""Which bookies the demo waits for when history has gone to the archive."""

from dataclasses import replace

from tallybook.cli.demo_archive import holders
from tallybook.core.quorum import Quorum
from tallybook.metadata.model import Fragment, LedgerMetadata, LedgerState, MissedRange

OPEN = LedgerMetadata(
    ledger_id=7,
    quorum=Quorum(3, 3, 2, 1),
    fragments=(Fragment(0, ("a", "b", "c")),),
    creator_token="t",
    created_at_ms=1,
)
CLOSED = replace(OPEN, state=LedgerState.CLOSED, last_entry_id=9, length=100)


def test_every_bookie_of_every_fragment_holds_a_part_of_a_ledger():
    two = replace(CLOSED, fragments=(Fragment(0, ("a", "b", "c")), Fragment(5, ("a", "d", "c"))))
    assert holders(two) == {"a", "b", "c", "d"}


def test_nobody_holds_a_ledger_without_entries():
    assert holders(replace(OPEN, state=LedgerState.CLOSED)) == set()


def test_nobody_was_given_anything_of_a_last_fragment_that_stayed_empty():
    late = replace(CLOSED, fragments=(Fragment(0, ("a", "b", "c")), Fragment(10, ("a", "d", "c"))))
    assert holders(late) == {"a", "b", "c"}


def test_a_bookie_that_missed_all_of_its_fragment_holds_nothing_and_one_that_missed_a_part_does():
    assert holders(replace(CLOSED, missed=(MissedRange("b", 0, 9),))) == {"a", "c"}
    assert holders(replace(CLOSED, missed=(MissedRange("b", 3, 9),))) == {"a", "b", "c"}

"""Which bookies the demo waits for when the history is in the archive."""

from dataclasses import replace

import pytest

from tallybook.cli.demo.archive import holders
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState, MissedRange

OPEN = LedgerMetadata(
    ledger_id=7,
    quorum=Quorum(3, 3, 2, 1),
    fragments=(Fragment(0, ("a", "b", "c")),),
    creator_token="t",
    created_at_ms=1,
)
CLOSED = replace(OPEN, state=LedgerState.CLOSED, last_entry_id=9, length=100)


LATER = ("a", "d", "c")


@pytest.mark.parametrize(
    ("ledger", "expected"),
    [
        (replace(CLOSED, fragments=(*OPEN.fragments, Fragment(5, LATER))), {"a", "b", "c", "d"}),
        (replace(OPEN, state=LedgerState.CLOSED), set()),
        (replace(CLOSED, fragments=(*OPEN.fragments, Fragment(10, LATER))), {"a", "b", "c"}),
        (replace(CLOSED, missed=(MissedRange("b", 0, 9),)), {"a", "c"}),
        (replace(CLOSED, missed=(MissedRange("b", 3, 9),)), {"a", "b", "c"}),
    ],
    ids=["two fragments", "no entries", "an empty last fragment", "one that missed all", "one that missed a part"],
)
def test_bookies_that_have_an_entry_of_a_ledger_are_waited_for(ledger, expected):
    assert holders(ledger) == expected

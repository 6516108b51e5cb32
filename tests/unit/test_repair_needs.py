"""What a ledger needs, by its metadata and what is known of bookies."""

from tallybook.core.limits import BATCH_TABLE_ROW_BYTES
from tallybook.core.quorum import Quorum
from tallybook.metadata.model import Fragment, LedgerMetadata, LedgerState
from tallybook.repair.needs import LimboOf, Trouble, Why, bytes_to_copy, reason
from tallybook.repair.walk import Findings, note

LOST_ALL = LimboOf(below=100, mended=())
EACH = 1 + BATCH_TABLE_ROW_BYTES
"""Of an entry of ``closed``, in a batch."""


def closed(quorum: Quorum, last: int, *fragments: Fragment) -> LedgerMetadata:
    return LedgerMetadata(
        7, quorum, fragments, "creator", 0, state=LedgerState.CLOSED, last_entry_id=last, length=last + 1
    )


def needed(metadata: LedgerMetadata, name: str) -> Why | None:
    return reason(metadata, Trouble(limbo={name: LOST_ALL}))


def test_a_bookie_that_lost_data_needs_nothing_of_a_ledger_that_never_gave_it_any() -> None:
    # Nothing would ever say that it has got this back: bookies name ledgers of which they hold something.
    replaced_at_the_end = closed(Quorum(2, 2, 1), 9, Fragment(0, ("b1", "b2")), Fragment(10, ("b1", "b3")))
    assert needed(replaced_at_the_end, "b1") is Why.LIMBO
    assert needed(replaced_at_the_end, "b2") is Why.LIMBO
    assert needed(replaced_at_the_end, "b3") is None
    shorter_than_a_stripe = closed(Quorum(3, 1, 1, 4), 6, Fragment(0, ("b1", "b2", "b3")))
    assert [needed(shorter_than_a_stripe, name) for name in ("b1", "b2", "b3")] == [Why.LIMBO, Why.LIMBO, None]
    assert needed(closed(Quorum(1, 1, 1), -1, Fragment(0, ("b1",))), "b1") is None


def test_a_bookie_that_lost_data_needs_what_it_has_not_got_back_of_the_ledgers_of_then() -> None:
    metadata = closed(Quorum(1, 1, 1), 0, Fragment(0, ("b1",)))
    for limbo, why in (((100, ()), Why.LIMBO), ((100, (7,)), None), ((7, ()), None), ((8, ()), Why.LIMBO)):
        assert reason(metadata, Trouble(limbo={"b1": LimboOf(*limbo)})) is why


def test_a_bookie_has_not_got_everything_back_while_another_trouble_of_a_ledger_comes_first() -> None:
    closed_one = closed(Quorum(2, 2, 1), 9, Fragment(0, ("b1", "b2")))
    trouble = Trouble(leaving=frozenset({"b2"}), limbo={"b1": LOST_ALL}, damaged=frozenset({closed_one.ledger_id}))
    findings = Findings()
    assert note(findings, closed_one, trouble, {}) == (Why.DAMAGED, False)
    assert (findings.needing[Why.LIMBO], findings.in_limbo) == (0, 1)
    note(findings, LedgerMetadata(8, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0), trouble, {})
    assert findings.in_limbo == 2
    note(findings, LedgerMetadata(9, Quorum(1, 1, 1), (Fragment(0, ("b3",)),), "creator", 0), trouble, {})
    assert findings.in_limbo == 2


def test_what_is_to_be_copied_is_the_share_of_those_who_leave() -> None:
    whole = closed(Quorum(2, 2, 1), 99, Fragment(0, ("b1", "b2")), Fragment(60, ("b1", "b3")))
    assert bytes_to_copy(whole, {"b1"}) == 100 * EACH
    assert bytes_to_copy(whole, {"b2"}) == 60 * EACH
    assert bytes_to_copy(whole, {"b2", "b3"}) == 100 * EACH
    assert bytes_to_copy(whole, {"b4"}) == 0
    striped = closed(Quorum(4, 2, 1, 1), 99, Fragment(0, ("b1", "b2", "b3", "b4")))
    assert bytes_to_copy(striped, {"b1"}) == 50 * EACH
    assert bytes_to_copy(closed(Quorum(1, 1, 1), -1, Fragment(0, ("b1",))), {"b1"}) == 0
    growing = LedgerMetadata(8, Quorum(1, 1, 1), (Fragment(0, ("b1",)), Fragment(5, ("b2",))), "creator", 0)
    assert bytes_to_copy(growing, {"b1"}) is None

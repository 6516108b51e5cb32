"""The repair needs of a ledger, by its metadata and the state of bookies."""

from dataclasses import replace

from tallybook.core.limits import BATCH_TABLE_ROW_BYTES
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState, MissedRange
from tallybook.repair.ledger_walk import WalkFindings, add_ledger
from tallybook.repair.needs import BookieLimbo, BookieProblems, RepairNeed, RepairReason, bytes_to_copy, find_reason

TWO = Quorum(2, 2, 1)
LOST_ALL = BookieLimbo(below=100, restored=())
EACH = 1 + BATCH_TABLE_ROW_BYTES
"""The size of an entry of ``closed`` in a batch."""


def closed(quorum: Quorum, last: int, *fragments: Fragment) -> LedgerMetadata:
    return LedgerMetadata(
        7, quorum, fragments, "creator", 0, state=LedgerState.CLOSED, last_entry_id=last, length=last + 1
    )


def growing(*fragments: Fragment) -> LedgerMetadata:
    size = len(fragments[0].bookies)
    return LedgerMetadata(8, Quorum(size, size, 1), fragments, "creator", 0)


def needed(metadata: LedgerMetadata, name: str) -> RepairReason | None:
    return find_reason(metadata, BookieProblems(limbo={name: LOST_ALL}))


def test_a_bookie_that_lost_data_needs_nothing_of_a_ledger_that_never_gave_it_any() -> None:
    # Nothing would ever say that it has got this back: bookies name ledgers of which they hold something.
    replaced_at_the_end = closed(Quorum(2, 2, 1), 9, Fragment(0, ("b1", "b2")), Fragment(10, ("b1", "b3")))
    assert needed(replaced_at_the_end, "b1") is RepairReason.LIMBO
    assert needed(replaced_at_the_end, "b2") is RepairReason.LIMBO
    assert needed(replaced_at_the_end, "b3") is None
    shorter_than_a_stripe = closed(Quorum(3, 1, 1, 4), 6, Fragment(0, ("b1", "b2", "b3")))
    assert [needed(shorter_than_a_stripe, name) for name in ("b1", "b2", "b3")] == [
        RepairReason.LIMBO,
        RepairReason.LIMBO,
        None,
    ]
    assert needed(closed(Quorum(1, 1, 1), -1, Fragment(0, ("b1",))), "b1") is None


def test_a_bookie_that_lost_data_needs_what_it_has_not_got_back_of_the_ledgers_of_then() -> None:
    metadata = closed(Quorum(1, 1, 1), 0, Fragment(0, ("b1",)))
    for limbo, why in (
        ((100, ()), RepairReason.LIMBO),
        ((100, (7,)), None),
        ((7, ()), None),
        ((8, ()), RepairReason.LIMBO),
    ):
        assert find_reason(metadata, BookieProblems(limbo={"b1": BookieLimbo(*limbo)})) is why


def test_a_bookie_has_not_got_everything_back_while_another_trouble_of_a_ledger_comes_first() -> None:
    closed_one = closed(Quorum(2, 2, 1), 9, Fragment(0, ("b1", "b2")))
    problems = BookieProblems(lost=frozenset({"b2"}), limbo={"b1": LOST_ALL}, damaged={closed_one.ledger_id: 0})
    findings = WalkFindings()
    assert add_ledger(findings, closed_one, problems, {}) == RepairNeed(RepairReason.DAMAGED, None)
    assert (findings.needing[RepairReason.LIMBO], findings.in_limbo) == (0, 1)
    add_ledger(findings, LedgerMetadata(8, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0), problems, {})
    assert findings.in_limbo == 2
    add_ledger(findings, LedgerMetadata(9, Quorum(1, 1, 1), (Fragment(0, ("b3",)),), "creator", 0), problems, {})
    assert findings.in_limbo == 2


def test_a_ledger_that_only_leaves_a_bookie_to_be_emptied_lacks_nothing() -> None:
    findings, problems = WalkFindings(), BookieProblems(lost=frozenset({"b9"}), draining=frozenset({"b1"}))
    assert add_ledger(findings, closed(TWO, 9, Fragment(0, ("b1", "b2"))), problems, {}) == RepairNeed(
        RepairReason.DRAINING, None
    )
    assert add_ledger(findings, growing(Fragment(0, ("b1", "b2"))), problems, {}) == RepairNeed(
        None, RepairReason.DRAINING
    )
    both = growing(Fragment(0, ("b1", "b2")), Fragment(5, ("b1", "b3")))
    assert add_ledger(findings, both, problems, {}) == RepairNeed(RepairReason.DRAINING, RepairReason.DRAINING)
    assert (findings.under_replicated, findings.moving, findings.to_end) == (0, 3, 0)


def test_a_bookie_to_be_emptied_hides_nothing_that_a_ledger_lacks() -> None:
    draining = frozenset({"b1"})
    missed = replace(closed(TWO, 9, Fragment(0, ("b1", "b2"))), missed=(MissedRange("b2", 0, 9),))
    limbo = {"b2": LOST_ALL}
    for metadata, problems, why in (
        (missed, BookieProblems(draining=draining, alive=frozenset({"b1", "b2"})), RepairReason.MISSED),
        (missed, BookieProblems(draining=draining, lost=frozenset({"b2"})), RepairReason.LOST),
        (missed, BookieProblems(draining=draining, limbo=limbo), RepairReason.LIMBO),
        (missed, BookieProblems(draining=draining, damaged={missed.ledger_id: 0}), RepairReason.DAMAGED),
    ):
        findings = WalkFindings()
        assert add_ledger(findings, metadata, problems, {}).foremost is why
        assert (findings.under_replicated, findings.moving) == (1, 0)


def test_where_a_ledger_grows_a_lost_bookie_is_graver_than_one_to_be_emptied_anywhere() -> None:
    problems = BookieProblems(lost=frozenset({"b2"}), draining=frozenset({"b1"}))
    findings = WalkFindings()
    for metadata in (
        growing(Fragment(0, ("b1", "b3")), Fragment(5, ("b2", "b3"))),
        growing(Fragment(0, ("b3", "b4")), Fragment(5, ("b1", "b2"))),
    ):
        assert add_ledger(findings, metadata, problems, {}).foremost is RepairReason.LOST
    assert (findings.under_replicated, findings.moving, findings.to_end) == (2, 0, 2)
    assert RepairNeed(RepairReason.MISSED, RepairReason.LOST).foremost is RepairReason.MISSED


def test_the_amount_to_copy_is_the_share_of_leaving_bookies() -> None:
    whole = closed(Quorum(2, 2, 1), 99, Fragment(0, ("b1", "b2")), Fragment(60, ("b1", "b3")))
    assert bytes_to_copy(whole, {"b1"}) == 100 * EACH
    assert bytes_to_copy(whole, {"b2"}) == 60 * EACH
    assert bytes_to_copy(whole, {"b2", "b3"}) == 100 * EACH
    assert bytes_to_copy(whole, {"b4"}) == 0
    striped = closed(Quorum(4, 2, 1, 1), 99, Fragment(0, ("b1", "b2", "b3", "b4")))
    assert bytes_to_copy(striped, {"b1"}) == 50 * EACH
    assert bytes_to_copy(closed(Quorum(1, 1, 1), -1, Fragment(0, ("b1",))), {"b1"}) == 0
    assert bytes_to_copy(growing(Fragment(0, ("b1",)), Fragment(5, ("b2",))), {"b1"}) is None

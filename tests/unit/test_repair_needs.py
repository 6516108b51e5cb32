"""What a ledger needs, by its metadata and what is known of bookies."""

from dataclasses import replace

from tallybook.core.limits import BATCH_TABLE_ROW_BYTES
from tallybook.core.quorum import Quorum
from tallybook.metadata.model import Fragment, LedgerMetadata, LedgerState, MissedRange
from tallybook.repair.needs import LimboOf, Need, Trouble, Why, bytes_to_copy, reason
from tallybook.repair.walk import Findings, note

TWO = Quorum(2, 2, 1)
LOST_ALL = LimboOf(below=100, mended=())
EACH = 1 + BATCH_TABLE_ROW_BYTES
"""Of an entry of ``closed``, in a batch."""


def closed(quorum: Quorum, last: int, *fragments: Fragment) -> LedgerMetadata:
    return LedgerMetadata(
        7, quorum, fragments, "creator", 0, state=LedgerState.CLOSED, last_entry_id=last, length=last + 1
    )


def growing(*fragments: Fragment) -> LedgerMetadata:
    size = len(fragments[0].bookies)
    return LedgerMetadata(8, Quorum(size, size, 1), fragments, "creator", 0)


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
    trouble = Trouble(lost=frozenset({"b2"}), limbo={"b1": LOST_ALL}, damaged={closed_one.ledger_id: 0})
    findings = Findings()
    assert note(findings, closed_one, trouble, {}) == Need(Why.DAMAGED, None)
    assert (findings.needing[Why.LIMBO], findings.in_limbo) == (0, 1)
    note(findings, LedgerMetadata(8, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0), trouble, {})
    assert findings.in_limbo == 2
    note(findings, LedgerMetadata(9, Quorum(1, 1, 1), (Fragment(0, ("b3",)),), "creator", 0), trouble, {})
    assert findings.in_limbo == 2


def test_a_ledger_that_only_leaves_a_bookie_to_be_emptied_lacks_nothing() -> None:
    findings, trouble = Findings(), Trouble(lost=frozenset({"b9"}), draining=frozenset({"b1"}))
    assert note(findings, closed(TWO, 9, Fragment(0, ("b1", "b2"))), trouble, {}) == Need(Why.DRAINING, None)
    assert note(findings, growing(Fragment(0, ("b1", "b2"))), trouble, {}) == Need(None, Why.DRAINING)
    both = growing(Fragment(0, ("b1", "b2")), Fragment(5, ("b1", "b3")))
    assert note(findings, both, trouble, {}) == Need(Why.DRAINING, Why.DRAINING)
    assert (findings.under_replicated, findings.moving, findings.to_end) == (0, 3, 0)


def test_a_bookie_to_be_emptied_hides_nothing_that_a_ledger_lacks() -> None:
    draining = frozenset({"b1"})
    missed = replace(closed(TWO, 9, Fragment(0, ("b1", "b2"))), missed=(MissedRange("b2", 0, 9),))
    limbo = {"b2": LOST_ALL}
    for metadata, trouble, why in (
        (missed, Trouble(draining=draining, alive=frozenset({"b1", "b2"})), Why.MISSED),
        (missed, Trouble(draining=draining, lost=frozenset({"b2"})), Why.LOST),
        (missed, Trouble(draining=draining, limbo=limbo), Why.LIMBO),
        (missed, Trouble(draining=draining, damaged={missed.ledger_id: 0}), Why.DAMAGED),
    ):
        findings = Findings()
        assert note(findings, metadata, trouble, {}).foremost is why
        assert (findings.under_replicated, findings.moving) == (1, 0)


def test_where_a_ledger_grows_a_lost_bookie_is_graver_than_one_to_be_emptied_anywhere() -> None:
    trouble = Trouble(lost=frozenset({"b2"}), draining=frozenset({"b1"}))
    findings = Findings()
    for metadata in (
        growing(Fragment(0, ("b1", "b3")), Fragment(5, ("b2", "b3"))),
        growing(Fragment(0, ("b3", "b4")), Fragment(5, ("b1", "b2"))),
    ):
        assert note(findings, metadata, trouble, {}).foremost is Why.LOST
    assert (findings.under_replicated, findings.moving, findings.to_end) == (2, 0, 2)
    assert Need(Why.MISSED, Why.LOST).foremost is Why.MISSED


def test_what_is_to_be_copied_is_the_share_of_those_who_leave() -> None:
    whole = closed(Quorum(2, 2, 1), 99, Fragment(0, ("b1", "b2")), Fragment(60, ("b1", "b3")))
    assert bytes_to_copy(whole, {"b1"}) == 100 * EACH
    assert bytes_to_copy(whole, {"b2"}) == 60 * EACH
    assert bytes_to_copy(whole, {"b2", "b3"}) == 100 * EACH
    assert bytes_to_copy(whole, {"b4"}) == 0
    striped = closed(Quorum(4, 2, 1, 1), 99, Fragment(0, ("b1", "b2", "b3", "b4")))
    assert bytes_to_copy(striped, {"b1"}) == 50 * EACH
    assert bytes_to_copy(closed(Quorum(1, 1, 1), -1, Fragment(0, ("b1",))), {"b1"}) == 0
    assert bytes_to_copy(growing(Fragment(0, ("b1",)), Fragment(5, ("b2",))), {"b1"}) is None

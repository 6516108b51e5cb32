"""The oracle of the simulation: it detects each planted violation, and reports no others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, NoReturn, cast

import pytest

from tallybook.bookie.bookie import Bookie
from tallybook.core.answers import Incarnation
from tallybook.core.errors import EntryUnknown
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import (
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerState,
    begin_recovery,
    change_ensemble,
    close,
)
from tallybook.sim.coverage import CoverageMarks, known_marks, marks_of_the_product
from tallybook.sim.oracle.oracle import ATTEMPT, InvariantBroken, Oracle
from tallybook.sim.stage.disk_bookie import batch_of

BOOKIES = ("b0", "b1", "b2")
OPEN = LedgerMetadata(1, Quorum(3, 3, 2), (Fragment(0, BOOKIES),), "creator", 0, writer_token="writer")


def life(bookie_id: str) -> Incarnation:
    return Incarnation(f"uuid of {bookie_id}", 1)


class Watched:
    """An oracle with one ledger of three confirmed entries on two of three bookies."""

    def __init__(self) -> None:
        self.notes: list[tuple[object, ...]] = []
        self.oracle = Oracle(CoverageMarks(), lambda *event: self.notes.append(event), lambda: 0)
        self.oracle.changed(1, None, OPEN)
        for entry_id in range(3):
            self.ack(entry_id)
        self.oracle.confirmed(1, 2)

    def ack(self, entry_id: int, *, by: tuple[str, ...] = ("b0", "b1"), payload: bytes = b"entry") -> None:
        batch = batch_of(entry_id, payload=payload)
        for bookie_id in by:
            self.oracle.sent(bookie_id, life(bookie_id), batch)
            self.oracle.acked(bookie_id, life(bookie_id), batch)

    @property
    def found(self) -> list[str]:
        return [invariant for invariant, _ in self.oracle.violations]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_sound_life_of_a_ledger_raises_nothing(watched: Watched) -> None:
    in_recovery = begin_recovery(OPEN)
    watched.oracle.changed(1, OPEN, in_recovery)
    closed = close(in_recovery, 2, 30)
    watched.oracle.changed(1, in_recovery, closed)
    watched.oracle.changed(1, closed, closed)
    assert watched.found == []
    watched.oracle.raise_violations()


def test_a_close_below_a_confirmed_entry_is_detected(watched: Watched) -> None:
    watched.oracle.changed(1, OPEN, close(OPEN, 1, 20))
    assert watched.found == ["I2"]
    with pytest.raises(InvariantBroken, match="I2: ledger 1 was closed at 1"):
        watched.oracle.raise_violations()


def test_a_recovery_that_drops_what_an_ack_quorum_holds_is_detected(watched: Watched) -> None:
    watched.ack(3)
    in_recovery = begin_recovery(OPEN)
    watched.oracle.changed(1, in_recovery, close(in_recovery, 2, 30))
    assert watched.found == ["I2"]


def test_a_recovery_that_writes_entries_of_an_earlier_fragment_back_is_detected(watched: Watched) -> None:
    changed = change_ensemble(OPEN, OPEN.last_fragment, 3, ("b0", "b1", "b3"))
    watched.oracle.changed(1, OPEN, changed)
    watched.oracle.changed(1, changed, begin_recovery(changed))
    watched.oracle.written_back("b1", batch_of(3))
    assert not watched.found
    watched.oracle.written_back("b1", batch_of(2))
    assert watched.found == ["I26"]


def test_a_recovery_that_reads_from_a_bookie_that_no_metadata_ever_named_is_detected(watched: Watched) -> None:
    changed = change_ensemble(OPEN, OPEN.last_fragment, 0, ("b0", "b1", "b3"))
    watched.oracle.changed(1, OPEN, changed)
    watched.oracle.recovery_read("b2", 1, 0)
    watched.oracle.recovery_read("b3", 1, 0)
    assert not watched.found
    watched.oracle.recovery_read("b4", 1, 0)
    assert watched.found == ["I27"]


def test_a_recovery_may_close_before_what_another_one_is_still_adding(watched: Watched) -> None:
    watched.ack(3, by=("b0",))
    watched.oracle.acked("b1", life("b1"), batch_of(3, payload=b"entry"), by_writer=False)
    in_recovery = begin_recovery(OPEN)
    watched.oracle.changed(1, in_recovery, close(in_recovery, 2, 30))
    assert watched.found == []


def test_a_writer_may_close_below_unconfirmed_entries(watched: Watched) -> None:
    watched.ack(3)
    watched.oracle.changed(1, OPEN, close(OPEN, 2, 30))
    assert watched.found == []


def test_a_confirmation_without_an_ack_quorum_is_detected(watched: Watched) -> None:
    watched.ack(3, by=("b0",))
    watched.oracle.confirmed(1, 3)
    assert watched.found == ["I1"]


def test_acks_of_bookies_outside_of_the_write_set_do_not_count(watched: Watched) -> None:
    watched.ack(3, by=("b0", "b7"))
    watched.oracle.confirmed(1, 3)
    assert watched.found == ["I1"]


def test_a_confirmation_above_the_end_is_detected(watched: Watched) -> None:
    watched.oracle.changed(1, OPEN, close(OPEN, 2, 30))
    watched.ack(3)
    watched.oracle.confirmed(1, 3)
    assert watched.found == ["I5"]


def test_what_a_recovery_found_absent_may_be_acked_by_less_than_an_ack_quorum(watched: Watched) -> None:
    in_recovery = begin_recovery(OPEN)
    watched.oracle.changed(1, OPEN, in_recovery)
    watched.oracle.changed(1, in_recovery, close(in_recovery, 2, 30))
    watched.ack(3, by=("b0", "b7"))
    assert watched.found == []
    watched.ack(3, by=("b1",))
    assert watched.found == ["I5"]


def test_two_bodies_of_one_entry_are_detected(watched: Watched) -> None:
    watched.ack(2, by=("b2",), payload=b"other")
    assert watched.found == ["I8"]


def test_overlapping_batches_are_detected(watched: Watched) -> None:
    watched.oracle.acked("b2", life("b2"), batch_of(1, 4))
    assert "I8" in watched.found


def test_a_lac_above_the_ack_quorum_is_detected(watched: Watched) -> None:
    watched.oracle.sent("b0", life("b0"), batch_of(9, lac=5))
    assert watched.found == ["I6"]


CLOSED = close(change_ensemble(OPEN, OPEN.last_fragment, 2, ("b0", "b1", "b7")), 2, 30)


@pytest.mark.parametrize(
    "change",
    [
        {"length": 31},
        {"last_entry_id": 1},
        {"fragments": (CLOSED.fragments[0], Fragment(1, CLOSED.fragments[1].bookies))},
        {"quorum": Quorum(3, 2, 2)},
        {"key_verifier": b"another"},
        {"key_salt": b"another"},
        {"digest": DigestType.HMAC_SHA256},
        {"custom": {"name": b"another"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_closed_ledger_that_changes_is_detected(watched: Watched, change: dict[str, Any]) -> None:
    watched.oracle.changed(1, CLOSED, replace(CLOSED, **change))
    assert "I3" in watched.found


def test_a_closed_ledger_may_get_other_members(watched: Watched) -> None:
    watched.oracle.changed(1, CLOSED, replace(CLOSED, fragments=(OPEN.fragments[0], Fragment(2, ("b0", "b1", "b2")))))
    assert watched.found == []


def test_a_ledger_that_opens_again_is_detected(watched: Watched) -> None:
    in_recovery = begin_recovery(OPEN)
    watched.oracle.changed(1, in_recovery, replace(in_recovery, state=LedgerState.OPEN))
    assert watched.found == ["I3"]


def test_an_ensemble_change_over_confirmed_entries_is_detected(watched: Watched) -> None:
    watched.oracle.changed(1, OPEN, change_ensemble(OPEN, OPEN.last_fragment, 3, ("b0", "b1", "b7")))
    assert watched.found == []
    # Entry 2 was acked by b0 and b1 only.
    watched.oracle.changed(1, OPEN, change_ensemble(OPEN, OPEN.last_fragment, 2, ("b0", "b7", "b2")))
    assert watched.found == ["I1"]


def test_acks_of_a_directory_that_the_writer_knows_to_be_lost_do_not_count(watched: Watched) -> None:
    watched.ack(3)
    watched.ack(4, by=("b1", "b2"))
    another = Incarnation("another uuid of b0", 1)
    watched.oracle.sent("b0", another, batch_of(4))
    watched.oracle.acked("b0", another, batch_of(4))
    watched.oracle.confirmed(1, 4)
    assert watched.found == []
    watched.oracle.confirmed(1, 3)
    assert watched.found == ["I1"]


def test_a_second_owner_is_detected(watched: Watched) -> None:
    watched.oracle.adopted(1, "one")
    assert watched.found == []
    watched.oracle.adopted(1, "other")
    assert watched.found == ["I22"]


def test_a_close_reported_as_not_done_is_detected_when_it_lands(watched: Watched) -> None:
    watched.oracle.adopted(1, "one")
    assert not watched.oracle.closing(1)
    watched.oracle.changed(1, OPEN, close(OPEN, 2, 30))
    assert watched.found == []
    watched.oracle.not_closed(1)
    assert watched.found == ["I21"]


def test_a_late_close_after_it_was_reported_as_not_done_is_detected(watched: Watched) -> None:
    watched.oracle.adopted(1, "one")
    watched.oracle.closing(1)
    watched.oracle.not_closed(1)
    assert watched.found == []
    watched.oracle.changed(1, OPEN, close(OPEN, 2, 30))
    assert watched.found == ["I21"]


def test_a_ledger_whose_creation_was_called_undone_is_detected_before_and_after(watched: Watched) -> None:
    watched.oracle.not_created(b"late")
    assert watched.found == []
    watched.oracle.changed(2, None, replace(OPEN, ledger_id=2, custom={ATTEMPT: b"late"}))
    assert watched.found == ["I21"]
    watched.oracle.changed(3, None, replace(OPEN, ledger_id=3, custom={ATTEMPT: b"early"}))
    watched.oracle.not_created(b"early")
    assert watched.found == ["I21", "I21"]


def test_a_deleted_ledger_is_not_checked(watched: Watched) -> None:
    watched.oracle.changed(1, OPEN, None)
    watched.ack(3)
    watched.oracle.confirmed(1, 3)
    watched.oracle.adopted(1, "late")
    watched.oracle.not_closed(1)
    assert not watched.oracle.closing(1)
    assert watched.found == []


def test_marks_are_counted_and_those_written_in_the_code_are_known() -> None:
    marks = CoverageMarks()
    marks("journal: rare")
    marks("journal: rare")
    assert marks.met == {"journal: rare": 2}
    source = 'sometimes("a: one")\nself._oracle.mark("b: two")\nmark(f"c: {not_known}")'
    assert known_marks([source]) == ["a: one", "b: two"]
    assert marks_of_the_product([source]) == ["a: one"]


class InLimbo:
    """A bookie in limbo."""

    incarnation = life("b0")

    async def read_lac(self, _ledger_id: int) -> NoReturn:
        raise EntryUnknown("it may have been lost")


@pytest.mark.parametrize(("harmed", "failing"), [(True, False), (False, True), (False, False)])
def test_only_a_bookie_that_something_was_done_to_may_not_know_what_it_fenced(
    watched: Watched, harmed: bool, failing: bool
) -> None:
    if harmed:
        watched.oracle.injected_damage.lose("b0", InLimbo.incarnation.directory_uuid)
    asyncio.run(watched.oracle.recheck_fence("b0", cast("Bookie", InLimbo()), 1, lambda: failing))
    assert watched.found == ([] if harmed or failing else ["I13"])


def test_a_bookie_that_has_dropped_a_ledger_which_is_to_be_kept_is_detected(watched: Watched) -> None:
    assert not watched.oracle.check_gone("b0", 1)
    assert watched.found == ["I16"]


def test_a_ledger_that_was_deleted_or_never_was_may_be_gone(watched: Watched) -> None:
    watched.oracle.changed(1, OPEN, None)
    assert watched.oracle.check_gone("b0", 1)
    assert watched.oracle.check_gone("b0", 2)
    assert watched.found == []


OTHERS = (Fragment(0, ("b0", "b2", "b3")),)


@pytest.mark.parametrize(
    ("metadata", "noticed"),
    [
        (replace(OPEN, fragments=OTHERS), ["I16"]),
        (close(OPEN, 2, 20), ["I16"]),
        (replace(close(OPEN, 2, 20), fragments=OTHERS), []),
    ],
)
def test_a_bookie_that_drops_copies_which_are_not_for_others_alone_is_detected(
    metadata: LedgerMetadata, noticed: list[str]
) -> None:
    oracle = Oracle(CoverageMarks(), lambda *_: None, lambda: 0)
    oracle.changed(1, None, metadata)
    oracle.copies_dropped("b1", 1)
    assert [invariant for invariant, _ in oracle.violations] == noticed


def test_copies_that_were_dropped_do_not_count_where_their_bookie_is_named_again(watched: Watched) -> None:
    ended = close(OPEN, 2, 20)
    given_away = replace(ended, fragments=OTHERS)
    for entry_id in range(3):
        watched.ack(entry_id, by=("b2",))
    for before, after in ((OPEN, ended), (ended, given_away)):
        watched.oracle.changed(1, before, after)
    assert watched.oracle.may_hold("b1", 1, 0)
    watched.oracle.copies_dropped("b1", 1)
    assert not watched.oracle.may_hold("b1", 1, 0)
    assert watched.found == []
    watched.oracle.changed(1, given_away, replace(ended, fragments=(Fragment(0, ("b1", "b3", "b0")),)))
    assert watched.found == ["I1"] * 3


def test_a_deleted_ledger_may_be_dropped_by_every_bookie(watched: Watched) -> None:
    watched.oracle.changed(1, OPEN, None)
    watched.oracle.copies_dropped("b1", 1)
    assert watched.found == []

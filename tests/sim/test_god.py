"""The god's view: each thing that must not be is noticed when it is planted, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallybook.core.answers import Incarnation
from tallybook.core.quorum import Quorum
from tallybook.metadata.model import Fragment, LedgerMetadata, LedgerState, begin_recovery, close
from tallybook.sim.disk_bookie import batch_of
from tallybook.sim.god import God, InvariantBroken
from tallybook.sim.marks import Marks, known_marks

BOOKIES = ("b0", "b1", "b2")
OPEN = LedgerMetadata(1, Quorum(3, 3, 2), (Fragment(0, BOOKIES),), "creator", 0, writer_token="writer")


def life(bookie_id: str) -> Incarnation:
    return Incarnation(f"uuid of {bookie_id}", 1)


class Watched:
    """A god that looks at one ledger with three entries, held by two of three bookies and confirmed."""

    def __init__(self) -> None:
        self.notes: list[tuple[object, ...]] = []
        self.god = God(Marks(), lambda *event: self.notes.append(event), lambda: 0)
        self.god.changed(1, None, OPEN)
        for entry_id in range(3):
            self.ack(entry_id)
        self.god.confirmed(1, 2)

    def ack(self, entry_id: int, *, by: tuple[str, ...] = ("b0", "b1"), payload: bytes = b"entry") -> None:
        batch = batch_of(entry_id, payload=payload)
        for bookie_id in by:
            self.god.sent(bookie_id, batch)
            self.god.acked(bookie_id, life(bookie_id), batch)

    @property
    def found(self) -> list[str]:
        return [invariant for invariant, _ in self.god.violations]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_sound_life_of_a_ledger_raises_nothing(watched: Watched) -> None:
    in_recovery = begin_recovery(OPEN)
    watched.god.changed(1, OPEN, in_recovery)
    closed = close(in_recovery, 2, 30)
    watched.god.changed(1, in_recovery, closed)
    watched.god.changed(1, closed, closed)
    assert watched.found == []
    watched.god.raise_violations()


def test_a_close_below_a_confirmed_entry_is_noticed(watched: Watched) -> None:
    watched.god.changed(1, OPEN, close(OPEN, 1, 20))
    assert watched.found == ["I2"]
    with pytest.raises(InvariantBroken, match="I2: ledger 1 was closed at 1"):
        watched.god.raise_violations()


def test_a_recovery_that_drops_what_an_ack_quorum_holds_is_noticed(watched: Watched) -> None:
    watched.ack(3)
    in_recovery = begin_recovery(OPEN)
    watched.god.changed(1, in_recovery, close(in_recovery, 2, 30))
    assert watched.found == ["I2"]


def test_a_writer_may_close_below_what_it_was_not_told(watched: Watched) -> None:
    watched.ack(3)
    watched.god.changed(1, OPEN, close(OPEN, 2, 30))
    assert watched.found == []


def test_a_confirmation_without_an_ack_quorum_is_noticed(watched: Watched) -> None:
    watched.ack(3, by=("b0",))
    watched.god.confirmed(1, 3)
    assert watched.found == ["I1"]


def test_acks_of_bookies_outside_of_the_write_set_do_not_count(watched: Watched) -> None:
    watched.ack(3, by=("b0", "b7"))
    watched.god.confirmed(1, 3)
    assert watched.found == ["I1"]


def test_a_confirmation_above_the_end_is_noticed(watched: Watched) -> None:
    watched.god.changed(1, OPEN, close(OPEN, 2, 30))
    watched.ack(3)
    watched.god.confirmed(1, 3)
    assert watched.found == ["I5"]


def test_two_bodies_of_one_entry_are_noticed(watched: Watched) -> None:
    watched.ack(2, by=("b2",), payload=b"other")
    assert watched.found == ["I8"]


def test_overlapping_batches_are_noticed(watched: Watched) -> None:
    watched.god.acked("b2", life("b2"), batch_of(1, 4))
    assert "I8" in watched.found


def test_a_lac_above_what_is_held_is_noticed(watched: Watched) -> None:
    watched.god.sent("b0", batch_of(9, lac=5))
    assert watched.found == ["I6"]


def test_a_closed_ledger_that_changes_is_noticed(watched: Watched) -> None:
    closed = close(OPEN, 2, 30)
    watched.god.changed(1, OPEN, closed)
    watched.god.changed(1, closed, replace(closed, length=31))
    assert watched.found == ["I3"]


def test_a_ledger_that_opens_again_is_noticed(watched: Watched) -> None:
    in_recovery = begin_recovery(OPEN)
    watched.god.changed(1, in_recovery, replace(in_recovery, state=LedgerState.OPEN))
    assert watched.found == ["I3"]


def test_marks_are_counted_and_those_written_in_the_code_are_known() -> None:
    marks = Marks()
    marks("journal: rare")
    marks("journal: rare")
    assert marks.met == {"journal: rare": 2}
    source = 'sometimes("a: one")\nself._god.mark("b: two")\nmark(f"c: {not_known}")'
    assert known_marks([source]) == ["a: one", "b: two"]

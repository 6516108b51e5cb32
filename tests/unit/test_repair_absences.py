"""``repair/absences.py``: when an absent bookie counts as lost."""

from tallybook.repair.absences import Absences


def test_a_restart_that_is_shorter_than_the_delay_is_no_loss() -> None:
    watch = Absences(300)
    watch.observe({"a", "b"}, 0)
    watch.observe({"a"}, 100)
    assert watch.away == {"b"}
    assert watch.lost(399) == frozenset()
    watch.observe({"a", "b"}, 399)
    watch.observe({"a"}, 400)
    assert watch.lost(699) == frozenset(), "every absence is counted for itself"
    assert watch.lost(700) == {"b"}


def test_a_bookie_absent_from_the_beginning_is_lost_after_a_whole_delay_as_well() -> None:
    watch = Absences(300)
    watch.observe({"a"}, 50)
    watch.note_named({"a", "gone"}, 60)
    watch.note_named({"a", "gone"}, 200)
    assert watch.lost(359) == frozenset()
    assert watch.lost(360) == {"gone"}


def test_a_bookie_that_no_ledger_names_any_more_is_ignored() -> None:
    watch = Absences(10)
    watch.observe({"a", "b"}, 0)
    watch.observe({"a"}, 1)
    watch.retain({"a"})
    assert watch.away == frozenset()

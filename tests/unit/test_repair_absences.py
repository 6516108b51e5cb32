"""When an absence is a loss."""

from tallybook.repair.absences import Absences


def test_a_restart_that_is_shorter_than_the_delay_is_no_loss() -> None:
    watch = Absences(300)
    watch.see({"a", "b"}, 0)
    watch.see({"a"}, 100)
    assert watch.away == {"b"}
    assert watch.lost(399) == frozenset()
    watch.see({"a", "b"}, 399)
    watch.see({"a"}, 400)
    assert watch.lost(699) == frozenset(), "every absence is counted for itself"


def test_who_stays_away_is_lost() -> None:
    watch = Absences(300)
    watch.see({"a", "b"}, 0)
    watch.see({"a"}, 100)
    assert watch.lost(400) == {"b"}


def test_who_was_away_from_the_beginning_is_lost_after_a_whole_delay_as_well() -> None:
    watch = Absences(300)
    watch.see({"a"}, 50)
    watch.hear_of({"a", "gone"}, 60)
    watch.hear_of({"a", "gone"}, 200)
    assert watch.lost(359) == frozenset()
    assert watch.lost(360) == {"gone"}


def test_whom_no_ledger_names_any_more_is_of_no_interest() -> None:
    watch = Absences(10)
    watch.see({"a", "b"}, 0)
    watch.see({"a"}, 1)
    watch.forget_all_but({"a"})
    assert watch.away == frozenset()

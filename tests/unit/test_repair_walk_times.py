"""When the repair walks all ledgers: at any news, and less often if nothing helps."""

from collections import Counter

import pytest

from tallybook.repair.ledger_walk import WalkFindings
from tallybook.repair.needs import DataLoss, RepairReason
from tallybook.repair.walk_times import MAX_PAUSE_SECONDS, MAX_TASKS, QUIET_SECONDS, ClusterSigns, WalkSchedule

INTERVAL = 30.0
ALL_WELL = ClusterSigns(alive=frozenset("abc"))
LOST = ClusterSigns(lost=frozenset("a"), alive=frozenset("bc"))
DRAINING = ClusterSigns(draining=frozenset("a"), alive=frozenset("abc"))
LOST_DATA = {"a": DataLoss("one directory", 1, 50)}


class Clockwork:
    """Rounds, one every half minute, with walks that take no time unless said."""

    def __init__(self) -> None:
        self.times = WalkSchedule(INTERVAL)
        self.now = 1_000.0

    def walk(
        self,
        signs: ClusterSigns,
        to_do: int,
        *,
        left_out: bool = False,
        end: float | None = None,
        took: float = 0.0,
        why: RepairReason = RepairReason.LOST,
    ) -> None:
        began, self.now = self.now, self.now + took
        findings = WalkFindings(complete=True, needing=Counter({why: to_do}))
        self.times.record_walk(signs, findings, left_out=left_out, next_end=end, began=began, ended=self.now)

    def pause(self, signs: ClusterSigns, tasks: int = 0) -> float:
        """The time to the next walk."""
        since = self.now
        while not self.times.is_due(signs, tasks, self.now):
            self.now += INTERVAL
        return self.now - since


def test_an_auditor_begins_with_a_pass_and_waits_an_hour_where_all_is_well_though_bookies_come_and_go() -> None:
    works = Clockwork()
    assert works.pause(ALL_WELL) == 0
    for signs in (ALL_WELL, ClusterSigns(alive=frozenset("ab"))):
        works.walk(ALL_WELL, 0)
        assert works.pause(signs) == QUIET_SECONDS


@pytest.mark.parametrize(("signs", "why"), [(LOST, RepairReason.LOST), (DRAINING, RepairReason.DRAINING)])
def test_pauses_grow_where_walks_find_the_same_and_shrink_where_less_is_left(
    signs: ClusterSigns, why: RepairReason
) -> None:
    works, pauses = Clockwork(), []
    for _ in range(9):
        works.walk(signs, 2, why=why)
        pauses.append(works.pause(signs))
    assert pauses[:4] == [30, 60, 120, 240]
    assert pauses[-1] == MAX_PAUSE_SECONDS
    works.walk(signs, 1, why=why)
    assert works.pause(signs) == INTERVAL


def test_a_walk_that_takes_longer_runs_less_often() -> None:
    works, pauses = Clockwork(), []
    for _ in range(9):
        works.walk(LOST, 1, took=100)
        pauses.append(works.pause(LOST))
    assert pauses[-1] > MAX_PAUSE_SECONDS


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (ALL_WELL, LOST),
        (LOST, ClusterSigns(lost=frozenset("ab"), alive=frozenset("c"))),
        (LOST, ClusterSigns(draining=frozenset("a"), alive=frozenset("bc"))),
        (LOST, ClusterSigns(lost=frozenset("a"), alive=frozenset("bcd"))),
        (LOST, ClusterSigns(lost=frozenset("a"), alive=frozenset("b"))),
        (LOST, ClusterSigns(lost=frozenset("a"), alive=frozenset("bc"), publishing=False)),
        (ALL_WELL, ClusterSigns(limbo=LOST_DATA, alive=frozenset("abc"))),
        (ClusterSigns(limbo=LOST_DATA), ClusterSigns(limbo={"a": DataLoss("one directory", 2, 50)})),
        (ClusterSigns(limbo=LOST_DATA), ClusterSigns(limbo={"a": DataLoss("one directory", 1, 51)})),
        (ClusterSigns(limbo=LOST_DATA), ClusterSigns(limbo={"a": DataLoss("another directory", 1, 50)})),
        (ClusterSigns(damaged={"a": 0}), ClusterSigns(damaged={"a": 1})),
        (ClusterSigns(damaged={"a": 1}), ClusterSigns(damaged={"a": 1, "b": 1})),
    ],
)
def test_news_are_followed_at_once_however_long_the_pause_has_become(before: ClusterSigns, now: ClusterSigns) -> None:
    works = Clockwork()
    for _ in range(9):
        works.walk(before, 1)
    assert works.pause(now, tasks=3) == 0


def test_damage_that_is_mended_is_no_news_and_damage_that_comes_to_it_is() -> None:
    works = Clockwork()
    works.walk(ClusterSigns(damaged={"a": 5}), 1)
    assert not works.times.is_due(ClusterSigns(damaged={"a": 4}), 1, works.now)
    assert not works.times.is_due(ClusterSigns(damaged={"a": 4}), 1, works.now)
    assert not works.times.is_due(ClusterSigns(), 1, works.now), "who does not answer tells nothing"
    assert works.times.is_due(ClusterSigns(damaged={"a": 5}), 1, works.now)


def test_handed_out_ledgers_are_left_to_their_workers() -> None:
    works = Clockwork()
    works.walk(LOST, 100)
    assert works.pause(LOST, tasks=1) == QUIET_SECONDS
    works.walk(LOST, 50)
    assert works.pause(LOST) == INTERVAL


def test_items_beyond_the_window_are_handed_out_when_half_of_it_is_done() -> None:
    works = Clockwork()
    works.walk(LOST, 1_000_000, left_out=True)
    assert not works.times.is_due(LOST, MAX_TASKS, works.now + INTERVAL)
    assert works.pause(LOST, tasks=MAX_TASKS // 2) == INTERVAL


def test_a_ledger_is_ended_when_its_grace_is_over_and_not_a_pause_later() -> None:
    works = Clockwork()
    for _ in range(9):
        works.walk(LOST, 1, end=works.now + 60)
    assert works.pause(LOST, tasks=1) == 60


def test_all_findings_are_checked_again_once_nothing_is_known_to_be_wrong_any_more() -> None:
    works = Clockwork()
    works.walk(ClusterSigns(damaged={"a": 1}), 1)
    assert works.pause(ClusterSigns(damaged={"a": 0})) == INTERVAL
    works.walk(ClusterSigns(damaged={"a": 0}), 0)
    assert works.pause(ClusterSigns(damaged={"a": 0})) == QUIET_SECONDS


def test_a_listing_that_was_cut_short_is_soon_gone_over_again() -> None:
    works = Clockwork()
    pauses = []
    for _ in range(3):
        works.times.record_walk(
            ALL_WELL, WalkFindings(), left_out=False, next_end=None, began=works.now, ended=works.now
        )
        pauses.append(works.pause(ALL_WELL))
    assert pauses == [30, 60, 120]

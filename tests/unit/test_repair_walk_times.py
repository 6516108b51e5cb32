"""When all ledgers are gone over: at any news, and ever more seldom where nothing helps."""

from collections import Counter

import pytest

from tallybook.repair.needs import Loss, Why
from tallybook.repair.walk import Findings
from tallybook.repair.walk_times import LONGEST_PAUSE_SECONDS, MOST_TASKS, QUIET_SECONDS, Signs, WalkTimes

INTERVAL = 30.0
ALL_WELL = Signs(alive=frozenset("abc"))
LOST = Signs(lost=frozenset("a"), alive=frozenset("bc"))
DRAINING = Signs(draining=frozenset("a"), alive=frozenset("abc"))
LOST_DATA = {"a": Loss("one directory", 1, 50)}


class Clockwork:
    """Rounds, one every half minute, with walks that take no time unless said."""

    def __init__(self) -> None:
        self.times = WalkTimes(INTERVAL)
        self.now = 1_000.0

    def walk(
        self,
        signs: Signs,
        to_do: int,
        *,
        left_out: bool = False,
        end: float | None = None,
        took: float = 0.0,
        why: Why = Why.LOST,
    ) -> None:
        began, self.now = self.now, self.now + took
        findings = Findings(complete=True, needing=Counter({why: to_do}))
        self.times.walked(signs, findings, left_out=left_out, next_end=end, began=began, ended=self.now)

    def pause(self, signs: Signs, tasks: int = 0) -> float:
        """How long it is to the next walk."""
        since = self.now
        while not self.times.is_due(signs, tasks, self.now):
            self.now += INTERVAL
        return self.now - since


def test_the_first_round_of_an_auditor_goes_over_all_ledgers() -> None:
    assert Clockwork().pause(ALL_WELL) == 0


def test_where_all_is_well_an_hour_passes() -> None:
    works = Clockwork()
    works.walk(ALL_WELL, 0)
    assert works.pause(ALL_WELL) == QUIET_SECONDS


@pytest.mark.parametrize(("signs", "why"), [(LOST, Why.LOST), (DRAINING, Why.DRAINING)])
def test_pauses_grow_where_walks_find_the_same_and_shrink_where_less_is_left(signs: Signs, why: Why) -> None:
    works, pauses = Clockwork(), []
    for _ in range(9):
        works.walk(signs, 2, why=why)
        pauses.append(works.pause(signs))
    assert pauses[:4] == [30, 60, 120, 240]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    works.walk(signs, 1, why=why)
    assert works.pause(signs) == INTERVAL


def test_a_walk_that_takes_long_comes_the_more_seldom() -> None:
    works, pauses = Clockwork(), []
    for _ in range(9):
        works.walk(LOST, 1, took=100)
        pauses.append(works.pause(LOST))
    assert pauses[-1] > LONGEST_PAUSE_SECONDS


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (ALL_WELL, LOST),
        (LOST, Signs(lost=frozenset("ab"), alive=frozenset("c"))),
        (LOST, Signs(draining=frozenset("a"), alive=frozenset("bc"))),
        (LOST, Signs(lost=frozenset("a"), alive=frozenset("bcd"))),
        (LOST, Signs(lost=frozenset("a"), alive=frozenset("b"))),
        (LOST, Signs(lost=frozenset("a"), alive=frozenset("bc"), handing_out=False)),
        (ALL_WELL, Signs(limbo=LOST_DATA, alive=frozenset("abc"))),
        (Signs(limbo=LOST_DATA), Signs(limbo={"a": Loss("one directory", 2, 50)})),
        (Signs(limbo=LOST_DATA), Signs(limbo={"a": Loss("one directory", 1, 51)})),
        (Signs(limbo=LOST_DATA), Signs(limbo={"a": Loss("another directory", 1, 50)})),
        (Signs(damaged={"a": 0}), Signs(damaged={"a": 1})),
        (Signs(damaged={"a": 1}), Signs(damaged={"a": 1, "b": 1})),
    ],
)
def test_news_are_followed_at_once_however_long_the_pause_has_become(before: Signs, now: Signs) -> None:
    works = Clockwork()
    for _ in range(9):
        works.walk(before, 1)
    assert works.pause(now, tasks=3) == 0


def test_who_comes_and_goes_is_no_news_where_nothing_is_wrong() -> None:
    works = Clockwork()
    works.walk(ALL_WELL, 0)
    assert works.pause(Signs(alive=frozenset("ab"))) == QUIET_SECONDS


def test_damage_that_is_mended_is_no_news_and_damage_that_comes_to_it_is() -> None:
    works = Clockwork()
    works.walk(Signs(damaged={"a": 5}), 1)
    assert not works.times.is_due(Signs(damaged={"a": 4}), 1, works.now)
    assert not works.times.is_due(Signs(damaged={"a": 4}), 1, works.now)
    assert not works.times.is_due(Signs(), 1, works.now), "who does not answer tells nothing"
    assert works.times.is_due(Signs(damaged={"a": 5}), 1, works.now)


def test_what_is_handed_out_is_left_to_those_who_work_at_it() -> None:
    works = Clockwork()
    works.walk(LOST, 100)
    assert works.pause(LOST, tasks=1) == QUIET_SECONDS
    works.walk(LOST, 50)
    assert works.pause(LOST) == INTERVAL


def test_what_there_was_no_room_for_is_handed_out_when_half_of_the_rest_is_done() -> None:
    works = Clockwork()
    works.walk(LOST, 1_000_000, left_out=True)
    assert not works.times.is_due(LOST, MOST_TASKS, works.now + INTERVAL)
    assert works.pause(LOST, tasks=MOST_TASKS // 2) == INTERVAL


def test_a_ledger_is_ended_when_its_grace_is_over_and_not_a_pause_later() -> None:
    works = Clockwork()
    for _ in range(9):
        works.walk(LOST, 1, end=works.now + 60)
    assert works.pause(LOST, tasks=1) == 60


def test_whatever_was_found_is_looked_at_again_once_nothing_is_known_to_be_wrong_any_more() -> None:
    works = Clockwork()
    works.walk(Signs(damaged={"a": 1}), 1)
    assert works.pause(Signs(damaged={"a": 0})) == INTERVAL
    works.walk(Signs(damaged={"a": 0}), 0)
    assert works.pause(Signs(damaged={"a": 0})) == QUIET_SECONDS


def test_a_listing_that_was_cut_short_is_soon_gone_over_again() -> None:
    works = Clockwork()
    pauses = []
    for _ in range(3):
        works.times.walked(ALL_WELL, Findings(), left_out=False, next_end=None, began=works.now, ended=works.now)
        pauses.append(works.pause(ALL_WELL))
    assert pauses == [30, 60, 120]

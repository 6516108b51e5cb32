"""A scrub pass reads everything within its time, including entries that arrive meanwhile."""

from __future__ import annotations

import pytest

from tallybook.bookie.scrub.scrub_pass import ScrubPass
from tallybook.core.settings import ScrubSettings

SECONDS = 100.0


class Logs:
    """Logs of 1,000 bytes each; all that do not grow are finished."""

    def __init__(self, *log_ids: int, growing: int) -> None:
        self.sizes = dict.fromkeys(log_ids, 1_000)
        self.growing = {growing}

    @property
    def log_ids(self) -> list[int]:
        return sorted(self.sizes)

    @property
    def settled_log_ids(self) -> list[int]:
        return [log_id for log_id in self.log_ids if log_id not in self.growing]

    @property
    def durable_bytes(self) -> int:
        return sum(self.sizes.values())

    def size_of(self, log_id: int) -> int:
        return self.sizes.get(log_id, 0)

    def finish(self, log_id: int) -> None:
        """The log that grows is finished, and this one is begun."""
        self.sizes[log_id] = 1_000
        self.growing = {log_id}


def round_of(logs: Logs, *, after: int = 0, slowest: int = 1, fastest: int = 0) -> ScrubPass:
    settings = ScrubSettings(min_bytes_per_second=slowest, max_bytes_per_second=fastest)
    return ScrubPass(logs, settings, after=after, now=0.0, seconds=SECONDS)


def read_all(scrub: ScrubPass, now: float) -> list[int]:
    read = []
    while (log_id := scrub.next_log(now)) is not None:
        scrub.passed(log_id)
        read.append(log_id)
    return read


def test_logs_that_are_finished_meanwhile_are_read_in_the_same_pass() -> None:
    logs = Logs(1, 2, 3, growing=3)
    scrub = round_of(logs)
    assert scrub.next_log(0.0) == 1
    scrub.passed(1)
    logs.finish(4)
    assert read_all(scrub, 50.0) == [2, 3]
    assert scrub.growing() == {4}


def test_when_the_time_is_up_only_what_was_there_at_the_beginning_is_read() -> None:
    logs = Logs(1, 2, 3, growing=3)
    scrub = round_of(logs)
    logs.finish(4)
    logs.finish(5)
    assert read_all(scrub, SECONDS) == [1, 2, 3]
    assert scrub.growing() == {5}


def test_a_log_that_is_finished_after_a_younger_one_is_not_left_out() -> None:
    logs = Logs(1, 2, 3, growing=1)
    scrub = round_of(logs)
    assert read_all(scrub, 0.0) == [2, 3]
    logs.growing = set()
    assert read_all(scrub, 0.0) == [1]
    assert not scrub.growing()


def test_a_pass_that_goes_on_after_one_that_was_cut_off_leaves_out_what_that_one_read_and_its_time() -> None:
    logs = Logs(1, 2, 3, 4, growing=4)
    scrub = round_of(logs, after=2)
    assert scrub.bytes_per_second(0.0) == 4_000 / SECONDS
    logs.finish(5)
    assert read_all(scrub, SECONDS / 2) == [3, 4], "half of it is left, so half of the time is"


def test_a_log_that_was_not_finished_when_a_pass_was_cut_off_is_not_left_out_by_the_next() -> None:
    logs = Logs(1, 2, 3, growing=1)
    assert round_of(logs, after=2).growing() == {1}
    scrub = round_of(logs, after=2)
    logs.growing = set()
    assert read_all(scrub, 0.0) == [1, 3]


def test_only_what_has_no_gaps_is_noted_as_gone_through() -> None:
    logs = Logs(1, 2, 3, growing=2)
    scrub = round_of(logs)
    assert scrub.passed_up_to == 0
    read_all(scrub, 0.0)
    assert scrub.passed_up_to == 1, "log 3 was read, and log 2 was not"
    logs.growing = set()
    read_all(scrub, 0.0)
    assert scrub.passed_up_to == 3


def test_the_rate_follows_what_comes_what_is_read_and_what_is_removed() -> None:
    logs = Logs(1, 2, 3, 4, growing=4)
    scrub = round_of(logs)
    assert scrub.bytes_per_second(0.0) == 40
    logs.finish(5)
    assert scrub.bytes_per_second(0.0) == 50
    scrub.read(500)
    assert scrub.bytes_per_second(10.0) == 50
    scrub.passed(1)
    assert scrub.bytes_per_second(20.0) == 50, "what does not count in a log is passed with it"
    scrub.passed(2)
    del logs.sizes[1], logs.sizes[2]
    assert scrub.bytes_per_second(20.0) == int(3_000 / 80)
    assert scrub.next_log(20.0) == 3
    scrub.read(900)
    del logs.sizes[3]
    assert scrub.bytes_per_second(20.0) == 2_000 / 80, "what was read of a log that is gone is not missing elsewhere"


@pytest.mark.parametrize(
    ("slowest", "fastest", "rate"), [(100, 0, 100), (1, 20, 20), (100, 20, 20), (0, 0, 40), (0, 200, 40)]
)
def test_the_rate_keeps_to_its_bounds(slowest: int, fastest: int, rate: int) -> None:
    scrub = round_of(Logs(1, 2, 3, 4, growing=4), slowest=slowest, fastest=fastest)
    assert scrub.bytes_per_second(0.0) == rate


def test_a_pass_that_is_late_reads_as_fast_as_it_may_and_never_stands_still() -> None:
    assert round_of(Logs(1, 2, growing=2), fastest=1_500).bytes_per_second(SECONDS + 7) == 1_500
    empty = round_of(Logs(1, growing=1), slowest=0)
    empty.passed(1)
    assert empty.bytes_per_second(0.0) == 1
    assert round_of(Logs(growing=1), slowest=0).next_log(0.0) is None

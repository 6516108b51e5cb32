"""When a process gives back the memory that it has freed: once, after a while with little to do."""

import pytest

from tallybook.runtime.quiet_memory import LOOK_SECONDS, QUIET_LOOKS, QUIET_SHARE, give_back_when_quiet
from tallybook.runtime.tasks import InlineWorkers

LITTLE, MUCH = QUIET_SHARE * 0.9, QUIET_SHARE * 1.1


class Over(Exception):
    """There is nothing more to look at."""


class Looks:
    """Between two looks the process takes these parts of a processor, and then the test is over."""

    def __init__(self, shares: list[float]) -> None:
        self._shares = iter(shares)
        self._cpu_seconds = 0.0
        self.count = 0
        self.given_back_after: list[int] = []

    async def sleep(self, seconds: float) -> None:
        assert seconds == LOOK_SECONDS
        share = next(self._shares, None)
        if share is None:
            raise Over
        self.count += 1
        self._cpu_seconds += share * seconds

    def cpu_seconds(self) -> float:
        return self._cpu_seconds

    def give_back(self) -> None:
        self.given_back_after.append(self.count)


async def given_back_after(*shares: float) -> list[int]:
    """After which looks memory was given back."""
    looks = Looks(list(shares))
    with pytest.raises(Over):
        await give_back_when_quiet(looks, InlineWorkers(), looks.cpu_seconds, looks.give_back)  # type: ignore[arg-type]
    return looks.given_back_after


async def test_memory_is_given_back_once_after_some_quiet_looks():
    assert await given_back_after(*[LITTLE] * 20) == [QUIET_LOOKS]


async def test_nothing_is_given_back_under_load_nor_in_a_short_pause_of_it():
    pause = [LITTLE] * (QUIET_LOOKS - 1)
    assert await given_back_after(*[MUCH, *pause] * 5) == []


async def test_each_load_is_followed_by_a_giving_back():
    quiet = [LITTLE] * QUIET_LOOKS
    assert await given_back_after(*quiet, MUCH, *quiet, MUCH, MUCH, *quiet) == [3, 7, 12]


async def test_an_error_in_the_giving_back_is_told_and_ends_nothing(caplog):
    class Failing(Looks):
        def give_back(self) -> None:
            super().give_back()
            raise RuntimeError("can't start new thread")

    looks = Failing([LITTLE] * QUIET_LOOKS + [MUCH] + [LITTLE] * QUIET_LOOKS)
    with pytest.raises(Over):
        await give_back_when_quiet(looks, InlineWorkers(), looks.cpu_seconds, looks.give_back)  # type: ignore[arg-type]
    assert looks.given_back_after == [QUIET_LOOKS, 2 * QUIET_LOOKS + 1]
    assert [record.args for record in caplog.records if record.name == "tallybook.memory"] == [
        ("freed memory was not given back",)
    ] * 2

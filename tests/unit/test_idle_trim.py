"""The trim of an idle process, after some polls with low processor usage and once more."""

import pytest

from tallybook.runtime.process_memory.idle_trim import IDLE_CPU_SHARE, IDLE_POLLS, POLL_SECONDS, trim_when_idle
from tallybook.runtime.tasks import InlineWorkers

LITTLE, MUCH = IDLE_CPU_SHARE * 0.9, IDLE_CPU_SHARE * 1.1


class Over(Exception):
    """The end of the polls."""


class Looks:
    """Between two looks the process takes these parts of a processor, and then the test is over."""

    def __init__(self, shares: list[float]) -> None:
        self._shares = iter(shares)
        self._cpu_seconds = 0.0
        self.count = 0
        self.given_back_after: list[int] = []

    async def sleep(self, seconds: float) -> None:
        assert seconds == POLL_SECONDS
        share = next(self._shares, None)
        if share is None:
            raise Over
        self.count += 1
        self._cpu_seconds += share * seconds

    def cpu_seconds(self) -> float:
        return self._cpu_seconds

    def give_back(self) -> None:
        self.given_back_after.append(self.count)


FIRST, SECOND = IDLE_POLLS
QUIET = [LITTLE] * FIRST


@pytest.mark.parametrize(
    ("shares", "after"),
    [
        ([LITTLE] * 2 * SECOND, [FIRST, SECOND]),
        ([MUCH, *QUIET[1:]] * 5, []),
        ([*QUIET, MUCH, *QUIET, MUCH, MUCH, *QUIET], [3, 7, 12]),
    ],
    ids=[
        "after some quiet polls, and for what was freed since",
        "not in a short pause of a load",
        "again after each load",
    ],
)
async def test_memory_is_trimmed(shares, after):
    looks = Looks(shares)
    with pytest.raises(Over):
        await trim_when_idle(looks, InlineWorkers(), looks.cpu_seconds, looks.give_back)
    assert looks.given_back_after == after


async def test_an_error_while_memory_is_freed_is_reported_and_ends_nothing(caplog):
    class Failing(Looks):
        def give_back(self) -> None:
            super().give_back()
            raise RuntimeError("can't start new thread")

    looks = Failing([*QUIET, MUCH, *QUIET])
    with pytest.raises(Over):
        await trim_when_idle(looks, InlineWorkers(), looks.cpu_seconds, looks.give_back)  # type: ignore[arg-type]
    assert looks.given_back_after == [FIRST, 2 * FIRST + 1]
    assert [record.args for record in caplog.records if record.name == "tallybook.memory"] == [
        ("freed memory was not given back",)
    ] * 2

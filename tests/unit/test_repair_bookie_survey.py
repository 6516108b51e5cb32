"""The repair's survey of bookies: one that fails in any way does not affect the others."""

from __future__ import annotations

import uuid
from typing import cast

import pytest

from tallybook.client.ports import Connections
from tallybook.core.answers import BookieStatus, DamagedBatch, Incarnation
from tallybook.core.errors import (
    AccessDenied,
    BookieUnavailable,
    EntryUnknown,
    InvariantViolation,
    NoSuchBookie,
    TallybookError,
    Unauthenticated,
)
from tallybook.repair import bookie_survey
from tallybook.repair.bookie_survey import BookieSurvey

STATUS = BookieStatus(
    read_only=False, disk_used_fraction=0.5, free_bytes=1, entry_log_bytes=1, entry_logs=1, journal_used_fraction=0.1,
    ledgers_in_memory=0, damaged_batches=0, limbo_events=0, limbo_below=0, scrub_rounds=0, uptime_seconds=1.0,
)  # fmt: skip
REFUSALS = [BookieUnavailable(), NoSuchBookie("it is gone"), AccessDenied(), Unauthenticated(), EntryUnknown()]


class Bookie:
    """One that says how it is."""

    incarnation = Incarnation(str(uuid.UUID(int=1)), 1)

    def __init__(self, error: TallybookError | None) -> None:
        self.error = error

    async def status(self) -> BookieStatus:
        if self.error is not None:
            raise self.error
        return STATUS


class Cluster:
    """Two bookies that answer, and one between them that fails."""

    def __init__(self, error: TallybookError, *, connects: bool) -> None:
        self.error = error
        self.connects = connects

    async def get(self, bookie_id: str) -> Bookie:
        if bookie_id == "b2" and not self.connects:
            raise self.error
        return Bookie(self.error if bookie_id == "b2" else None)


class One:
    """A cluster of one bookie."""

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie

    async def get(self, _bookie_id: str) -> Bookie:
        return self._bookie


@pytest.mark.parametrize("connects", [True, False])
@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
async def test_a_failing_bookie_is_silent_and_the_others_are_surveyed(error: TallybookError, connects: bool) -> None:
    survey = BookieSurvey(cast("Connections", Cluster(error, connects=connects)))
    await survey.poll(["b1", "b2", "b3"])
    assert survey.statuses.keys() == {"b1", "b3"}
    assert await survey.limbo() == {}
    assert await survey.damaged() == {}


async def test_a_defect_is_none_of_a_bookies_failures() -> None:
    survey = BookieSurvey(cast("Connections", Cluster(InvariantViolation("impossible"), connects=True)))
    with pytest.raises(InvariantViolation):
        await survey.poll(["b1", "b2"])


class Damaged(Bookie):
    """One that knows two damaged copies of every ledger below 40."""

    def __init__(self) -> None:
        super().__init__(None)

    async def status(self) -> BookieStatus:
        return STATUS._replace(damaged_batches=80)

    async def damaged(self, after: tuple[int, int], limit: int) -> tuple[DamagedBatch, ...]:
        every = [DamagedBatch(each, first, first + 4) for each in range(40) for first in (10, 20)]
        return tuple([batch for batch in every if batch[:2] > after][:limit])


@pytest.mark.parametrize("most", [15, 1_000])
async def test_of_more_damage_than_is_asked_for_what_lies_behind_it_is_in_doubt(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookie_survey, "MAX_DAMAGED_LEDGERS", most)
    monkeypatch.setattr(bookie_survey, "DAMAGED_PAGE", 3)
    survey = BookieSurvey(cast("Connections", One(Damaged())))
    await survey.poll(["b1"])
    damage = (await survey.bookie_damage())["b1"]
    assert [each for each in range(50) if damage.may_touch(each, 0, 9) or damage.may_touch(each, 25, 99)] == (
        list(range(damage.known_up_to + 1, 50)) if most == 15 else []
    )
    assert all(damage.may_touch(each, 0, 10) and damage.may_touch(each, 24, 99) for each in range(40))
    assert damage.may_touch(40, 0, 10) == (most == 15)

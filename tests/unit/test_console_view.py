"""The console's view of a cluster: time limits of requests, poll intervals of bookies, and unknown values."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tallybook.core.answers import BookieStatus
from tallybook.core.errors import Busy
from tallybook.gateway.console import cluster_view
from tallybook.gateway.console.bookies import ConsoleBookieEndpoints
from tallybook.gateway.console.cluster_view import FIRST_WAIT_SECONDS, ClusterView
from tallybook.metadata.store import BookieInfo, Incarnation
from tallybook.repair.bookie_survey import BookieSurvey
from tallybook.repair.status.overview import ClusterSurvey, LedgerCensus, LedgerCounts
from tallybook.runtime.tasks import Tasks
from tallybook.sim.deterministic import World

from ..simulated import Parts, on_stage

NAMES = ("b1", "b2", "b3")
STATUS = BookieStatus(False, 0.5, 8_000, 0, 0, 0.0, 0, 0, 0, 0, 0, 1.0)
WELL = ClusterSurvey(
    {name: BookieInfo(name, f"{name}:3181", Incarnation(name, 1)) for name in NAMES}, dict.fromkeys(NAMES, STATUS),
    {}, {}, 0, 0, 0, None, None, None,
)  # fmt: skip
"""Bookies and a repair with which nothing is wrong."""


class Cluster:
    """Bookies that take so long to say how they are, and other looks that never end or have nothing to find."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.hangs = False
        self.seconds = 0.0
        self.asked = 0
        self.census_seconds = 0.0
        self.counted: list[BookieSurvey] = []
        self.found: ClusterSurvey | None = None
        """The result of every survey, if given."""

    async def wait(self, seconds: float = 0.0) -> None:
        await self.world.clock.sleep(1e6 if self.hangs else seconds)

    async def bookies(self) -> dict[str, Any]:
        await self.wait()
        return {"b1": None}

    async def sample(self) -> Any:
        await self.wait()
        return SimpleNamespace(samples={}, silent={})

    async def get(self, name: str) -> Any:
        return SimpleNamespace(status=self.status, incarnation=SimpleNamespace(directory_uuid="d"))

    async def status(self) -> Any:
        self.asked += 1
        await self.wait(self.seconds)
        return SimpleNamespace(limbo_events=0, limbo_below=0)

    async def survey(self, world: Any, bookies: BookieSurvey) -> ClusterSurvey:
        await bookies.poll(await self.bookies())
        return self.found or ClusterSurvey({}, dict(bookies.statuses), {}, None, None, None, 0, None, None, None)

    async def census(self, world: Any, bookies: BookieSurvey, note: Any) -> LedgerCensus:
        await self.wait(self.census_seconds)
        self.counted.append(bookies)
        return LedgerCensus({}, LedgerCounts(complete=True))


async def no_round(store: Any) -> dict[str, object]:
    return {}


@asynccontextmanager
async def new_view(world: World) -> AsyncIterator[Parts]:
    cluster, tasks = Cluster(world), Tasks("view", lambda name, error: None)
    make_overview = SimpleNamespace(clock=world.clock, connections=cluster, membership=cluster, store=None)
    view = ClusterView(SimpleNamespace(world=make_overview), cluster, tasks)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_view, "survey", cluster.survey)
        patch.setattr(cluster_view, "census", cluster.census)
        patch.setattr(cluster_view, "last_pass", no_round)
        patch.setattr(cluster_view.DiagnosisTracker, "note", lambda *_: None)
        try:
            yield {"cluster": cluster, "view": view}
        finally:
            await tasks.close()


with_view = on_stage(new_view)


@with_view
async def test_a_request_for_one_bookie_waits_for_all_polls_at_once(world, cluster, view):
    cluster.hangs = True
    began = world.clock.monotonic()
    with pytest.raises(Busy):
        await ConsoleBookieEndpoints(SimpleNamespace(world=world), view).details(SimpleNamespace(path={"bookie": "b1"}))  # type: ignore[arg-type]
    assert world.clock.monotonic() - began == pytest.approx(FIRST_WAIT_SECONDS)


@with_view
async def test_a_census_goes_by_what_bookies_have_said_a_moment_ago(world, cluster, view):
    for _ in range(60):
        await view.overview()
        await world.clock.sleep(1)
    assert len(cluster.counted) > 3
    assert all(each.statuses for each in cluster.counted)
    # About once a second by the survey, and once more by the census that began before there was any.
    assert cluster.asked <= 62


@with_view
async def test_a_census_asks_bookies_itself_where_what_they_have_said_is_old(world, cluster, view):
    await view.overview()
    await world.clock.sleep(3_600)
    asked = cluster.asked
    await view.overview()
    await world.clock.sleep(0.5)
    assert cluster.asked == asked + 2
    assert len(cluster.counted) >= 2


@with_view
async def test_a_cluster_is_called_healthy_only_once_its_ledgers_are_counted(world, cluster, view):
    cluster.census_seconds, cluster.found = 60, WELL
    told = await view.overview()
    assert (told["problems"], told["ledgers"], told["healthy"]) == ([], None, None)
    await world.clock.sleep(60)
    told = await view.overview()
    assert (told["problems"], told["healthy"]) == ([], True)

"""The console's view of a cluster: how long a request waits, how often bookies are asked, what is not known yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tallybook.core.answers import BookieStatus
from tallybook.core.errors import Busy
from tallybook.gateway.console import cluster_view
from tallybook.gateway.console.bookies import Bookies
from tallybook.gateway.console.cluster_view import FIRST_SECONDS, ClusterView
from tallybook.metadata.store import BookieInfo, Incarnation
from tallybook.repair.bookie_survey import BookieSurvey
from tallybook.repair.overview import Census, Ledgers, Survey
from tallybook.runtime.deterministic import World, run_seed
from tallybook.runtime.tasks import Tasks

NAMES = ("b1", "b2", "b3")
STATUS = BookieStatus(False, 0.5, 8_000, 0, 0, 0.0, 0, 0, 0, 0, 0, 1.0)
WELL = Survey(
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
        self.counted: list[BookieSurvey] = []
        self.found: Survey | None = None
        """What every survey finds, if that is given."""

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

    async def survey(self, world: Any, bookies: BookieSurvey) -> Survey:
        await bookies.look(await self.bookies())
        return self.found or Survey({}, dict(bookies.statuses), {}, None, None, None, 0, None, None, None)

    async def census(self, world: Any, bookies: BookieSurvey) -> Census:
        await self.wait()
        self.counted.append(bookies)
        return Census({})


async def no_round(store: Any) -> dict[str, object]:
    return {}


@pytest.fixture
def play(monkeypatch):
    def run(scenario: Callable[[World, Cluster, ClusterView], Awaitable[None]]) -> None:
        async def whole(world: World) -> None:
            cluster, tasks = Cluster(world), Tasks("view", lambda name, error: None)
            monkeypatch.setattr(cluster_view, "survey", cluster.survey)
            monkeypatch.setattr(cluster_view, "census", cluster.census)
            monkeypatch.setattr(cluster_view, "last_round", no_round)
            monkeypatch.setattr(cluster_view.Diagnosing, "note", lambda *_: None)
            seen = SimpleNamespace(clock=world.clock, connections=cluster, membership=cluster, store=None)
            view = ClusterView(SimpleNamespace(world=seen), cluster, tasks)  # type: ignore[arg-type]
            try:
                await scenario(world, cluster, view)
            finally:
                await tasks.close()

        run_seed(1, whole)

    return run


def test_whoever_asks_for_one_bookie_waits_for_all_looks_at_once(play):
    async def scenario(world: World, cluster: Cluster, view: ClusterView) -> None:
        cluster.hangs = True
        began = world.clock.monotonic()
        with pytest.raises(Busy):
            await Bookies(SimpleNamespace(world=world), view).one(SimpleNamespace(path={"bookie": "b1"}))  # type: ignore[arg-type]
        assert world.clock.monotonic() - began == pytest.approx(FIRST_SECONDS)

    play(scenario)


def test_a_census_goes_by_what_bookies_have_said_a_moment_ago(play):
    async def scenario(world: World, cluster: Cluster, view: ClusterView) -> None:
        for _ in range(60):
            await view.overview()
            await world.clock.sleep(1)
        assert len(cluster.counted) > 3
        assert all(each.statuses for each in cluster.counted)
        # About once a second by the survey, and once more by the census that began before there was any.
        assert cluster.asked <= 62

    play(scenario)


def test_a_census_asks_bookies_itself_where_what_they_have_said_is_old(play):
    async def scenario(world: World, cluster: Cluster, view: ClusterView) -> None:
        await view.overview()
        await world.clock.sleep(3_600)
        asked = cluster.asked
        await view.overview()
        await world.clock.sleep(0.5)
        assert cluster.asked == asked + 2
        assert len(cluster.counted) >= 2

    play(scenario)


def test_a_cluster_is_called_healthy_only_once_its_ledgers_are_counted(play, monkeypatch):
    async def scenario(world: World, cluster: Cluster, view: ClusterView) -> None:
        async def census(*_: object) -> Census:
            await world.clock.sleep(60)
            return Census({}, Ledgers(complete=True))

        monkeypatch.setattr(cluster_view, "census", census)
        cluster.found = WELL
        told = await view.overview()
        assert (told["problems"], told["ledgers"], told["healthy"]) == ([], None, None)
        await world.clock.sleep(60)
        told = await view.overview()
        assert (told["problems"], told["healthy"]) == ([], True)

    play(scenario)

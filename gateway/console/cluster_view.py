"""A cluster at one glance, made once for all who look at it.

To look means to ask every bookie and to count every ledger. So there is one look at a time, whoever asks, and what it
found is shown to all for a while: the longer it took, the longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

from tallybook.client.client import Client
from tallybook.offload.status_record import last_round
from tallybook.repair.overview import Overview, overview
from tallybook.repair.told import bookie_told, overview_told

from .diagnosing import Told
from .scrape import Scraper

FRESH_SECONDS: Final = 1.0
SHARE: Final = 4
"""Of the time, one part is spent on looking at most."""

Diagnose: TypeAlias = Callable[[Client], Awaitable[Told]]
"""Says in a few sentences what holds the cluster up, and why."""


class Seen(NamedTuple):
    """What a look found."""

    overview: Overview
    told: dict[str, object]
    """The same, with the numbers of bookies, for the page."""
    at: float
    took: float


class ClusterView:
    """What there is to be seen of a cluster.

    Args:
        diagnose: says what the cluster waits for.
    """

    def __init__(self, client: Client, scraper: Scraper, diagnose: Diagnose) -> None:
        self._client = client
        self._scraper = scraper
        self._diagnose = diagnose
        self._looking = asyncio.Lock()
        self._seen: Seen | None = None

    async def look(self) -> Seen:
        """What was found last, if that is not long ago; else what is found now.

        Raises:
            MetadataUnavailable, DamagedFile: it cannot be told.
        """
        clock = self._client.world.clock
        async with self._looking:
            seen, begun = self._seen, clock.monotonic()
            if seen is not None and begun - seen.at < max(FRESH_SECONDS, SHARE * seen.took):
                return seen
            found = await overview(self._client.world)
            told = await self._told(found)
            now = clock.monotonic()
            self._seen = Seen(found, told, now, now - begun)
            return self._seen

    async def _told(self, found: Overview) -> dict[str, object]:
        world = self._client.world
        alive = [bookie.info for bookie in found.bookies if bookie.info is not None]
        shown = await self._scraper.look(alive)
        bookies = [
            {
                **bookie_told(bookie),
                "address": bookie.info and bookie.info.address,
                "http_address": bookie.info and bookie.info.http_address,
                "numbers": shown[bookie.bookie_id].numbers if bookie.bookie_id in shown else None,
                "times": shown[bookie.bookie_id].times if bookie.bookie_id in shown else None,
            }
            for bookie in found.bookies
        ]
        return {
            "at_ms": world.clock.wall_us() // 1000,
            **overview_told(found),
            "bookies": bookies,
            "offload": await last_round(world.store),
        }

    async def diagnosis(self) -> dict[str, object]:
        """What the cluster waits for, in sentences."""
        told = await self._diagnose(self._client)
        return {"lines": list(told.lines), "processes": list(told.processes)}

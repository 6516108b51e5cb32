"""A cluster at one glance, for all who look at it. Three looks make it, each as often as it may be taken:

    processes   the metrics of bookies and others: what the page draws, and what the diagnosis compares
    survey      how each bookie says it is, and a few records
    census      the metadata of every ledger

They go on beside all requests (``watch``), and every answer says how old is what it tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from tallybook.client.client import Client
from tallybook.metadata.store import BookieMode
from tallybook.offload.status_record import last_round
from tallybook.repair.bookie_survey import BookieSurvey
from tallybook.repair.diagnosis.look import Looker, Round, metrics_address
from tallybook.repair.overview import BookieView, Census, Survey, census, seen, survey
from tallybook.repair.told import bookie_told, overview_told
from tallybook.runtime.tasks import Tasks

from .diagnosing import Diagnosing
from .leading import Leading
from .scrape import numbers, times
from .watch import Found, Watch

PROCESS_SECONDS: Final = 2.0
SURVEY_SECONDS: Final = 1.0
CENSUS_SECONDS: Final = 10.0
"""Between two looks of a kind, at least."""
CENSUS_SHARE: Final = 4.0
"""Of the time, a fifth is spent on the metadata of all ledgers at most."""
STATUS_SECONDS: Final = 5.0
"""A census goes by what bookies said in the survey, unless that is older: then it asks them itself."""

FIRST_SECONDS: Final = 3.0
"""Whoever asks first, for a while, waits so long for what a look finds. All others get what is there."""
VERDICT_SECONDS: Final = 10.0
"""Whoever asks for the diagnosis alone waits so long for one."""

_NOT_YET: Final[dict[str, object]] = {
    "at_ms": None, "age_ms": None, "why": "", "healthy": None, "problems": [], "bookies": None, "numbers_at_ms": None,
    "ledgers": None, "ledgers_at_ms": None, "ledgers_age_ms": None, "ledgers_why": "", "copies": None, "archive": None,
    "auditor": None, "offload": None,
}  # fmt: skip
"""An overview of which nothing is known yet."""


class Glance(NamedTuple):
    """What a survey found, and what was read with it."""

    survey: Survey
    auditor: Mapping[str, object]
    offload: Mapping[str, object]
    """What the offloader wrote down last."""


class ClusterView:
    """What there is to be seen of a cluster."""

    def __init__(self, client: Client, looker: Looker, tasks: Tasks) -> None:
        clock = client.world.clock
        self._client = client
        self._clock = clock
        self._looker = looker
        self._bookies = BookieSurvey(client.world.connections)
        self._leading = Leading()
        self._diagnosing = Diagnosing()
        self._processes = Watch("processes", self._look, clock, tasks, least_seconds=PROCESS_SECONDS, share=1.0)
        self._glances = Watch("bookies", self._glance, clock, tasks, least_seconds=SURVEY_SECONDS, share=0.25)
        self._census = Watch("ledgers", self._count, clock, tasks, least_seconds=CENSUS_SECONDS, share=CENSUS_SHARE)

    async def _look(self) -> Round:
        found = await self._looker.sample()
        self._diagnosing.note(self._clock.monotonic(), found)
        return found

    async def _glance(self) -> Glance:
        found = await survey(self._client.world, self._bookies)
        auditor = self._leading.told(found.auditor, self._clock.monotonic(), found.audit_age_s)
        return Glance(found, auditor, await last_round(self._client.world.store))

    async def _count(self) -> Census:
        bookies, age_ms = self._bookies, self._glances.age_ms()
        if age_ms is None or age_ms > STATUS_SECONDS * 1_000:
            bookies = BookieSurvey(self._client.world.connections)
            await bookies.look(await self._client.world.membership.bookies())
        return await census(self._client.world, bookies)

    async def overview(self, *, counted_too: bool = False) -> dict[str, object]:
        """All of it, as it was found last. What is not known yet is ``None``.

        Args:
            counted_too: whoever asks first, for a while, waits for the census as well.

        Raises:
            TallybookError: nothing was ever found, and why.
        """
        # All three begin now, and at once. A census takes long, and is no part of what most wait for.
        waits = [self._processes.settle(FIRST_SECONDS), self._glances.settle(FIRST_SECONDS)]
        if counted_too:
            waits.append(self._census.settle(FIRST_SECONDS))
        else:
            self._census.ask()
        await asyncio.gather(*waits)
        glance = self._glances.known()
        counted, looked = self._census.ask(), self._processes.ask()
        diagnosis = self._diagnosing.told(self._clock.monotonic(), self._processes.why)
        if glance is None:
            return {**_NOT_YET, "diagnosis": diagnosis}
        found = seen(glance.what.survey, None if counted is None else counted.what)
        told = overview_told(found)
        return {
            "at_ms": glance.at_ms,
            "age_ms": max(watch.age_ms() or 0 for watch in (self._glances, self._processes)),
            "why": self._glances.why or self._processes.why,
            **told,
            "bookies": [self._bookie(bookie, looked) for bookie in found.bookies],
            "numbers_at_ms": looked and looked.at_ms,
            "ledgers_at_ms": counted and counted.at_ms,
            "ledgers_age_ms": self._census.age_ms(),
            "ledgers_why": self._census.why,
            "auditor": glance.what.auditor,
            "offload": glance.what.offload,
            "diagnosis": diagnosis,
        }

    def _bookie(self, bookie: BookieView, looked: Found[Round] | None) -> dict[str, object]:
        sample = None if looked is None else looked.what.samples.get(bookie.bookie_id)
        silent = "" if looked is None else looked.what.silent.get(bookie.bookie_id, "")
        return {
            **bookie_told(bookie),
            "address": bookie.info and bookie.info.address,
            "http_address": bookie.info and metrics_address(bookie.info),
            "numbers": sample and numbers(sample),
            "times": sample and times(sample),
            "numbers_at_ms": sample and self._client.world.clock.wall_us() // 1000 - self._ms_since(sample.at),
            "silent": silent,
        }

    def _ms_since(self, at: float) -> int:
        return round((self._clock.monotonic() - at) * 1000)

    def naming(self, bookie_id: str) -> dict[str, object]:
        """Which ledgers name a bookie, as of the last census.

        Raises:
            TallybookError: they were never counted, and why.
        """
        counted = self._census.known()
        found = None if counted is None else counted.what.naming(bookie_id)
        glance = self._glances.found
        info = None if glance is None else glance.what.survey.alive.get(bookie_id)
        # Either then or now.
        chosen = (found is not None and found.chosen) or (info is not None and info.mode is BookieMode.WRITABLE)
        return {
            "named_by": found and found.ledgers,
            "growing": found and found.growing,
            "first_ledger_ids": found and list(found.first_ids),
            "still_chosen": chosen,
            "may_be_switched_off": found and found.may_go and not chosen,
            "ledgers_at_ms": counted and counted.at_ms,
            "ledgers_age_ms": self._census.age_ms(),
        }

    async def diagnosis(self) -> dict[str, object]:
        """What the cluster waits for. Whoever asks first, for a while, waits for a verdict."""
        self._processes.ask()
        told = self._diagnosing.told(self._clock.monotonic(), self._processes.why)
        if told["verdict"] is None:
            await self._diagnosing.wait(VERDICT_SECONDS)
            told = self._diagnosing.told(self._clock.monotonic(), self._processes.why)
        return told

"""The overview of a cluster, shared by all requests. Three background polls (``polling``) build it:

    processes   metrics of bookies and other processes, for the charts and the diagnosis
    survey      status of each bookie, and a few metadata records
    census      the metadata of every ledger

Every reply contains the age of its data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from tallybook.client.client import Client
from tallybook.metadata.store import BookieMode
from tallybook.offload.status_record import last_pass
from tallybook.repair.bookie_survey import BookieSurvey
from tallybook.repair.diagnosis.sampling import ClusterSampler, ProcessSamples, metrics_address
from tallybook.repair.status.overview import BookieView, ClusterSurvey, LedgerCensus, census, make_overview, survey
from tallybook.repair.status.report import bookie_json, overview_json
from tallybook.runtime.tasks import Tasks

from .diagnosis import DiagnosisTracker
from .leader import AuditorLiveness
from .ledger_index import LedgerIndex
from .polling import ClusterPoller, PollResult
from .scrape import numbers, times

PROCESS_SECONDS: Final = 2.0
SURVEY_SECONDS: Final = 1.0
CENSUS_SECONDS: Final = 10.0
"""Minimum intervals between two polls of each kind."""
CENSUS_PAUSE_RATIO: Final = 4.0
"""A census is followed by a pause of four times its duration, so censuses take at most a fifth of the time."""
STATUS_SECONDS: Final = 5.0
"""A census uses the bookie statuses of the survey up to this age; older ones it polls again."""

FIRST_WAIT_SECONDS: Final = 3.0
"""How long the first request after an idle time waits for a poll. Others get the last result at once."""
VERDICT_SECONDS: Final = 10.0
"""How long a request for the diagnosis waits for a verdict."""

_UNKNOWN_OVERVIEW: Final[dict[str, object]] = {
    "at_ms": None, "age_ms": None, "why": "", "healthy": None, "problems": [], "bookies": None, "numbers_at_ms": None,
    "ledgers": None, "ledgers_at_ms": None, "ledgers_age_ms": None, "ledgers_why": "", "copies": None, "archive": None,
    "auditor": None, "offload": None,
}  # fmt: skip
"""The overview before the first survey."""


class SurveySnapshot(NamedTuple):
    """The result of a survey, with records read along with it."""

    survey: ClusterSurvey
    auditor: Mapping[str, object]
    offload: Mapping[str, object]
    """Status record of the offloader."""


class ClusterView:
    """The overview of a cluster, from the last result of each poll."""

    def __init__(self, client: Client, sampler: ClusterSampler, tasks: Tasks) -> None:
        clock = client.world.clock
        self._client = client
        self._clock = clock
        self._sampler = sampler
        self._bookies = BookieSurvey(client.world.connections)
        self._auditor = AuditorLiveness()
        self._diagnosis = DiagnosisTracker()
        self._ledger_index = LedgerIndex()
        self._processes = ClusterPoller(
            "processes", self._sample, clock, tasks, min_interval_seconds=PROCESS_SECONDS, pause_ratio=1.0
        )
        self._surveys = ClusterPoller(
            "bookies", self._survey, clock, tasks, min_interval_seconds=SURVEY_SECONDS, pause_ratio=0.25
        )
        self._census = ClusterPoller(
            "ledgers",
            self._take_census,
            clock,
            tasks,
            min_interval_seconds=CENSUS_SECONDS,
            pause_ratio=CENSUS_PAUSE_RATIO,
        )

    async def _sample(self) -> ProcessSamples:
        found = await self._sampler.sample()
        self._diagnosis.note(self._clock.monotonic(), found)
        return found

    async def _survey(self) -> SurveySnapshot:
        found = await survey(self._client.world, self._bookies)
        auditor = self._auditor.status(found.auditor, self._clock.monotonic(), found.audit_age_s)
        return SurveySnapshot(found, auditor, await last_pass(self._client.world.store))

    async def _take_census(self) -> LedgerCensus:
        bookies, age_ms = self._bookies, self._surveys.age_ms()
        if age_ms is None or age_ms > STATUS_SECONDS * 1_000:
            bookies = BookieSurvey(self._client.world.connections)
            await bookies.poll(await self._client.world.membership.bookies())
        index = LedgerIndex()
        found = await census(self._client.world, bookies, index.add)
        self._ledger_index = index
        return found

    async def overview(self, *, wait_for_census: bool = False) -> dict[str, object]:
        """The overview from the last polls. Unknown values are ``None``.

        Args:
            wait_for_census: the first request after an idle time also waits for the census.

        Raises:
            TallybookError: no poll has succeeded yet; the error of the last one.
        """
        # All polls start together. A census takes long, and most requests need not wait for it.
        waits = [self._processes.wait_for_result(FIRST_WAIT_SECONDS), self._surveys.wait_for_result(FIRST_WAIT_SECONDS)]
        if wait_for_census:
            waits.append(self._census.wait_for_result(FIRST_WAIT_SECONDS))
        else:
            self._census.poll()
        await asyncio.gather(*waits)
        snapshot = self._surveys.known()
        counted, sampled = self._census.poll(), self._processes.poll()
        diagnosis = self._diagnosis.status(self._clock.monotonic(), self._processes.why)
        if snapshot is None:
            return {**_UNKNOWN_OVERVIEW, "diagnosis": diagnosis}
        found = make_overview(snapshot.what.survey, None if counted is None else counted.what)
        status = overview_json(found)
        return {
            "at_ms": snapshot.at_ms,
            "age_ms": max(watch.age_ms() or 0 for watch in (self._surveys, self._processes)),
            "why": self._surveys.why or self._processes.why,
            **status,
            "bookies": [self._bookie(bookie, sampled) for bookie in found.bookies],
            "numbers_at_ms": sampled and sampled.at_ms,
            "ledgers_at_ms": counted and counted.at_ms,
            "ledgers_age_ms": self._census.age_ms(),
            "ledgers_why": self._census.why,
            "auditor": snapshot.what.auditor,
            "offload": snapshot.what.offload,
            "diagnosis": diagnosis,
        }

    def _bookie(self, bookie: BookieView, sampled: PollResult[ProcessSamples] | None) -> dict[str, object]:
        sample = None if sampled is None else sampled.what.samples.get(bookie.bookie_id)
        silent = "" if sampled is None else sampled.what.silent.get(bookie.bookie_id, "")
        return {
            **bookie_json(bookie),
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
        """The ledgers that name a bookie, as of the last census.

        Raises:
            TallybookError: no census has succeeded yet; the error of the last one.
        """
        counted = self._census.known()
        found = None if counted is None else counted.what.naming(bookie_id)
        snapshot = self._surveys.found
        info = None if snapshot is None else snapshot.what.survey.alive.get(bookie_id)
        # Writable at the time of the census, or now.
        chosen = (found is not None and found.chosen) or (info is not None and info.mode is BookieMode.WRITABLE)
        return {
            "named_by": found and found.ledgers,
            "growing": found and found.growing,
            "first_ledger_ids": found and list(found.first_ids),
            "still_chosen": chosen,
            "may_be_switched_off": found and found.may_be_removed and not chosen,
            "ledgers_at_ms": counted and counted.at_ms,
            "ledgers_age_ms": self._census.age_ms(),
        }

    async def ledgers(self) -> tuple[LedgerIndex, dict[str, object]]:
        """The ledgers as of the last census, and when it was. The first request after an idle time waits for one.

        Raises:
            TallybookError: no census has succeeded yet; the error of the last one.
        """
        await self._census.wait_for_result(FIRST_WAIT_SECONDS)
        counted = self._census.known()
        return self._ledger_index, {
            "at_ms": counted and counted.at_ms,
            "age_ms": self._census.age_ms(),
            "why": self._census.why,
            "unreadable": counted and counted.what.ledgers.unreadable,
        }

    async def diagnosis(self) -> dict[str, object]:
        """The present bottleneck of the cluster. The first request after an idle time waits for a verdict."""
        self._processes.poll()
        status = self._diagnosis.status(self._clock.monotonic(), self._processes.why)
        if status["verdict"] is None:
            await self._diagnosis.wait(VERDICT_SECONDS)
            status = self._diagnosis.status(self._clock.monotonic(), self._processes.why)
        return status

"""Takes two samples of every process of a cluster, and has them diagnosed.

Bookies are found through the metadata, where each says on which address it serves its metrics; other processes are
named by whoever asks. Each is asked with a deadline of its own, many at once, and all of them have one together: so
those that hang cost no more than that, and are told. The metadata store is asked a little in between: how it answers
somebody who does nothing else is evidence, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from tallybook.client.ports import ClientWorld
from tallybook.core.errors import MetadataUnavailable, PeerError
from tallybook.metadata.metered import METADATA_METRICS, MetadataLoad
from tallybook.metadata.store import BookieInfo
from tallybook.runtime.http_client import HttpClient
from tallybook.runtime.metrics import StatsCollector
from tallybook.runtime.metrics_text import parse_series
from tallybook.runtime.security import open_security
from tallybook.runtime.tasks import InlineWorkers, Workers

from .samples import Point, Sample
from .verdict import Diagnosis, diagnose

ANSWER_SECONDS: Final = 3.0
"""How long a process may take to show its metrics."""
AT_ONCE: Final = 16
"""Processes that are asked at the same time."""
ALL_SECONDS: Final = 10.0
"""How long one look may take, however many do not answer."""
PROBE_SECONDS: Final = 0.5
"""Pause between two questions to the metadata store."""
THIS_COMMAND: Final = "this command"

_WILDCARDS: Final = ("0.0.0.0", "[::]", "::", "*")  # noqa: S104 (told apart, not bound)

Fetch: TypeAlias = Callable[[str, str], Awaitable[str]]
"""Gives what a process has at an address under a path, as ``HttpClient.fetch`` does."""


@dataclass(frozen=True, slots=True)
class Round:
    """One look at all processes."""

    samples: Mapping[str, Sample]
    silent: Mapping[str, str]


class Looker:
    """Looks at the processes of one cluster.

    Args:
        others: addresses of processes besides bookies.
        workers: where what was fetched is parsed, which takes some ten milliseconds for each process.
    """

    def __init__(self, world: ClientWorld, others: Sequence[str], fetch: Fetch, workers: Workers | None = None) -> None:
        self._world = world
        self._others = others
        self._fetch = fetch
        self._workers = workers or InlineWorkers()

    async def diagnosis(self, seconds: float) -> Diagnosis:
        """Look twice, so many seconds apart.

        Raises:
            MetadataUnavailable: who is there cannot be told.
        """
        places = await self._places()
        before = await self._look(places)
        await self._probe(seconds)
        after = await self._look(places)
        return diagnose(before.samples, after.samples, {**before.silent, **after.silent})

    async def sample(self) -> Round:
        """Look once.

        Raises:
            MetadataUnavailable: who is there cannot be told.
        """
        return await self._look(await self._places())

    async def _places(self) -> dict[str, str]:
        bookies = await self._world.membership.bookies()
        return {
            **{name: metrics_address(info) for name, info in bookies.items()},
            **{each: each for each in self._others},
        }

    async def _look(self, places: Mapping[str, str]) -> Round:
        samples: dict[str, Sample] = {}
        silent: dict[str, str] = {}
        turns = asyncio.Semaphore(AT_ONCE)

        async def ask(name: str, address: str) -> None:
            if not address:
                silent[name] = "does not say where it shows its metrics"
                return
            async with turns:
                try:
                    async with asyncio.timeout(2 * ANSWER_SECONDS):
                        text = await self._fetch(address, "/metrics")
                        points = await self._workers.run(points_in, text)
                    samples[name] = Sample(name, self._world.clock.monotonic(), points)
                except TimeoutError:
                    silent[name] = f"no answer from {address} within {2 * ANSWER_SECONDS:.0f} s"
                except PeerError as error:
                    silent[name] = error.message
                except ValueError as error:
                    silent[name] = f"what {address} answers are no metrics: {error}"

        with suppress(TimeoutError):
            async with asyncio.timeout(ALL_SECONDS):
                await asyncio.gather(*(ask(name, address) for name, address in places.items()))
        for name in set(places) - set(samples) - set(silent):
            silent[name] = f"no answer from {places[name]} while others were waited for"
        load = self._world.metadata_load
        if load is not None:
            samples[THIS_COMMAND] = Sample(THIS_COMMAND, self._world.clock.monotonic(), _points_of(load))
        return Round(samples, silent)

    async def _probe(self, seconds: float) -> None:
        """Wait, and ask the metadata store now and then. That it does not answer is counted, and no reason to end."""
        clock = self._world.clock
        until = clock.monotonic() + seconds
        while (left := until - clock.monotonic()) > 0:
            await clock.sleep(min(left, PROBE_SECONDS))
            try:
                async with asyncio.timeout(max(left, ANSWER_SECONDS)):
                    await self._world.store.id_counter()
            except (MetadataUnavailable, TimeoutError):
                continue


def points_in(text: str) -> list[Point]:
    """What the metrics of a process say.

    Raises:
        ValueError: they are no metrics.
    """
    return [Point(of, frozenset(labels.items()), value) for of, labels, value in parse_series(text)]


def metrics_address(info: BookieInfo) -> str:
    """Where a bookie shows its metrics: on every interface means, on the one that clients use."""
    host, _, port = info.http_address.rpartition(":")
    if host in _WILDCARDS:
        return f"{info.address.rpartition(':')[0]}:{port}"
    return info.http_address


def _points_of(load: MetadataLoad) -> list[Point]:
    return [
        Point(sample.name, frozenset(sample.labels.items()), float(sample.value))
        for family in StatsCollector(METADATA_METRICS, load.readings).collect()
        for sample in family.samples
    ]


async def look(world: ClientWorld, others: Sequence[str], seconds: float, *, security: str = "") -> Diagnosis:
    """Diagnose a cluster.

    Args:
        others: addresses, host and port, of gateways, offloaders and repairs.
        seconds: between the two looks.
        security: directory of certificates, with which processes are asked over TLS; empty: without.

    Raises:
        InvalidConfig: the directory is no good.
        MetadataUnavailable: who is there cannot be told.
    """
    asking = HttpClient(open_security(security, serves=False), ANSWER_SECONDS, AT_ONCE)
    try:
        return await Looker(world, others, asking.fetch).diagnosis(seconds)
    finally:
        await asking.close()

"""Samples the metrics of every process of a cluster twice over HTTP, and diagnoses them.

Addresses of bookies come from the metadata; the caller names other processes. Processes are asked concurrently, each
with a deadline and all with a common one, and those that do not answer are reported as silent. Between the samples this
process sends a few requests to the metadata store, so that its latency can be judged even without other load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from tallybook.client.ports import ClientWorld
from tallybook.core.errors import MetadataUnavailable, PeerError
from tallybook.metadata.metered_store import METADATA_METRICS, MetadataLoad
from tallybook.metadata.store import BookieInfo
from tallybook.runtime.http.client import HttpClient
from tallybook.runtime.http.scrape import parse_series
from tallybook.runtime.metrics.registry import StatsCollector
from tallybook.runtime.security.process_security import open_security
from tallybook.runtime.tasks import InlineWorkers, Workers

from .samples import Point, Sample
from .verdict import Diagnosis, diagnose

ANSWER_SECONDS: Final = 3.0
"""Time-out for the metrics of one process."""
MAX_CONCURRENCY: Final = 16
"""Processes that are asked at the same time."""
ALL_SECONDS: Final = 10.0
"""Time-out for the samples of all processes."""
PROBE_SECONDS: Final = 0.5
"""Pause between two requests to the metadata store."""
THIS_COMMAND: Final = "this command"

_WILDCARDS: Final = ("0.0.0.0", "[::]", "::", "*")  # noqa: S104 (told apart, not bound)

Fetch: TypeAlias = Callable[[str, str], Awaitable[str]]
"""Fetches the body for an address and a path, as ``HttpClient.fetch`` does."""


@dataclass(frozen=True, slots=True)
class ProcessSamples:
    """The samples of all processes at one moment."""

    samples: Mapping[str, Sample]
    silent: Mapping[str, str]
    """Processes without a sample, and why."""


class ClusterSampler:
    """Samples the processes of one cluster.

    Args:
        others: addresses of processes besides bookies.
        workers: threads for parsing, which takes some ten milliseconds for each process.
    """

    def __init__(self, world: ClientWorld, others: Sequence[str], fetch: Fetch, workers: Workers | None = None) -> None:
        self._world = world
        self._others = others
        self._fetch = fetch
        self._workers = workers or InlineWorkers()

    async def diagnosis(self, seconds: float) -> Diagnosis:
        """Take two samples, ``seconds`` apart, and diagnose them.

        Raises:
            MetadataUnavailable: the bookies cannot be listed.
        """
        addresses = await self._addresses()
        before = await self._sample(addresses)
        await self._probe(seconds)
        after = await self._sample(addresses)
        return diagnose(before.samples, after.samples, {**before.silent, **after.silent})

    async def sample(self) -> ProcessSamples:
        """Take one sample of each process.

        Raises:
            MetadataUnavailable: the bookies cannot be listed.
        """
        return await self._sample(await self._addresses())

    async def _addresses(self) -> dict[str, str]:
        bookies = await self._world.membership.bookies()
        return {
            **{name: metrics_address(info) for name, info in bookies.items()},
            **{each: each for each in self._others},
        }

    async def _sample(self, addresses: Mapping[str, str]) -> ProcessSamples:
        samples: dict[str, Sample] = {}
        silent: dict[str, str] = {}
        turns = asyncio.Semaphore(MAX_CONCURRENCY)

        async def ask(name: str, address: str) -> None:
            if not address:
                silent[name] = "has registered no address for its metrics"
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
                    silent[name] = f"the answer of {address} is not metrics: {error}"

        with suppress(TimeoutError):
            async with asyncio.timeout(ALL_SECONDS):
                await asyncio.gather(*(ask(name, address) for name, address in addresses.items()))
        for name in set(addresses) - set(samples) - set(silent):
            silent[name] = f"no answer from {addresses[name]} within {ALL_SECONDS:.0f} s for all processes"
        load = self._world.metadata_load
        if load is not None:
            samples[THIS_COMMAND] = Sample(THIS_COMMAND, self._world.clock.monotonic(), _points_of(load))
        return ProcessSamples(samples, silent)

    async def _probe(self, seconds: float) -> None:
        """Wait, and send requests to the metadata store meanwhile. Failures are counted in its metrics."""
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
    """Parse the metrics of a process.

    Raises:
        ValueError: the text is not metrics.
    """
    return [Point(of, frozenset(labels.items()), value) for of, labels, value in parse_series(text)]


def metrics_address(info: BookieInfo) -> str:
    """The HTTP address of a bookie. If it listens on all interfaces, the host is the one that clients use."""
    host, _, port = info.http_address.rpartition(":")
    if host in _WILDCARDS:
        return f"{info.address.rpartition(':')[0]}:{port}"
    return info.http_address


def _points_of(load: MetadataLoad) -> list[Point]:
    return [
        Point(sample.name, frozenset(sample.labels.items()), float(sample.value))
        for family in StatsCollector(METADATA_METRICS.catalog, partial(METADATA_METRICS.readings, load)).collect()
        for sample in family.samples
    ]


async def diagnose_cluster(
    world: ClientWorld, others: Sequence[str], seconds: float, *, security: str = ""
) -> Diagnosis:
    """Diagnose a cluster.

    Args:
        others: addresses (host and port) of gateways, offloaders and repairs.
        seconds: between the two samples.
        security: directory of certificates for TLS; empty: without TLS.

    Raises:
        InvalidConfig: the directory is not valid.
        MetadataUnavailable: the bookies cannot be listed.
    """
    http = HttpClient(open_security(security, serves=False), ANSWER_SECONDS, MAX_CONCURRENCY)
    try:
        return await ClusterSampler(world, others, http.fetch).diagnosis(seconds)
    finally:
        await http.close()

"""The numbers of bookies that a page draws, read from the metrics that each of them serves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Final, NamedTuple

from tallybook.core.errors import PeerError, ProtocolViolation
from tallybook.metadata.store import BookieInfo
from tallybook.runtime.http_client import HttpClient
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics_text import parse_series

_log = logger("console")

NUMBERS: Final = {
    "tallybook_bookie_add_bytes_total": "added_bytes",
    "tallybook_bookie_add_batches_total": "added_batches",
    "tallybook_bookie_adds_waiting": "adds_waiting",
    "tallybook_bookie_inflight_bytes": "inflight_bytes",
    "tallybook_bookie_read_batches_total": "read_batches",
    "tallybook_bookie_refused_adds_total": "refused_adds",
    "tallybook_bookie_write_cache_bytes": "write_cache_bytes",
    "tallybook_journal_commits_total": "commits",
    "tallybook_journal_bytes_total": "journal_bytes",
    "process_cpu_seconds_total": "cpu_seconds",
    "process_resident_memory_bytes": "memory_bytes",
}
"""Metrics that are shown, and what they are called here. Those with several values are summed up."""

TIMES: Final = {
    "tallybook_bookie_add_seconds_bucket": "adds",
    "tallybook_bookie_read_seconds_bucket": "reads",
    "tallybook_journal_commit_seconds_bucket": "commits",
}
"""Histograms that are shown, likewise."""

_SHOWN: Final = (*NUMBERS, *TIMES)
_UNSPECIFIED: Final = frozenset({"0.0.0.0", "[::]", "*"})  # noqa: S104 (told apart, not bound)


class Scraped(NamedTuple):
    """What a bookie shows."""

    numbers: Mapping[str, float]
    times: Mapping[str, Sequence[tuple[float | None, float]]]
    """Of each histogram, by bound in seconds, how many were at most that; the last one has no bound."""


class Scraper:
    """Asks bookies for their numbers."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def look(self, bookies: Iterable[BookieInfo]) -> dict[str, Scraped]:
        """What those show that answer."""
        asked = [info for info in bookies if info.http_address]
        answers = await asyncio.gather(*map(self._of, asked))
        return {info.bookie_id: found for info, found in zip(asked, answers, strict=True) if found is not None}

    async def _of(self, info: BookieInfo) -> Scraped | None:
        try:
            return scraped(await self._http.fetch(reachable(info), "/metrics"))
        except PeerError as error:
            _log.info("a bookie does not tell its numbers", bookie_id=info.bookie_id, error=error.message)
            return None


def reachable(info: BookieInfo) -> str:
    """Where the HTTP port of a bookie is, as seen from elsewhere."""
    host, _, port = info.http_address.rpartition(":")
    return f"{info.address.rpartition(':')[0]}:{port}" if host in _UNSPECIFIED else info.http_address


def scraped(text: str) -> Scraped:
    """Those of ``NUMBERS`` and ``TIMES`` that a text of metrics holds.

    Raises:
        ProtocolViolation: it is no such text.
    """
    numbers: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {}
    wanted = [line for line in text.splitlines() if line.startswith(_SHOWN)]
    try:
        for metric, labels, value in parse_series("\n".join(wanted) + "\n"):
            if metric in NUMBERS:
                name = NUMBERS[metric]
                numbers[name] = numbers.get(name, 0.0) + value
            elif metric in TIMES:
                counts, bound = buckets.setdefault(TIMES[metric], {}), float(labels["le"])
                counts[bound] = counts.get(bound, 0.0) + value
    except (ValueError, KeyError) as error:
        raise ProtocolViolation(f"metrics that cannot be understood: {error!r}") from None
    return Scraped(
        {name: value for name, value in numbers.items() if isfinite(value)},
        {name: _told(counts) for name, counts in buckets.items() if all(map(isfinite, counts.values()))},
    )


def _told(counts: Mapping[float, float]) -> list[tuple[float | None, float]]:
    return [(bound if isfinite(bound) else None, counts[bound]) for bound in sorted(counts)]

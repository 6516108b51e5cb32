"""The numbers of bookies that a page draws, read from the metrics that each of them serves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from tallybook.core.errors import PeerError, ProtocolViolation
from tallybook.metadata.store import BookieInfo
from tallybook.runtime.http_client import HttpClient
from tallybook.runtime.logging import logger

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
    "tallybook_journal_commit_seconds_total": "commit_seconds",
    "tallybook_journal_bytes_total": "journal_bytes",
    "process_cpu_seconds_total": "cpu_seconds",
    "process_resident_memory_bytes": "memory_bytes",
}
"""Metrics that are shown, and what they are called here. Those with several values are summed up."""

_UNSPECIFIED: Final = frozenset({"0.0.0.0", "[::]", "*"})  # noqa: S104 (told apart, not bound)


class Scraper:
    """Asks bookies for their numbers."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def numbers(self, bookies: Iterable[BookieInfo]) -> dict[str, Mapping[str, float]]:
        """The numbers of those that answer."""
        asked = [info for info in bookies if info.http_address]
        answers = await asyncio.gather(*map(self._of, asked))
        return {info.bookie_id: found for info, found in zip(asked, answers, strict=True) if found is not None}

    async def _of(self, info: BookieInfo) -> Mapping[str, float] | None:
        try:
            return numbers_in(await self._http.fetch(reachable(info), "/metrics"))
        except PeerError as error:
            _log.info("a bookie does not tell its numbers", bookie_id=info.bookie_id, error=error.message)
            return None


def reachable(info: BookieInfo) -> str:
    """Where the HTTP port of a bookie is, as seen from elsewhere."""
    host, _, port = info.http_address.rpartition(":")
    return f"{info.address.rpartition(':')[0]}:{port}" if host in _UNSPECIFIED else info.http_address


def numbers_in(text: str) -> dict[str, float]:
    """Those of ``NUMBERS`` that a text of metrics holds.

    Raises:
        ProtocolViolation: it is no such text.
    """
    found: dict[str, float] = {}
    wanted = [line for line in text.splitlines() if line.startswith(tuple(NUMBERS))]
    try:
        for family in text_string_to_metric_families("\n".join(wanted) + "\n"):
            for sample in family.samples:
                name = NUMBERS.get(sample.name)
                if name is not None:
                    found[name] = found.get(name, 0.0) + sample.value
    except ValueError as error:
        raise ProtocolViolation(f"metrics that cannot be understood: {error}") from None
    return {name: value for name, value in found.items() if isfinite(value)}

"""Metrics of processes that read or write an archive.

A client declares them without the libraries of an archive, so the parts are named, not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tallybook.runtime.metrics.catalog import MetricKind
from tallybook.runtime.metrics.part_metrics import PartMetrics

from .objects import retries
from .objects.retries import RetryPolicy

if TYPE_CHECKING:
    from cachetools import LRUCache

    from .objects.encryption.store import EncryptedStore

CACHES: Final = ("index", "pages")
"""Caches of a reader: page indexes of objects, and pages of entries."""


@dataclass(frozen=True, slots=True)
class CacheLoad:
    """The caches of a reader by name, and how often something was found in them."""

    caches: Mapping[str, LRUCache[Any, Any]]
    hits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CACHES, 0))
    misses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CACHES, 0))


class ArchiveNumbers(NamedTuple):
    """The parts of an object store that count. ``encryption``: its header cache, if it has one."""

    retries: RetryPolicy
    encryption: EncryptedStore | None


_OF_ENCRYPTION: Final[PartMetrics[EncryptedStore]] = PartMetrics()

_ENCRYPTION: Final = (
    _OF_ENCRYPTION.gauge(
        "seals",
        "tallybook_archive_seals",
        "Cached encryption headers of objects, plain objects included; none without keys.",
        lambda store: len(store.headers),
    )
    .gauge(
        "max_seals",
        "tallybook_archive_max_seals",
        "Maximum cached encryption headers.",
        lambda store: store.headers.maxsize,
    )
    .counter(
        "seal_hits",
        "tallybook_archive_seal_hits_total",
        "Reads of objects with a cached header.",
        lambda store: store.header_hits,
    )
    .counter(
        "seal_misses",
        "tallybook_archive_seal_misses_total",
        "Reads that had to fetch the header from the store.",
        lambda store: store.header_misses,
    )
)

ARCHIVE_METRICS: Final = (
    PartMetrics[ArchiveNumbers]()
    .of(retries.METRICS, lambda archive: archive.retries)
    .of(_ENCRYPTION, lambda archive: archive.encryption)
)
"""Metrics of every process that uses an object store."""

ARCHIVE_READER_METRICS: Final = (
    PartMetrics[CacheLoad]()
    .each(
        MetricKind.GAUGE,
        "cache_bytes_{}",
        "tallybook_archive_cache_bytes",
        "Bytes in the caches of a reader of archives.",
        "cache",
        CACHES,
        lambda load, cache: load.caches[cache].currsize,
    )
    .each(
        MetricKind.GAUGE,
        "cache_max_bytes_{}",
        "tallybook_archive_cache_max_bytes",
        "Maximum bytes in them.",
        "cache",
        CACHES,
        lambda load, cache: load.caches[cache].maxsize,
    )
    .each(
        MetricKind.COUNTER,
        "cache_hits_{}",
        "tallybook_archive_cache_hits_total",
        "Parts of an index, and pages, found in them.",
        "cache",
        CACHES,
        lambda load, cache: load.hits[cache],
    )
    .each(
        MetricKind.COUNTER,
        "cache_misses_{}",
        "tallybook_archive_cache_misses_total",
        "Parts of an index, and pages, not found in them.",
        "cache",
        CACHES,
        lambda load, cache: load.misses[cache],
    )
)
"""Metrics of a client that has read from the archive of its cluster."""

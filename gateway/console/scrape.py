"""Selects the metrics of a bookie that the page charts. Pure."""

from __future__ import annotations

from math import isfinite
from typing import Final

from tallybook.repair.diagnosis.samples import LabelSet, Sample

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
"""Charted metrics and their JSON names. A metric with several series is summed."""

TIMES: Final = {
    "tallybook_bookie_add_seconds_bucket": "adds",
    "tallybook_bookie_read_seconds_bucket": "reads",
    "tallybook_journal_commit_seconds_bucket": "commits",
}
"""Charted histograms and their JSON names."""


def numbers(sample: Sample) -> dict[str, float]:
    """The values of ``NUMBERS`` in a sample."""
    found = {name: sum(sample.series[metric].values()) for metric, name in NUMBERS.items() if metric in sample.series}
    return {name: value for name, value in found.items() if isfinite(value)}


def times(sample: Sample) -> dict[str, list[tuple[float | None, float]]]:
    """For each of ``TIMES``, its cumulative buckets: upper bound in seconds (``None``: no bound) and count."""
    found = {name: _buckets(sample.series[metric]) for metric, name in TIMES.items() if metric in sample.series}
    return {name: counts for name, counts in found.items() if all(isfinite(count) for _, count in counts)}


def _bound(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _buckets(series: dict[LabelSet, float]) -> list[tuple[float | None, float]]:
    counts: dict[float, float] = {}
    for labels, value in series.items():
        bound = _bound(dict(labels).get("le", ""))
        if bound is not None:
            counts[bound] = counts.get(bound, 0.0) + value
    return [(bound if isfinite(bound) else None, counts[bound]) for bound in sorted(counts)]

"""Reads the ``/metrics`` of a process, in the Prometheus text format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from .client import fetch_text

FETCH_SECONDS: Final = 10.0

_NUMBER: Final = r"[+-]?(?:Inf|NaN|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)"
_SAMPLE: Final = re.compile(rf"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{[^}}]*\}})? ({_NUMBER})(?: \d+)?$")


def parse_metrics(text: str) -> dict[str, float]:
    """The value of each metric, summed over its labels. Lines that are not samples are ignored."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample:
            found[sample[1]] = found.get(sample[1], 0.0) + float(sample[2])
    return found


def parse_series(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """All series: name, labels and value.

    Raises:
        ValueError: the text is malformed.
    """
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, dict(sample.labels), float(sample.value)


def fetch_metrics(port: int) -> dict[str, float]:
    """The metrics of the process on ``port`` of this machine.

    Raises:
        PeerUnavailable, ProtocolViolation: as ``fetch_text``.
    """
    return parse_metrics(fetch_text(f"127.0.0.1:{port}", "/metrics", FETCH_SECONDS))

"""Reading what a bookie shows under ``/metrics``, in the text format of Prometheus."""

from __future__ import annotations

import re
import urllib.request
from typing import Final

FETCH_SECONDS: Final = 10.0

_SAMPLE: Final = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{[^}]*\})? ([^ ]+)(?: \d+)?$")


def parse_metrics(text: str) -> dict[str, float]:
    """The value of every metric, summed over its labels; comments and what is no sample are left out."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample:
            found[sample[1]] = found.get(sample[1], 0.0) + float(sample[2])
    return found


def fetch_metrics(port: int) -> dict[str, float]:
    """What the process on ``port`` of this machine shows.

    Raises:
        OSError: it does not answer.
    """
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=FETCH_SECONDS) as answer:
        return parse_metrics(answer.read().decode())

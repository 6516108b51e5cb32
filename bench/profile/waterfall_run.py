"""Runs the loads of the waterfalls on a cluster that sends its spans here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ..compare.cluster import Tallybook
from ..compare.comparison import running
from ..compare.system import SLACK_SECONDS
from ..compare.workloads import ORDINARY_RATE, WORKLOADS, Pace
from ..equipment.programs import module, run_json_lines
from ..loads.traced_calls import NO_OTHERS, Calls
from .span_endpoint import SpanEndpoint
from .waterfall import Waterfall, waterfall

TITLES: Final = {
    Calls.OPEN: f"An append of 1 KiB at {ORDINARY_RATE:,.0f} per second (open loop, four ledgers)",
    Calls.ALONE: "An append of 1 KiB, one at a time",
    Calls.COLD: "A single read at random, from the disk",
    Calls.WARM: "A single read of an entry that was read before",
}


def measure_waterfalls(directory: Path, pace: Pace) -> list[Waterfall]:
    """Trace each kind of call for ``pace.seconds`` on a new cluster.

    Raises:
        ProgramFailed: the cluster or a load failed.
    """
    found = []
    directory.mkdir(parents=True, exist_ok=True)
    with SpanEndpoint(directory / "spans.json") as endpoint:
        cluster = Tallybook(
            directory / "cluster", environment={**os.environ, "TALLYBOOK_TRACES": endpoint.url + NO_OTHERS}
        )
        with running(cluster):
            for calls, title in TITLES.items():
                options = {
                    "--metadata": cluster.metadata,
                    "--traces": endpoint.url,
                    "--seconds": pace.seconds,
                    "--rate": ORDINARY_RATE,
                    "--entries": pace.entries(WORKLOADS["reads"]),
                    "--flush-seconds": pace.flush_seconds,
                    "--directory": cluster.directory,
                }
                words = [text for name, value in options.items() for text in (name, str(value))]
                command = module("tallybook.bench.loads.traced_calls", calls.value, *words)
                run_json_lines(command, timeout_seconds=pace.seconds + pace.flush_seconds + SLACK_SECONDS)
                found.append(waterfall(title, endpoint.drain()))
    return found

"""Writes docs/benchmarks-archive.md: the machine, the gates, and everything that was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tallybook.bench.gates import Figures
from tallybook.bench.report import table

from .gates import GATES

_HEAD: Final = """# Benchmarks of the archive

How fast closed ledgers go to an object store, what reading them from there costs, and how fast Spark is on them. This
page is written by `make bench-archive`; it holds whatever was measured, good or bad.
[Where the time goes](performance.md#the-archive) explains the figures, and why a gate is not met.

The object store is a directory on the disk below. Ratios are medians of pairs from one run, in which what is compared
takes turns; payloads cannot be compressed.
"""


def keep_results(directory: Path, machine: Mapping[str, str], sizes: Mapping[str, int], figures: Figures) -> None:
    """Write the figures for whoever wants to compare runs."""
    directory.mkdir(parents=True, exist_ok=True)
    results = {"machine": dict(machine), "sizes": dict(sizes), "figures": dict(figures)}
    (directory / "archive.json").write_text(json.dumps(results, indent=2) + "\n")


def write_report(directory: Path, machine: Mapping[str, str], sizes: Mapping[str, int], figures: Figures) -> Path:
    """Write the page; return where it is."""
    verdicts = [(gate, figures[gate.figure]) for gate in GATES if gate.figure in figures]
    gates = [
        (gate.what, gate.wanted, f"**{value:g}**", "yes" if gate.met_by(value) else "**no**")
        for gate, value in verdicts
    ]
    parts = [
        _HEAD,
        table(("machine", ""), list(machine.items())),
        table(("size", ""), [(name.replace("_", " "), f"{value:,}") for name, value in sizes.items()]),
        "## Gates\n",
        table(("gate", "wanted", "measured", "met"), gates),
        "## Figures\n",
        table(("figure", "value"), [(f"`{name}`", f"{value:g}") for name, value in figures.items()]),
    ]
    page = directory / "benchmarks-archive.md"
    page.write_text("\n".join(parts))
    return page

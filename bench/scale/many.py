"""Costs of ledgers and streams when one client has many of them open, on three bookies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..equipment.bookies import bookies, metadata_in
from ..equipment.programs import module, run_json_lines
from ..gates import Figures

BOOKIES: Final = 3
CREATE_SECONDS: Final = 240.0
"""How long a case creates ledgers or streams, at most. The page has the number that there were."""
PROGRAM_SECONDS: Final = CREATE_SECONDS + 240.0


def measure_many_of(kind: str, directory: Path, counts: Sequence[int], seconds: float) -> Figures:
    """``ledgers`` or ``streams``: so many of them, each time on a new cluster.

    Raises:
        ProgramFailed: a bookie did not start, or the load failed.
    """
    figures: Figures = {}
    for count in counts:
        (scratch := directory / f"{kind}-{count}").mkdir()
        with bookies(scratch, BOOKIES) as cluster:
            options = ["--metadata", metadata_in(scratch), "--count", str(count), "--seconds", str(seconds)]
            options += ["--create-seconds", str(CREATE_SECONDS)]
            options += [word for bookie in cluster for word in ("--pid", str(bookie.pid))]
            command = module("tallybook.bench.scale.many_load", kind, *options)
            [found] = run_json_lines(command, timeout_seconds=PROGRAM_SECONDS)
        figures |= {f"{kind}_{count}_{name}": value for name, value in found.items()}
        print(f"{count} {kind}: {found}", flush=True)
    return figures

"""How long a program waits for its import of the client, and of the other modules that programs begin with.

Each run is a new interpreter; what counts is the best of many, since whatever else the machine does only adds to it.
Runs of all modules take turns, so that all of them meet the same machine. What must not be loaded at all is a matter
of tests/unit/test_imports.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from tallybook.bench.gates import Figures

MODULES: Final = ("tallybook.client", "tallybook.client.sync", "tallybook.stream", "tallybook.stream.sync")
BARE: Final = "nothing"
RUNS: Final = 20


def measure_imports(runs: int = RUNS) -> Figures:
    """The milliseconds that each import adds to a bare interpreter, and those of the interpreter."""
    best = best_seconds(MODULES, runs)
    figures: Figures = {"import_interpreter_ms": round(best[BARE] * 1000)}
    for name in MODULES:
        figures[f"import_{name.removeprefix('tallybook.').replace('.', '_')}_ms"] = round(
            (best[name] - best[BARE]) * 1000
        )
    return figures


def best_seconds(modules: Sequence[str], runs: int, measure: Callable[[str], float] | None = None) -> dict[str, float]:
    """The shortest run of each module, and of ``BARE``, from the start of its interpreter to the end."""
    names = (BARE, *modules)
    best = dict.fromkeys(names, float("inf"))
    for _ in range(runs):
        for name in names:
            best[name] = min(best[name], (measure or seconds)(name))
    return best


def seconds(module: str) -> float:
    """Time from the start of an interpreter to its end, with one import in between."""
    # Compiled code is kept, as in every installation: otherwise half of the time would be the compiler's.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    program = "pass" if module == BARE else f"import {module}"
    started = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-c", program], check=True, env=environment)
    return time.perf_counter() - started

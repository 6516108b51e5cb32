"""Import times of the client and of other modules that programs import first.

Each run is a new interpreter; the best of many runs counts, since other load on the machine only adds time. Runs of all
modules alternate. tests/unit/test_imports.py checks which modules must not be loaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from ..gates import Figures

MODULES: Final = ("tallybook.client", "tallybook.client.sync", "tallybook.stream", "tallybook.stream.sync")
BARE: Final = "nothing"
RUNS: Final = 20


def measure_imports(runs: int = RUNS) -> Figures:
    """Milliseconds that each import adds to a bare interpreter, and the time of the interpreter."""
    best = best_seconds(MODULES, runs)
    figures: Figures = {"import_interpreter_ms": round(best[BARE] * 1000)}
    for name in MODULES:
        figures[f"import_{name.removeprefix('tallybook.').replace('.', '_')}_ms"] = round(
            (best[name] - best[BARE]) * 1000
        )
    return figures


def best_seconds(modules: Sequence[str], runs: int, measure: Callable[[str], float] | None = None) -> dict[str, float]:
    """The shortest run of each module and of ``BARE``, from start to end of the interpreter."""
    names = (BARE, *modules)
    best = dict.fromkeys(names, float("inf"))
    for _ in range(runs):
        for name in names:
            best[name] = min(best[name], (measure or seconds)(name))
    return best


def seconds(module: str) -> float:
    """Time of an interpreter that imports one module, from start to end."""
    # Bytecode is cached, as in every installation: otherwise compilation would take half of the time.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    program = "pass" if module == BARE else f"import {module}"
    started = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-c", program], check=True, env=environment)
    return time.perf_counter() - started

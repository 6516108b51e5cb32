"""Runs one seed and returns a report; entry point of ``python -m tallybook.sim`` and of tests."""

from __future__ import annotations

import asyncio
import gc
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from .configuration.run_configuration import configuration_of_seed
from .deterministic import Leak, SimLoop, Stuck, Unhandled, World, run_untraced
from .oracle.oracle import InvariantBroken
from .run import RunOutcome, run_scenario

DEADLINE_SECONDS: Final = 1800.0


@dataclass
class SeedReport:
    """Result of one seed. ``failure`` is empty if the run passed."""

    seed: int
    config: str
    failure: str = ""
    digest: str = ""
    """SHA-256 of the trace; equal for the same seed and the same code."""
    seconds: float = 0.0
    """Simulated duration."""
    trace: list[str] = field(default_factory=list)
    """Last lines of the trace, if the run failed."""
    outcome: RunOutcome | None = None


def run_quietly(seed: int) -> SeedReport:
    """Run one seed with logging disabled; the trace has what matters."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return run(seed)
    finally:
        logging.disable(disabled)


def run(seed: int, *, on_trace_line: Callable[[str], object] | None = None) -> SeedReport:
    """Run one seed.

    Args:
        on_trace_line: called with every line of the trace.
    """
    report = SeedReport(seed, str(configuration_of_seed(seed)))
    loops: list[SimLoop] = []

    async def scenario(world: World) -> RunOutcome:
        loops.append(world.loop)
        return await run_scenario(world)

    collecting = gc.isenabled()
    gc.freeze()  # gc.collect() below need not scan older objects
    gc.disable()  # gc could finalize objects at a different step in another process
    try:
        _, report.outcome = run_untraced(seed, scenario, deadline_seconds=DEADLINE_SECONDS, on_trace_line=on_trace_line)
    except (InvariantBroken, Stuck, Leak, Unhandled) as error:
        cause = f" <- {error.__cause__!r}" if error.__cause__ is not None else ""
        report.failure = f"{type(error).__name__}: {error}{cause}"
        report.trace = loops[0].trace_tail()
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the report must name the seed for any error
        report.failure = f"harness: {error!r}"
        report.trace = [*loops[0].trace_tail(), *traceback.format_tb(error.__traceback__)]
    finally:
        if collecting:
            gc.enable()
        gc.collect()
    report.digest, report.seconds = loops[0].trace_digest(), loops[0].time()
    return report

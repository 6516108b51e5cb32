"""One seed, from its number to a report: what ``python -m tallybook.sim`` and tests run."""

from __future__ import annotations

import asyncio
import gc
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tallybook.runtime.deterministic import Leak, SimLoop, Stuck, Unhandled, World, run_untraced

from .god import InvariantBroken
from .run import Outcome, live_through
from .swarm import swarm_of_seed

DEADLINE_SECONDS: Final = 1800.0


@dataclass
class Report:
    """How the run of one seed went. ``failure`` is empty for a good one."""

    seed: int
    config: str
    failure: str = ""
    digest: str = ""
    """SHA-256 of the trace: the same for the same seed and the same code."""
    seconds: float = 0.0
    """Simulated."""
    trace: list[str] = field(default_factory=list)
    """The last lines of the trace, of a run that failed."""
    outcome: Outcome | None = None


def run_quietly(seed: int) -> Report:
    """Like ``run``, without what the parts log: what matters of it is in the trace."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return run(seed)
    finally:
        logging.disable(disabled)


def run(seed: int, *, on_trace_line: Callable[[str], object] | None = None) -> Report:
    """Run one seed.

    Args:
        on_trace_line: told every line of the trace.
    """
    report = Report(seed, str(swarm_of_seed(seed)))
    loops: list[SimLoop] = []

    async def scenario(world: World) -> Outcome:
        loops.append(world.loop)
        world.loop.on_trace_line = on_trace_line
        return await live_through(world)

    collecting = gc.isenabled()
    gc.freeze()  # what was there before need not be looked at when the run is over
    gc.disable()  # what the collector ends, it would end at other moments in another process
    try:
        _, report.outcome = run_untraced(seed, scenario, deadline_seconds=DEADLINE_SECONDS)
    except (InvariantBroken, Stuck, Leak, Unhandled) as error:
        cause = f" <- {error.__cause__!r}" if error.__cause__ is not None else ""
        report.failure = f"{type(error).__name__}: {error}{cause}"
        report.trace = loops[0].trace_tail()
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the seed has to be told, whatever it was
        report.failure = f"harness: {error!r}"
        report.trace = [*loops[0].trace_tail(), *traceback.format_tb(error.__traceback__)]
    finally:
        if collecting:
            gc.enable()
        gc.collect()
        gc.unfreeze()
    report.digest, report.seconds = loops[0].trace_digest(), loops[0].time()
    return report

"""Appends at a steady rate until SIGTERM, and keeps the latency of every entry.

    python -m tallybook.bench.loads.steady_adds --metadata URI --rate 2000 --samples FILE

After the warm-up it prints a line of JSON with the bookies of its ledgers, at the end another one with the number of
entries, of ensemble changes, and of refusals: how often the client's byte budget was used up. The latencies go to the
file: ``windows.py`` evaluates them by time. Entries that were due and not sent in the end are among them.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import uvloop

from tallybook.cli.measure.adds import AddPlan, adds_until
from tallybook.cli.options import Metadata
from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.limits import KIB
from tallybook.runtime.tuning import settle_memory, tune_process

from ..equipment.bookies import metadata_in
from ..equipment.programs import ProgramFailed, Server, module, print_json_line
from .windows import save

START_SECONDS: Final = 60.0
"""Time until the warm-up has ended, at most."""
WINDOW: Final = 20_000
"""Unconfirmed entries at most: above it the load falls behind its plan, which counts as latency."""


@dataclass
class SteadyLoad:
    """A running load.

    Attributes:
        ensembles: bookies of each of its ledgers, after the warm-up.
        samples: file with the latencies; complete when the load has ended.
        ensemble_changes: of all ledgers together; valid when the load has ended.
        refusals: times that the client's byte budget was used up; likewise.
    """

    pid: int
    ensembles: Sequence[Sequence[str]]
    samples: Path
    ensemble_changes: int = 0
    refusals: int = 0


@contextmanager
def steady_adds(directory: Path, rate: float, name: str = "adds", **options: float) -> Iterator[SteadyLoad]:
    """Append to a cluster of ``equipment.bookies`` during the block.

    Args:
        directory: directory of the cluster.
        name: name of the files of this load.
        options: more options of the program.

    Raises:
        ProgramFailed: an append failed, or the load did not start, or ended before the block.
    """
    samples = directory / f"{name}.samples"
    words = ["--metadata", metadata_in(directory), "--rate", str(rate), "--samples", str(samples)]
    words += [word for option, value in options.items() for word in (f"--{option.replace('_', '-')}", str(value))]
    adds = Server(module("tallybook.bench.loads.steady_adds", *words), directory / f"{name}.json")
    try:
        load = SteadyLoad(adds.pid, adds.ready(START_SECONDS)["ensembles"], samples)
        yield load
        early = adds.ended is not None
    finally:
        adds.stop()
    if adds.ended or early:
        raise ProgramFailed(f"the adds ended {'early, ' if early else ''}with {adds.ended}: see {directory / name}.log")
    last = adds.said()[-1]
    load.ensemble_changes, load.refusals = last["ensemble_changes"], last["refusals"]


def main(
    metadata: Metadata,
    samples: Annotated[Path, typer.Option(help="Where the latency of every entry goes in the end.")],
    rate: Annotated[float, typer.Option(help="Entries of 1 KiB a second.")] = 2_000.0,
    ledgers: Annotated[int, typer.Option(help="Number of ledgers, which are written in turn.")] = 4,
    copies: Annotated[int, typer.Option(help="E and Qw; Qa is a majority.")] = 3,
    warm_up_seconds: Annotated[float, typer.Option(help="Load before the first line.")] = 5.0,
    max_seconds: Annotated[float, typer.Option(help="Load after it, at most.")] = 7_200.0,
) -> None:
    """Append to ledgers until SIGTERM."""
    writers: list[LedgerWriter] = []

    def begun(opened: Sequence[LedgerWriter]) -> None:
        writers.extend(opened)
        print_json_line({"ensembles": [writer.metadata.last_fragment.bookies for writer in opened]})

    async def work() -> dict[str, Any]:
        over = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
        quorums = (copies, copies, copies // 2 + 1)
        plan = AddPlan(KIB, ledgers, WINDOW, max_seconds, rate, warm_up_seconds, *quorums)
        async with Client(metadata) as client:
            adds = await adds_until(client, plan, over, begun)
            refusals = client.budget.exhausted
        save(adds, samples)
        changes = sum(len(writer.metadata.fragments) - 1 for writer in writers)
        return {"entries": len(adds.planned_ns), "ensemble_changes": changes, "refusals": refusals}

    tune_process()
    settle_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print_json_line(runner.run(work()))


if __name__ == "__main__":
    typer.run(main)

"""Command line of chaos runs (docs/project/chaos.md).

    python -m tallybook.sim.chaos --seconds 300 --seed 7 [--keep]

Prints a line for every fault, and a summary. Exits with 1 and keeps the directory of the run if there was a violation.
A run starts the command ``load`` itself, for its client processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from tallybook.cli import running
from tallybook.cli.exits import Interrupted
from tallybook.cli.local.parent import die_with_parent
from tallybook.client.client import Client
from tallybook.client.environment import open_world
from tallybook.core.errors import MetadataUnavailable, TallybookError
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng

from . import tally
from .load import CANNOT_OPEN, LoadProcess, client_settings
from .processes import remove
from .records import Recorder
from .run import ChaosRun
from .watched import WatchedConnections


def say(text: str) -> None:
    """Print one line to standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def complain(error: TallybookError) -> None:
    """Print an error to standard error, as the last line of a load."""
    sys.stderr.write(f"{error!r}\n")


async def run(seconds: float, seed: int, directory: Path) -> ChaosRun:
    """Do one run."""
    async with ChaosRun(directory, seed, say) as chaos:
        await chaos.run(seconds)
    return chaos


async def load(arguments: argparse.Namespace) -> int:
    """Run the clients of one load process; return its exit code."""
    die_with_parent(arguments.parent_pipe)
    recorder = Recorder(Path(arguments.log))
    settings = client_settings()
    try:
        world = await open_world(arguments.metadata, settings)
    except MetadataUnavailable as error:
        recorder.close()
        complain(error)
        return CANNOT_OPEN
    watched = replace(world, connections=WatchedConnections(world.connections, recorder.note))
    async with Client(watched, settings) as client:
        actors = LoadProcess(
            arguments.name, client, recorder, RealClock(), SeededRng(arguments.seed),
            writers=3, readers=2, recoverers=1,
        )  # fmt: skip
        await actors.run()
    recorder.close()
    return 0


def of_this_code(sums: Counter[str]) -> str:
    """Line with the sums over all runs of this code."""
    return f"all runs of this code: {json.dumps(sums)}"


def run_and_judge(arguments: argparse.Namespace) -> int:
    """Run, print the summary, clean up; return the exit code."""
    directory = Path(arguments.dir) if arguments.dir else tally.RUNS / f"seed-{arguments.seed}"
    if directory.exists():
        remove(directory)
    directory.mkdir(parents=True)
    code = tally.code()
    try:
        # Also after a signal all child processes are ended, ZooKeeper included.
        chaos = running.run(run(arguments.seconds, arguments.seed, directory))
    except Interrupted as interrupted:
        return interrupted.code
    say("")
    if not arguments.dir:
        sums = tally.add(arguments.seed, chaos.figures, code)
        say("the code changed during the run: it is not added to the tally" if sums is None else of_this_code(sums))
    say(json.dumps(chaos.figures))
    if chaos.violations:
        kinds = Counter(violation.invariant for violation in chaos.violations)
        say(f"violations: {' '.join(f'{kind}={count}' for kind, count in sorted(kinds.items()))}")
        say(f"FAILED: seed {arguments.seed}; everything is in {directory}")
        return 1
    if not arguments.keep:
        remove(directory)
    return 0


def main() -> int:
    """Run the command given by ``sys.argv``; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tallybook.sim.chaos", description="Chaos with real processes.")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long faults are injected")
    parser.add_argument("--seed", type=int, default=1, help="seed of the faults and their times")
    parser.add_argument("--keep", action="store_true", help="keep the directory of a run that passed")
    parser.add_argument("--dir", default="", help="directory of the run, which is then not added to the tally")
    commands = parser.add_subparsers(dest="command")
    loading = commands.add_parser("load", help="used by the run itself")
    for name in ("--name", "--log", "--metadata", "--seed"):
        loading.add_argument(name, required=True)
    loading.add_argument("--parent-pipe", type=int, required=True)
    arguments = parser.parse_args()
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    if arguments.command != "load":
        return run_and_judge(arguments)
    try:
        return asyncio.run(load(arguments))
    except TallybookError as error:
        complain(error)
        return 1


if __name__ == "__main__":
    sys.exit(main())

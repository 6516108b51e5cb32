"""``python -m tallybook.bench.archive``: benchmarks of the archive, with their gates."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tallybook.archive.objects.keys import UNFINISHED_SUFFIX
from tallybook.cli.measure.latency import median

from ..equipment.machine import facts
from ..equipment.programs import ProgramFailed, Server, module, run_json_lines
from ..gates import Figures
from ..pages import ReportOption, Topic, admit, conclude
from .gates import GATES, HEAD

ROOT: Final = Path(__file__).resolve().parent.parent.parent
MIN_SIZES: Final = {"rounds": 5}
"""Minimum sizes of a run whose page goes to docs/."""
START_SECONDS: Final = 120.0
PROGRAM_SECONDS: Final = 1_800.0
BESIDE_MIB: Final = 512
BESIDE_LEDGERS: Final = 3
_POLL_SECONDS: Final = 0.05


def main(
    directory: Annotated[
        Path, typer.Option("--dir", help="Directory of cluster and archive, on a real disk; needs 25 GB.")
    ] = ROOT / "out" / "bench",
    large_mib: Annotated[int, typer.Option(help="Payload of a large ledger.")] = 1024,
    small_mib: Annotated[int, typer.Option(help="Payload of each of three smaller ones.")] = 100,
    small_ledgers: Annotated[int, typer.Option(help="Number of ledgers of 10 KB; may be 0.")] = 10_000,
    rounds: Annotated[int, typer.Option(help="How often each Spark query runs; 0: never.")] = MIN_SIZES["rounds"],
    beside_rounds: Annotated[int, typer.Option(help="How often adds are timed beside an offloader; 0: never.")] = 5,
    report: ReportOption = None,
) -> None:
    """Measure, print the figures in one line of JSON, and judge the gates: the exit code is 0 if all are met."""
    sizes = {"MiB_of_a_large_ledger": large_mib, "MiB_of_a_small_ledger": small_mib}
    sizes |= {"ledgers_of_10_KB": small_ledgers, "rounds": rounds}
    admit(report, sizes, MIN_SIZES)
    directory.mkdir(parents=True, exist_ok=True)
    machine = facts(directory)
    with tempfile.TemporaryDirectory(dir=directory) as name, _cluster(Path(name)) as metadata:
        scratch = Path(name).resolve()
        cluster = _Cluster(metadata, scratch / "archive")
        figures = cluster.measure(large_mib, small_mib, small_ledgers, rounds)
        if beside_rounds:
            figures |= cluster.beside(scratch, beside_rounds)
    off = {name for name, size in (("merge", small_ledgers), ("spark", rounds), ("beside", beside_rounds)) if not size}
    raise typer.Exit(
        conclude(Topic("archive", HEAD, GATES, MIN_SIZES), machine, sizes, figures, off=off, report=report)
    )


@contextmanager
def _cluster(scratch: Path) -> Iterator[str]:
    """Start three bookies; yields the URI of their metadata store."""
    command = [*module("tallybook.cli"), "up", "--data", str(scratch / "data"), "--no-offload", "--no-gateway"]
    server = Server([*command, "--json"], scratch / "up.json")
    try:
        yield server.ready(START_SECONDS)["ready"]
    finally:
        server.stop()


class _Cluster:
    """Runs the loads, each in a process of its own."""

    def __init__(self, metadata: str, archive: Path) -> None:
        self._metadata = metadata
        self._archive = archive
        archive.mkdir()

    def measure(self, large_mib: int, small_mib: int, small_ledgers: int, rounds: int) -> Figures:
        """Archive ledgers of all sizes, and read them back one by one and through Spark."""
        small, [large] = self._write(small_mib, 3), self._write(large_mib)
        figures = self._offload("small", small) | self._offload("large", [large])
        figures |= self._memory(large_mib)
        figures |= self._run("cluster_load", "entries", *self._in_archive(), "--ledger", str(large))
        if small_ledgers:
            figures |= self._run("cluster_load", "merge", *self._in_archive(), "--count", str(small_ledgers))
        for size, ledger in (("small", small[0]), ("large", large)) if rounds else ():
            found = self._run("spark_load", *self._in_archive(), "--ledger", str(ledger), "--rounds", str(rounds))
            figures |= {f"{size}_{figure}": value for figure, value in found.items()}
        return figures

    def beside(self, scratch: Path, rounds: int) -> Figures:
        """Adds at a steady rate, alternating without an offloader and with one at half of the idle read rate."""
        ledgers = [f"--ledger={ledger}" for ledger in self._write(BESIDE_MIB, BESIDE_LEDGERS)]
        rate = int(self._run("cluster_load", "read", "--metadata", self._metadata, *ledgers)["bytes_per_s"] / 2)
        quiet, beside = [], []
        for number in range(rounds):
            quiet.append(self._p99_ms())
            with self._offloader(scratch / f"offloader-{number}.json", rate):
                beside.append(self._p99_ms())
        return {
            "beside_mb_per_s": round(rate / 1e6, 1),
            "add_p99_ms": round(median(quiet), 3),
            "add_p99_beside_ms": round(median(beside), 3),
            "add_p99_ratio": round(median([one / other for one, other in zip(beside, quiet, strict=True)]), 3),
        }

    def _write(self, mib: int, count: int = 1) -> list[int]:
        found = self._run(
            "cluster_load", "write", "--metadata", self._metadata, "--mib", str(mib), "--count", str(count)
        )
        ledgers: list[int] = found["ledgers"]
        return ledgers

    def _offload(self, name: str, ledgers: Sequence[int]) -> Figures:
        """Rates of offloading, and of reading and writing alone."""
        found = self._archived(*(f"--ledger={ledger}" for ledger in ledgers))
        return {f"{name}_{figure}": value for figure, value in found.items() if figure != "memory_mib"}

    def _archived(self, *arguments: str) -> Figures:
        [warm_up] = self._write(1)
        found: Figures = self._run("offload_load", *self._in_archive(), "--warm-up", str(warm_up), *arguments)
        return found

    def _memory(self, large_mib: int) -> Figures:
        """Memory of a process that only archives one ledger, and its growth for a ledger ten times as large."""
        found = []
        for mib in (max(1, large_mib // 4), large_mib):
            [ledger] = self._write(mib)
            found.append(self._archived(f"--ledger={ledger}", "--only")["memory_mib"])
        growth = self._run("encoder_load", "--mib", str(large_mib))["encoder_growth_mib"]
        return {
            "memory_mib": found[1],
            "quarter_memory_mib": found[0],
            "encoder_growth_mib": growth,
            "memory_of_tenfold_mib": round(found[1] + growth, 1),
        }

    def _p99_ms(self) -> float:
        value: float = self._run("cluster_load", "adds", "--metadata", self._metadata)["p99_ms"]
        return value

    @contextmanager
    def _offloader(self, output: Path, rate: int) -> Iterator[None]:
        """Run an offloader as users do; the block starts when it writes an object."""
        command = [*module("tallybook.cli"), "offload", "run", "--metadata", self._metadata]
        command += ["--archive", f"file://{self._archive}", "--set", f"bytes_per_second={rate}"]
        server, deadline = Server(command, output), time.monotonic() + START_SECONDS
        try:
            while not self._archiving():
                if time.monotonic() > deadline:
                    raise ProgramFailed("the offloader does not start to write objects")
                time.sleep(_POLL_SECONDS)
            yield
            if not self._archiving():
                raise ProgramFailed("the offloader had nothing left to do before the measurement ended")
        finally:
            server.stop()

    def _archiving(self) -> bool:
        return any(self._archive.rglob(f"*{UNFINISHED_SUFFIX}"))

    def _in_archive(self) -> list[str]:
        return ["--metadata", self._metadata, "--archive", str(self._archive)]

    def _run(self, program: str, *arguments: str) -> dict[str, Any]:
        command = [*module(f"tallybook.bench.archive.{program}"), *arguments]
        [found] = run_json_lines(command, timeout_seconds=PROGRAM_SECONDS)
        return found


if __name__ == "__main__":
    typer.run(main)

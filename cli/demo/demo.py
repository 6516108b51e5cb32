"""``tallybook demo``: real data in a cluster whose processes are killed.

1. A writer appends 336,776 flights to three of five bookies. One of the three is killed and replaced, then the writer
   is killed. Another client recovers the ledger, and a second writer appends the rest to a second ledger. Everything is
   read back and compared with the source.
2. Both ledgers are archived as Parquet objects, and the bookies drop their copies. With every bookie stopped, all is
   read back from the archive, and Spark and pandas compute the same mean delays (``archive``, ``query``).
3. The flights are appended to a stream by one producer that takes over from another one that hangs, while Spark counts
   them by carrier (``stream``).
4. A bookie loses its disk, and the repair restores its copies (``repair``).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tallybook.client.client import Client
from tallybook.core.errors import BookieUnavailable, InvalidArgument, InvalidConfig
from tallybook.core.ids import NO_ENTRY
from tallybook.metadata.ledger.describe import describe
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.runtime.clock import Clock, RealClock
from tallybook.runtime.disk.os_disk import RealDisk

from ..exits import Exit
from ..local.launcher import LocalCluster, how_it_ended, signal_process
from ..options import Json
from ..output import print_json
from ..progress import human_bytes
from ..running import run
from .archive import COLLECT, archive_and_drop
from .check import Tally, tally_of
from .query import ask_spark, missing_for_spark
from .source import FLIGHTS, find_flights, flights
from .stream import StreamAct
from .view import DemoOutput
from .writer import MODULE

_KILL_BOOKIE_AT: Final = 0.5
_REPLACED_BY: Final = 0.7
_KILL_WRITER_AT: Final = 0.85
"""Parts of the flights that are acknowledged when something is killed, or has to be replaced."""
_BOOKIES: Final = 5
_SMALL: Final = ("--set", "journal.segment_bytes=16MiB", "--set", "storage.write_cache_bytes=64MiB")
"""Bookie options for smaller files than on a busy server."""


def demo(
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory of the cluster; kept afterwards. By default a temporary one."),
    ] = None,
    count: Annotated[int, typer.Option("--flights", min=1_000, max=FLIGHTS, help="Number of flights.")] = FLIGHTS,
    spark: Annotated[
        bool | None,
        typer.Option(
            "--spark/--no-spark",
            help="Query the archive with Spark, which needs Java and some 20 seconds. Default: if both are installed.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write real data while bookies and the writer are killed; archive it; stream it; wipe a disk; compare each time.

    Takes about a minute and a half and less than a gigabyte of disk space. Exit code 1 if anything differs. With --json
    the result is printed on standard output, and the progress on standard error.
    """
    file = find_flights()
    if data is not None and data.exists() and any(data.iterdir()):
        raise InvalidArgument(f"{data} is not empty: give the demo a directory of its own")
    # The demo's own cluster runs without security, even if the environment configures a security directory.
    os.environ.pop("TALLYBOOK_SECURITY", None)
    directory = data or Path(tempfile.mkdtemp(prefix="tallybook-demo-", dir="."))
    clock = RealClock()
    missing = "switched off with --no-spark" if spark is False else missing_for_spark()
    if spark and missing:
        raise InvalidConfig(f"Spark cannot run: {missing}")
    acts = _Demo(directory, file, count, DemoOutput(clock, sys.stderr if as_json else sys.stdout), clock, missing)
    try:
        good = run(acts.run())
    finally:
        if data is None:
            shutil.rmtree(directory, ignore_errors=True)
    if as_json:
        print_json(acts.result)
    if not good:
        raise typer.Exit(Exit.FOUND_WRONG)


@dataclass(frozen=True, slots=True)
class _Report:
    """A report of a writer process: what is acknowledged."""

    entries: int = 0
    bytes: int = 0
    seconds: float = 0.0
    closed: bool = False
    fragment_from: int = 0
    bookies: Sequence[str] = ()


class _Demo:
    """Runs the acts one after the other."""

    def __init__(
        self, directory: Path, file: Path, count: int, view: DemoOutput, clock: Clock, missing_for_spark: str
    ) -> None:
        self._missing_for_spark = missing_for_spark
        self._file = file
        self._count = count
        self._clock = clock
        self._view = view
        self.result: dict[str, object] = {}
        self._cluster = LocalCluster(directory, _BOOKIES, RealDisk(), clock, (*_SMALL, *COLLECT))
        self._rates: list[tuple[str, int, int, float]] = []

    async def run(self) -> bool:
        """Run the whole demo; returns whether all comparisons succeeded."""
        view = self._view
        view.headline(f"Tallybook: {self._count:,} flights, five bookies, and a few crashes")
        async with self._cluster as cluster:
            await cluster.start()
            view.step(f"five bookies run, each with a disk directory of its own under {cluster.directory}")
            async with Client(cluster.metadata) as client:
                first = (await client.create_unowned_ledger()).ledger_id
            acked = await self._write_until_killed(first)
            closed = await self._recover(first)
            await self._restart()
            async with Client(cluster.metadata) as client:
                second = (await client.create_unowned_ledger()).ledger_id
                rest = await self._write_rest(second, closed.last_entry_id + 1)
                good = await self._compare(client, [first, second], acked, closed, rest)
            self._tables(closed)
            good = good and await self._from_the_archive([first, second])
            good = good and await self._as_a_stream()
            good = good and await self._repaired()
        whole = "every acknowledged flight is there, in order, byte for byte"
        view.verdict(whole if good else "the data read back differs from the data written", good=good)
        return good

    # -- the acts ---------------------------------------------------------------------

    async def _write_until_killed(self, ledger_id: int) -> _Report:
        """Run a writer; kill a bookie, which is replaced, then the writer. Returns the writer's last report."""
        acked, at_kill, killed, replaced = _Report(), _Report(), "", False
        async with self._writer(ledger_id, 0, linger_at=int(self._count * _REPLACED_BY)) as process:
            async for acked in _reports(process):
                self._view.rate(acked.entries, self._count, acked.bytes, f"{killed} is dead" if killed else "")
                if not killed and acked.entries >= self._count * _KILL_BOOKIE_AT:
                    at_kill, killed = acked, acked.bookies[1]
                    await self._kill(killed, acked.entries)
                if killed and killed not in acked.bookies and not replaced:
                    replaced = True
                    self._show_replacement(at_kill, acked)
                if acked.entries >= self._count * _KILL_WRITER_AT and process.returncode is None:
                    signal_process(process, signal.SIGKILL)
        self._view.end_of_rate()
        if not replaced:
            self._view.event(f"{killed} is not replaced yet; the writer continued with two bookies")
        self._view.event(f"SIGKILL to the writer; it had {acked.entries:,} flights acknowledged")
        self._rate("write until the crash", at_kill, _Report())
        return acked

    async def _kill(self, bookie_id: str, entries: int) -> None:
        await self._cluster.kill(next(bookie for bookie in self._cluster.bookies if bookie.bookie_id == bookie_id))
        self._view.event(f"SIGKILL to {bookie_id} at {entries:,} flights; the writer goes on")

    def _show_replacement(self, before: _Report, after: _Report) -> None:
        pairs = zip(before.bookies, after.bookies, strict=True)
        changes = ", ".join(f"{new} took the place of {old}" for old, new in pairs if old != new)
        self._view.step(f"{changes}, from flight {after.fragment_from:,} on")

    async def _recover(self, ledger_id: int) -> LedgerMetadata:
        started = self._clock.monotonic()
        async with Client(self._cluster.metadata) as client:
            closed = await client.recover_ledger(ledger_id)
        took = self._clock.monotonic() - started
        self._view.step(
            f"another client recovered the ledger in {took * 1000:.0f} ms: "
            f"it is closed with {closed.last_entry_id + 1:,} flights"
        )
        return closed

    async def _restart(self) -> None:
        await self._cluster.stop()
        await self._cluster.start()
        self._view.step("all bookies were started again")

    async def _write_rest(self, ledger_id: int, skip: int) -> _Report:
        """A second writer appends the rest to a second ledger."""
        done = _Report()
        async with self._writer(ledger_id, skip) as process:
            async for done in _reports(process):
                self._view.rate(skip + done.entries, self._count, done.bytes, "second ledger")
        self._view.end_of_rate()
        if not done.closed:
            raise BookieUnavailable(f"the second writer {how_it_ended(process.returncode or 0)}")
        self._view.step(f"a second ledger has the other {done.entries:,} flights, and is closed")
        self._rate("write the rest", done, _Report())
        return done

    async def _compare(
        self, client: Client, ledgers: list[int], acked: _Report, closed: LedgerMetadata, rest: _Report
    ) -> bool:
        """Read both ledgers back; compare with the source at the acknowledged, the recovered and the last flight."""
        end = closed.last_entry_id + 1
        places = sorted({acked.entries, end, self._count})
        started = self._clock.monotonic()
        found = await tally_of(_read(client, ledgers), places)
        self._rates.append(("read back", found.lines, found.bytes, self._clock.monotonic() - started))
        source = await tally_of(_source(self._file, self._count), places)
        facts = {
            f"the first ledger has {end:,} flights, but {acked.entries:,} were acknowledged": end < acked.entries,
            f"{found.lines:,} flights came back instead of {self._count:,}": found.lines != self._count,
            f"the two ledgers hold {end:,} and {rest.entries:,} flights": end + rest.entries != self._count,
            "SHA-256 of what came back differs from that of the source": found.digests != source.digests,
        }
        for wrong, holds in facts.items():
            if holds:
                self._view.problem(wrong)
        self.result = {
            "flights": found.lines,
            "acknowledged": acked.entries,
            "recovered": end,
            "same": not any(facts.values()),
            "sha256": found.digests[-1] if found.digests else None,
            "fragments": describe(closed)["fragments"],
            "missed": describe(closed)["missed"],
        }
        if any(facts.values()):
            return False
        self._digests(found, places, {acked.entries: "acknowledged", end: "recovered", self._count: "all flights"})
        return True

    async def _from_the_archive(self, ledgers: list[int]) -> bool:
        """Archive both ledgers, stop every bookie, and read them from the archive."""
        self._view.part("History: the ledgers are closed, and go to an archive")
        await archive_and_drop(self._cluster, ledgers, self._view, self._clock)
        await self._cluster.stop()
        self._view.step("every bookie was stopped")
        started = self._clock.monotonic()
        async with Client(self._cluster.metadata) as client:
            found = await tally_of(_read(client, ledgers), [self._count])
        self._rates = [("read back from the archive", found.lines, found.bytes, self._clock.monotonic() - started)]
        if found.digests != [self.result["sha256"]]:
            self._view.problem("the archive and the bookies returned different data")
            return False
        self._view.step("read back from the archive alone, and compared:")
        self._view.detail(f"{found.lines:>9,} flights  sha-256 {found.digests[-1][:32]}")
        if self._missing_for_spark:
            self._view.skipped(f"Spark did not run: {self._missing_for_spark}")
            return True
        self._view.waiting("Spark starts")
        answer = await ask_spark(self._cluster, self._file, self._count)
        self._view.end_of_rate()
        self.result["spark"] = answer["same"]
        self._show_delays(answer)
        return bool(answer["same"])

    async def _as_a_stream(self) -> bool:
        """Append the same flights to a stream."""
        self._view.part("A stream: flights arrive, and a producer hangs")
        await self._cluster.start()
        with_spark = not self._missing_for_spark
        act = StreamAct(self._cluster, self._file, self._count, self._view, with_spark=with_spark)
        good = await act.run()
        self.result["stream"] = act.result
        return good

    async def _repaired(self) -> bool:
        """Wipe the disk of a bookie, and repair it."""
        self._view.part("Repair: a bookie loses its disk")
        # Imported here because it takes long to load.
        from .repair import RepairAct  # noqa: PLC0415

        act = RepairAct(self._cluster, self._view, self._clock)
        good = await act.run()
        self.result["repair"] = act.result
        return good

    def _show_delays(self, answer: Mapping[str, Any]) -> None:
        self._view.step("Spark read the same objects as plain Parquet:")
        for scan in answer["plan"]:
            for line in scan.split(", "):
                self._view.detail(line)
        rows = [
            (carrier, f"{flights:,}", f"{delay:.6f}", f"{answer['by_pandas'].get(carrier, (0, float('nan')))[1]:.6f}")
            for carrier, (flights, delay) in sorted(answer["by_spark"].items(), key=lambda found: -found[1][1])
        ]
        columns = ("carrier", "flights", "by Spark, from the archive", "by pandas, from the source")
        self._view.table("Mean departure delay in minutes", columns, rows)
        if not answer["same"]:
            self._view.problem("Spark and pandas differ")

    # -- results ----------------------------------------------------------------------

    def _rate(self, what: str, after: _Report, before: _Report) -> None:
        entries, size = after.entries - before.entries, after.bytes - before.bytes
        self._rates.append((what, entries, size, after.seconds - before.seconds))

    def _digests(self, tally: Tally, places: list[int], names: dict[int, str]) -> None:
        self._view.step("read back and compared with the source:")
        for place, digest in zip(places, tally.digests, strict=True):
            self._view.detail(f"{place:>9,} flights  sha-256 {digest[:32]}  {names[place]}")

    def _tables(self, closed: LedgerMetadata) -> None:
        rows = [
            (what, f"{entries:,}", human_bytes(size), f"{entries / seconds:,.0f}", f"{size / seconds / 1e6:.1f}")
            for what, entries, size, seconds in self._rates
            if seconds > 0
        ]
        self._view.table("Rates", ("", "flights", "bytes", "flights/s", "MB/s"), rows)
        parts = ("journal", "ledgers", "index")
        sizes = [
            (bookie.bookie_id, *(human_bytes(_size(bookie.directory / part)) for part in parts))
            for bookie in self._cluster.bookies
        ]
        self._view.table("Bytes on disk", ("", "journal", "entry logs", "index"), sizes)
        self._view.table(
            f"Fragments: tallybook ledger info {closed.ledger_id}",
            ("fragment", "from flight", "on"),
            [
                (str(number), f"{fragment.first_entry_id:,}", ", ".join(fragment.bookies))
                for number, fragment in enumerate(closed.fragments, start=1)
            ],
        )
        for gap in closed.missed:
            self._view.detail(
                f"on record for repair: {gap.bookie_id} missed entries {gap.first_entry_id:,} to {gap.last_entry_id:,}"
            )

    # -- the writer process -----------------------------------------------------------

    @asynccontextmanager
    async def _writer(
        self, ledger_id: int, skip: int, *, linger_at: int = 0
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        command = [sys.executable, "-P", "-m", MODULE, "--metadata", self._cluster.metadata, "--ledger", str(ledger_id)]
        command += [
            "--flights",
            str(self._file),
            "--count",
            str(self._count),
            "--skip",
            str(skip),
            "--linger-at",
            str(linger_at),
            "--parent-pipe",
            str(self._cluster.life_pipe),
        ]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=[self._cluster.life_pipe],
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                signal_process(process, signal.SIGKILL)
            await process.wait()


async def _reports(process: asyncio.subprocess.Process) -> AsyncIterator[_Report]:
    """The reports of the writer, up to its last complete line."""
    if process.stdout is not None:
        async for line in process.stdout:
            if line.endswith(b"\n"):
                yield _Report(**json.loads(line))


async def _read(client: Client, ledgers: list[int]) -> AsyncIterator[list[bytes]]:
    for ledger_id in ledgers:
        reader = await client.open_ledger(ledger_id)
        if reader.last_add_confirmed == NO_ENTRY:
            continue
        async for entries in reader.read_batches(0, reader.last_add_confirmed):
            yield [entry.payload for entry in entries]


async def _source(file: Path, count: int) -> AsyncIterator[list[bytes]]:
    for lines in flights(file, count):
        yield lines


def _size(directory: Path) -> int:
    """Bytes on disk below ``directory``."""
    return sum(file.stat().st_blocks * 512 for file in directory.rglob("*") if file.is_file())

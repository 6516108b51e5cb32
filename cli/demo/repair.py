"""The last act of the demo: a bookie loses its disk, and the repair restores its copies.

The bookie is stopped, its directory is removed, and the same id is started with an empty directory. It is in limbo: it
answers UNKNOWN instead of ABSENT, because it does not know which entries it had. The repair copies what it lacks from
other bookies and ends the limbo. One entry is traced before, in between and after.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Mapping
from typing import Any, Final

from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.core.errors import BookieUnavailable, RequestTimeout
from tallybook.core.settings import RepairSettings
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.repair.ledger_walk import WalkFindings, all_ledgers
from tallybook.repair.service import RepairService
from tallybook.repair.status.check import CopyCheck
from tallybook.repair.status.entry_trace import BookieCopy, EntryTrace, trace_entry
from tallybook.repair.status.overview import overview
from tallybook.runtime.clock import Clock

from ..local.launcher import LocalBookie, LocalCluster
from ..progress import human_bytes
from .view import DemoOutput

_EAGER: Final = RepairSettings(interval_s=1, lease_s=2, check_period_s=0)
"""Settings for an auditor pass every second, so that the demo is short."""
_TIMEOUT_SECONDS: Final = 180.0
_POLL_SECONDS: Final = 0.25


class RepairAct:
    """Wipes the disk of one bookie, and waits for the repair."""

    def __init__(self, cluster: LocalCluster, view: DemoOutput, clock: Clock) -> None:
        self._cluster = cluster
        self._view = view
        self._clock = clock
        self._tasks = client_tasks("demo repair")
        self.result: dict[str, object] = {}

    async def run(self) -> bool:
        """Run the whole act; returns whether every copy is restored.

        Raises:
            RequestTimeout: it takes too long.
            TallybookError: the bookie, or the repair, failed.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                return await self._run()
        except TimeoutError:
            raise RequestTimeout(f"after {_TIMEOUT_SECONDS:.0f} s some copies are not back yet") from None
        finally:
            await self._tasks.close()

    async def _run(self) -> bool:
        async with Client(self._cluster.metadata) as client:
            ledger, entry_id = await _largest(client)
            before = await self._trace(client, ledger, entry_id, "one entry of the stream, and where its copies are")
            victim = next(each for each in self._cluster.bookies if each.bookie_id == before.copies[0].bookie_id)
        await self._lose_disk(victim)
        # A new client: the old one would first have to find its connections to the bookie broken.
        async with Client(self._cluster.metadata) as client:
            what = "the bookie has lost its disk and answers UNKNOWN, not ABSENT"
            between = await self._trace(client, ledger, entry_id, what)
            took, good = await self._repair(client, victim.bookie_id)
            after = await self._trace(client, ledger, entry_id, f"the copies are back, {took:.1f} s later")
        traces = {"before": before, "between": between, "after": after}
        self.result |= {"bookie_id": victim.bookie_id, "seconds": round(took, 1)}
        self.result |= {name: {copy.bookie_id: copy.verdict for copy in each.copies} for name, each in traces.items()}
        good = good and not before.problems and between.copies[0].verdict == "unknown" and not after.problems
        self.result["same"] = good and _checksums(before) == _checksums(after)
        if not self.result["same"]:
            self._view.problem(f"{victim.bookie_id} still lacks copies")
        return bool(self.result["same"])

    async def _lose_disk(self, bookie: LocalBookie) -> None:
        await self._cluster.stop_one(bookie)
        shutil.rmtree(bookie.directory)
        self._view.event(f"{bookie.bookie_id} was stopped, and its disk wiped")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "tallybook.cli", "bookie", "init", "--replace", "--id", bookie.bookie_id,
            "--data", str(bookie.directory), "--metadata", self._cluster.metadata,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, words = await process.communicate()
        if process.returncode:
            raise BookieUnavailable(f"{bookie.bookie_id} was given no new directory: {words.decode(errors='replace')}")
        await self._cluster.start()
        self._view.step("bookie init --replace gave it an empty directory; it runs again")

    async def _repair(self, client: Client, bookie_id: str) -> tuple[float, bool]:
        """Run the repair until the bookie is out of limbo; returns the seconds, and whether every copy is good."""
        began, service = self._clock.monotonic(), RepairService(client, _EAGER)
        running = self._tasks.spawn(service.run(), name="repair")
        totals = service.replicator.totals
        try:
            self._view.waiting("the repair is at work")
            while await _in_limbo(client, bookie_id):
                await self._clock.sleep(_POLL_SECONDS)
        finally:
            running.cancel()
        took = self._clock.monotonic() - began
        self._view.step(
            f"the repair copied {totals.batches:,} batches, {human_bytes(totals.copied_bytes)}, "
            f"of {totals.ledgers} ledger{'s' * (totals.ledgers != 1)}"
        )
        self.result |= {"batches": totals.batches, "bytes": totals.copied_bytes}
        check = CopyCheck(client.world.store, client.world.connections, read=True)
        ledgers = all_ledgers(client.world.store, WalkFindings())
        lacks = [lack async for found in check.check_all(ledgers) for lack in found.lacks]
        for lack in lacks[:5]:
            self._view.problem(f"{lack.bookie_id} lacks entries {lack.first} to {lack.last}: {lack.verdict}")
        if not lacks:
            self._view.step(
                f"every copy of {check.totals.ledgers} ledgers was read and verified, "
                f"{human_bytes(check.totals.read_bytes)} in all"
            )
        return took, not lacks

    async def _trace(self, client: Client, ledger: LedgerMetadata, entry_id: int, what: str) -> EntryTrace:
        found = await trace_entry(client.world, ledger.ledger_id, entry_id)
        self._view.step(f"{what}:")
        self._view.detail(f"tallybook trace {ledger.ledger_id} {entry_id}")
        for copy in found.copies:
            self._view.detail(_line(copy))
        return found


async def _largest(client: Client) -> tuple[LedgerMetadata, int]:
    """The closed ledger with the most entries that bookies still have, and an entry in its middle."""
    found: LedgerMetadata | None = None
    async for metadata in all_ledgers(client.world.store, WalkFindings()):
        held = metadata.closed and not metadata.copies_released and metadata.last_entry_id >= 0
        if held and (found is None or metadata.last_entry_id > found.last_entry_id):
            found = metadata
    if found is None:
        raise BookieUnavailable("no closed ledger has copies on bookies any more")
    return found, found.last_entry_id // 2


async def _in_limbo(client: Client, bookie_id: str) -> bool:
    """Whether the bookie may still lack entries."""
    bookies = (await overview(client.world)).bookies
    return any(each.bookie_id == bookie_id and (each.status is None or bool(each.limbo_ledgers)) for each in bookies)


def _line(copy: BookieCopy) -> str:
    """One copy as a short line."""
    if copy.trace is None or not copy.trace.places:
        return f"{copy.bookie_id}  {copy.verdict}"
    place, crc = copy.trace.places[-1], copy.trace.batch_crc
    where, _, _file = place.detail.partition(": ")
    return f"{copy.bookie_id}  {copy.verdict:8}  checksum {crc:08x}  {place.where}: {where}"


def _checksums(found: EntryTrace) -> Mapping[str, Any]:
    return {copy.bookie_id: copy.trace.batch_crc for copy in found.copies if copy.trace is not None}

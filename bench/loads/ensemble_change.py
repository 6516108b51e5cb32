"""Measures an ensemble change: a writer at a steady rate loses a bookie, which is killed or stopped.

    python -m tallybook.bench.loads.ensemble_change --metadata URI --ack-quorum 2 --pid BOOKIE=PID --pid ...

The load is an open loop: entries are appended when they are due, independent of the cluster. Three moments are noted::

    killed ----detection----> the writer reads the membership ----change----> first confirmation under the
                                                                              new ensemble

Settings determine the detection time; the change is work. If the remaining bookies form every ack quorum, entries are
confirmed during detection, which the longest gap shows.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Final

import typer

from tallybook.cli.measure.pacing import Pacer
from tallybook.client.client import Client
from tallybook.client.environment import open_world
from tallybook.client.ports import ClientWorld
from tallybook.client.writer.appends import AppendGroup
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import InvalidArgument, NotEnoughBookies, TallybookError, check
from tallybook.core.settings import ClientSettings
from tallybook.metadata.store import BookieInfo, Membership, MembershipWatch, Registration
from tallybook.runtime.rng import SeededRng

from ..equipment.programs import print_json_line
from ..gates import Figures

KILLED_POSITION: Final = 1
"""Ensemble position of the bookie to kill."""

_TURN_NS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """The load around the failure of a bookie.

    Args:
        rate: entries per second.
        before_seconds: steady load before the failure.
        after_seconds: load after the ensemble has changed.
        timeout_seconds: timeout of the ensemble change.
        hung: number of replacement candidates that hang from the failure on.
    """

    ack_quorum: int
    entry_bytes: int = 1024
    rate: float = 2000.0
    before_seconds: float = 3.0
    after_seconds: float = 2.0
    timeout_seconds: float = 30.0
    hung: int = 0

    def check(self) -> None:
        """Check the values.

        Raises:
            InvalidArgument: a value is out of range.
        """
        if not 1 <= self.ack_quorum <= 3:
            raise InvalidArgument(f"an ack quorum of {self.ack_quorum} of 3")
        if min(self.rate, self.before_seconds, self.after_seconds, self.timeout_seconds) <= 0:
            raise InvalidArgument("rate and times must be positive")
        if self.hung < 0:
            raise InvalidArgument(f"{self.hung} bookies that hang")


def figures_of(confirmed_ns: Sequence[int], killed_ns: int, wanted_ns: int, changed_ns: int) -> Figures:
    """The figures in milliseconds.

    Args:
        confirmed_ns: times of confirmations, ascending, from before the failure to after the change.
        changed_ns: time of the first confirmation under the new ensemble.
    """
    before_ns = [moment for moment in confirmed_ns if moment <= killed_ns]
    check(bool(before_ns), "entries are confirmed before the bookie is killed")
    later = [before_ns[-1], *(moment for moment in confirmed_ns if moment > killed_ns)]
    gap_ns = max(after - before for before, after in pairwise(later))
    return {
        "gap_ms": round(gap_ns / _NS_PER_MS, 3),
        "detection_ms": round((wanted_ns - killed_ns) / _NS_PER_MS, 3),
        "change_ms": round((changed_ns - wanted_ns) / _NS_PER_MS, 3),
    }


class RecordingMembership:
    """The membership of a client; records the first read of bookies after ``arm``."""

    def __init__(self, inner: Membership) -> None:
        self._inner = inner
        self._armed = False
        self.asked_ns = 0

    def arm(self) -> None:
        """Start recording."""
        self._armed = True

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """Live bookies by id."""
        if self._armed and not self.asked_ns:
            self.asked_ns = time.monotonic_ns()
        return await self._inner.bookies()

    async def register(self, info: BookieInfo) -> Registration:
        """See the port."""
        return await self._inner.register(info)

    def watch(self) -> MembershipWatch:
        """See the port."""
        return self._inner.watch()


async def measure_change(
    world: ClientWorld,
    plan: ChangePlan,
    kill: Callable[[str], None],
    settings: ClientSettings | None = None,
    *,
    hang: Callable[[str], None] | None = None,
) -> Figures:
    """Write a ledger, kill one of its bookies during the load, delete the ledger, and return the figures.

    Args:
        kill: kills or stops the bookie with this id.
        hang: stops the bookie with this id, for plans with ``hung``.

    Raises:
        InvalidArgument: the plan is invalid, or needs more bookies.
        TallybookError: the ledger could not be created, written or closed, or its ensemble did not change.
    """
    plan.check()
    membership = RecordingMembership(world.membership)
    async with Client(replace(world, membership=membership), settings) as client:
        ledger = await client.create_ledger(ack_quorum=plan.ack_quorum)
        members = ledger.metadata.last_fragment.bookies
        candidates = sorted(set(await world.membership.bookies()).difference(members))
        if plan.hung and (hang is None or plan.hung >= len(candidates)):
            raise InvalidArgument(f"{plan.hung} of {len(candidates)} candidates are to hang, and one is to be left")
        load = _SteadyLoad(ledger, plan)
        await load.run(lambda elapsed_s: elapsed_s >= plan.before_seconds)
        membership.arm()
        killed_ns = time.monotonic_ns()
        kill(members[KILLED_POSITION])
        for name in candidates[: plan.hung]:
            if hang is not None:
                hang(name)
        await load.run(lambda elapsed_s: bool(load.changed_ns) or elapsed_s >= plan.timeout_seconds)
        if not load.changed_ns:
            raise NotEnoughBookies(f"the bookie was not replaced within {plan.timeout_seconds} s")
        await load.run(lambda elapsed_s: elapsed_s >= plan.after_seconds)
        await ledger.close()
        await client.delete_ledger(ledger.id)
    return {
        "errors": load.errors,
        "rate": plan.rate,
        **figures_of(load.confirmed_ns, killed_ns, membership.asked_ns, load.changed_ns),
    }


class _SteadyLoad:
    """Appends at a fixed rate, in bursts every millisecond, and records each confirmation."""

    def __init__(self, ledger: LedgerWriter, plan: ChangePlan) -> None:
        self._ledger = ledger
        self._rate = plan.rate
        self._payload = SeededRng(1).token(plan.entry_bytes)
        self._fragments = len(ledger.metadata.fragments)
        self._first = ledger.metadata.last_fragment.bookies
        self._group: AppendGroup | None = None
        self.confirmed_ns = array("q")
        self.changed_ns = 0
        self.errors = 0

    async def run(self, over: Callable[[float], bool]) -> None:
        """Append until ``over`` is true for the seconds since the start of this call."""
        start = time.monotonic_ns()
        sent = 0
        with Pacer() as pacer:
            while not over((now := time.monotonic_ns() - start) / _NS_PER_S):
                due = int(now / _NS_PER_S * self._rate) - sent
                for _ in range(due):
                    self._append()
                sent += due
                await pacer.until(start + now + _TURN_NS)

    def _append(self) -> None:
        try:
            group = self._ledger.append_nowait(self._payload).group
        except TallybookError:
            self.errors += 1
            return
        if group is not self._group:
            self._group = group
            group.on_complete(self._settled)

    def _settled(self, group: AppendGroup) -> None:
        if group.error is not None:
            self.errors += group.entry_count
            return
        moment = time.monotonic_ns()
        self.confirmed_ns.append(moment)
        if not self.changed_ns and self._ledger.metadata.last_fragment.bookies != self._first:
            self.changed_ns = moment


def main(
    metadata: Annotated[str, typer.Option(help="URI of the metadata store.")],
    pid: Annotated[list[str], typer.Option(metavar="BOOKIE=PID", help="The process of a bookie; one for each.")],
    ack_quorum: Annotated[int, typer.Option(help="Copies that must be durable before an append is confirmed.")] = 2,
    before_seconds: Annotated[float, typer.Option(help="Load before the bookie is killed.")] = 3.0,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the bookie instead; it goes on at the end.")] = False,
    hung: Annotated[int, typer.Option(help="How many that could take its place are stopped with it.")] = 0,
) -> None:
    """Kill a bookie under a steady writer; print the figures in one line of JSON."""
    pids = {name: int(number) for name, number in (each.rsplit("=", 1) for each in pid)}
    plan = ChangePlan(ack_quorum, before_seconds=before_seconds, hung=hung)
    stopped: list[int] = []

    def kill(bookie_id: str) -> None:
        os.kill(pids[bookie_id], signal.SIGKILL)

    def hang(bookie_id: str) -> None:
        os.kill(pids[bookie_id], signal.SIGSTOP)
        stopped.append(pids[bookie_id])

    async def work() -> dict[str, Any]:
        world = await open_world(metadata, ClientSettings())
        return await measure_change(world, plan, hang if stop else kill, hang=hang)

    try:
        figures = asyncio.run(work())
    finally:
        for process in stopped:
            # Continue stopped bookies: a stopped process does not react to SIGTERM.
            os.kill(process, signal.SIGCONT)
    print_json_line(figures)


if __name__ == "__main__":
    typer.run(main)

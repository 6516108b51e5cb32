"""Liveness checks after healing: clients finish, and every operation a client may need works again (L0 to L11).

docs/project/simulation.md has the list, with the modules of those that are not here. Each check has
``LIVENESS_SECONDS``. A client that the nemesis left frozen finishes after it wakes up; its ledgers are closed without
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tallybook.core.ids import NO_ENTRY
from tallybook.metadata.ledger.model import LedgerState

from ..faults.slow_members import recover_beside_a_slow_member
from ..supervised_tasks import vital
from ..workload.ledgers import ClientProcess
from ..workload.repairers import finish_repair
from ..workload.simultaneous_appends import write_simultaneously
from ..workload.tiering_reader import read_across_release
from .archive_liveness import finish_archiving
from .scrub_complete import check_scrub_finds_damage
from .stream_liveness import end_streams, write_streams

if TYPE_CHECKING:
    from ..run import Universe

LIVENESS_SECONDS: Final = 60.0
FOLLOWED: Final = 3
"""Maximum number of open ledgers that are followed to their end after healing."""
AWAKE_SECONDS: Final = 700.0
"""Longer than any client stays frozen."""
TIERING_READERS_LATE: Final = "readers of the archive do not reach the end"
MAX_LEDGERS: Final = 100_000
"""More ledgers than any run has."""


async def await_bookies(universe: Universe) -> None:
    """Wait until every bookie serves and is registered (L0)."""

    def all_listed() -> bool:
        return set(universe.nodes) <= set(universe.metadata.shared.bookies)

    await universe.until(universe.all_serve, LIVENESS_SECONDS, "L0", "not every bookie came back")
    await universe.until(all_listed, LIVENESS_SECONDS, "L0", "not every bookie is registered again")


async def finish_clients(universe: Universe) -> None:
    """Let writers finish, close what they left open, and let readers reach the ends."""
    oracle, workload = universe.oracle, universe.workload
    if not universe.nemesis.struck and not universe.config.metadata_faults:
        oracle.expect(universe.history.count_confirmed() > 0, "L2", "no entry was confirmed in a run without faults")
    async with workload.extra_client("follower") as follower:
        following = _follow(universe, follower)
        workload.finish()
        await _write_on_all(universe)
        await _finish(universe)
        await recover_beside_a_slow_member(universe)
        await write_simultaneously(universe)
        await write_streams(universe)
        await _all(universe, "reader", "L5", "readers do not reach the end", following)
        await _all(universe, "historian", "L5", TIERING_READERS_LATE)
    async with read_across_release(universe):
        await _come_to_rest(universe)


async def _come_to_rest(universe: Universe) -> None:
    """Wait until offloaders, repair and garbage collection have no work left, also after frozen clients woke up."""
    oracle, workload = universe.oracle, universe.workload
    if not workload.asleep():
        await end_streams(universe)
    await finish_archiving(universe)
    if workload.asleep():
        oracle.mark("client: frozen until the end of the run")
        await universe.until(lambda: not workload.asleep(), AWAKE_SECONDS, "simulation", "a client does not wake up")
        await _finish(universe)
        await _all(universe, "reader", "L5", "readers do not reach the end")
        await _all(universe, "historian", "L5", TIERING_READERS_LATE)
        await end_streams(universe)
        await finish_archiving(universe)
    await check_scrub_finds_damage(universe)
    await finish_repair(universe)
    await _drop_garbage(universe)


async def _drop_garbage(universe: Universe) -> None:
    """Wait until undamaged bookies have no index rows of ledgers that were deleted, released or moved away (L4)."""
    oracle, clock, mended = universe.oracle, universe.world.clock, universe.repairing is not None
    deadline = clock.monotonic() + LIVENESS_SECONDS
    for node in universe.nodes.values():
        while node.bookie is not None and not node.damaged:
            index = node.bookie._parts.index  # noqa: SLF001 - no public way to get it
            held = await index.ledgers_with_rows(NO_ENTRY, MAX_LEDGERS)
            kept = [
                each
                for each in held
                if oracle.may_drop(each) or (mended and oracle.is_over_replicated(node.name, each))
            ]
            if not kept:
                break
            if clock.monotonic() > deadline:
                oracle.violated(
                    "L4",
                    f"{node.name} still has ledgers {kept}, which were deleted, released or moved to other bookies",
                )
                return
            await clock.sleep(0.5)


def _follow(universe: Universe, client: ClientProcess) -> Callable[[], bool]:
    """Start to follow some open ledgers; return a function that tells whether all were read to their ends."""
    workload, oracle = universe.workload, universe.oracle
    open_ones = [
        made
        for made in workload.ledgers
        if (known := oracle.ledgers.get(made.ledger_id)) is not None and known.metadata.state is LedgerState.OPEN
    ]
    tasks = [client.process.spawn(workload.follow(client, made)) for made in open_ones[-FOLLOWED:]]
    for task in tasks:
        vital(oracle, task)
    return lambda: all(task.done() for task in tasks)


async def _write_on_all(universe: Universe) -> None:
    """Let a new client write a ledger whose every entry needs the ack of every bookie (L2)."""
    async with universe.workload.extra_client("newcomer") as client:

        async def write() -> None:
            while not await universe.workload.write_on_all(client, len(universe.nodes)):
                await universe.world.clock.sleep(0.2)

        writing = client.process.spawn(write())
        vital(universe.oracle, writing)
        await universe.until(writing.done, LIVENESS_SECONDS, "L2", "no ledger can be written on all bookies")


async def _finish(universe: Universe) -> None:
    """Wait for all clients that are not frozen, and close every ledger (L1, L2, S11)."""
    await _all(universe, "writer", "L2", "writers make no progress")
    await _all(universe, "recoverer", "L1", "recoverers do not finish")
    for kind in ("producer", "subscriber", "keeper", "meddler"):
        await _all(universe, kind, "S11", f"{kind}s do not finish")
    async with universe.workload.extra_client("closer") as client:
        for made in universe.workload.ledgers:
            deadline = universe.world.clock.monotonic() + LIVENESS_SECONDS
            while not await universe.workload.recover(client, made):
                if universe.world.clock.monotonic() > deadline:
                    universe.oracle.violated("L1", f"ledger {made.ledger_id} cannot be closed")
                    return
                await universe.world.clock.sleep(0.2)


async def _all(
    universe: Universe, kind: str, invariant: str, detail: str, others: Callable[[], bool] = lambda: True
) -> None:
    """Wait until the clients of one kind are done and ``others()`` holds."""

    def done() -> bool:
        return not universe.workload.running(kind) and others()

    await universe.until(done, LIVENESS_SECONDS, invariant, detail)

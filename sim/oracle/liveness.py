"""After healing: what was begun comes to its end, and all that a client may want can be done (L0 to L11).

    L0   every bookie serves and is registered
    L2   writers whose ledger nobody takes from them confirm what they append now; a newcomer writes one on all bookies
    L1   recoverers come to an end, and every ledger can be closed
    L5   readers that follow a ledger, through all of this, see its end
    L8   a recovery beside one slow member takes a bounded time (``slow_members``)
    L10  what waits at a client is no silence of a bookie (``many_at_once``)
    L6   what is closed gets into the archive, where there is one (``settling``)
    L7   bookies that scrub know what is damaged (``scrubbed``)
    L3   closed ledgers get back all of their copies, where there is a repair (``repairing``)
    L9   and so do open ones, over a disk that was replaced (``open_ledgers``)
    L11  and one that its writer holds open stays its writer's (``held_ledger``)
    L4   bookies drop what was deleted, released to the archive, or given to others

Each of them has ``LIVENESS_SECONDS``. A client that the nemesis has left asleep does its part
after it has woken, and its ledgers are closed without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tallybook.core.ids import NO_ENTRY
from tallybook.metadata.model import LedgerState

from .halfway import halfway
from .many_at_once import write_many_at_once
from .repairing import mend
from .scrubbed import know_their_damage
from .settling import settle
from .slow_members import recover_beside_a_slow_member
from .stream_end import end_streams, write_streams
from .vital import vital
from .workload import ClientProcess

if TYPE_CHECKING:
    from .run import Universe

LIVENESS_SECONDS: Final = 60.0
FOLLOWED: Final = 3
"""How many of the ledgers that are open after healing are followed to their end, at most."""
AWAKE_SECONDS: Final = 700.0
"""Longer than anybody sleeps."""
HISTORIANS_LATE: Final = "readers of the archive do not reach the end"
MOST_LEDGERS: Final = 100_000
"""More than there are in any run."""


async def come_back(universe: Universe) -> None:
    """Every bookie serves, and is registered (L0)."""

    def all_listed() -> bool:
        return set(universe.nodes) <= set(universe.metadata.shared.bookies)

    await universe.until(universe.all_serve, LIVENESS_SECONDS, "L0", "not every bookie came back")
    await universe.until(all_listed, LIVENESS_SECONDS, "L0", "not every bookie is registered again")


async def bring_to_an_end(universe: Universe) -> None:
    """Writers finish, what they left open is closed, readers see all of it."""
    god, workload = universe.god, universe.workload
    if not universe.nemesis.struck and not universe.swarm.metadata_faults:
        god.expect(universe.history.count_confirmed() > 0, "L2", "nothing goes wrong, and nothing is written")
    async with workload.guest("follower") as follower:
        following = _follow(universe, follower)
        workload.finish()
        await _write_on_all(universe)
        await _finish(universe)
        await recover_beside_a_slow_member(universe)
        await write_many_at_once(universe)
        await write_streams(universe)
        await _all(universe, "reader", "L5", "readers do not reach the end", following)
        await _all(universe, "historian", "L5", HISTORIANS_LATE)
    async with halfway(universe):
        await _come_to_rest(universe)


async def _come_to_rest(universe: Universe) -> None:
    """Offloaders do all there is to do, clients that sleep wake up and end, and bookies let go of what may go."""
    god, workload = universe.god, universe.workload
    if not workload.asleep():
        await end_streams(universe)
    await settle(universe)
    if workload.asleep():
        god.mark("client: asleep until all was over")
        await universe.until(lambda: not workload.asleep(), AWAKE_SECONDS, "simulation", "a client does not wake up")
        await _finish(universe)
        await _all(universe, "reader", "L5", "readers do not reach the end")
        await _all(universe, "historian", "L5", HISTORIANS_LATE)
        await end_streams(universe)
        await settle(universe)
    await know_their_damage(universe)
    await mend(universe)
    await _drop_garbage(universe)


async def _drop_garbage(universe: Universe) -> None:
    """Bookies to whose disks nothing was done have no rows of ledgers that were deleted, released or given away."""
    god, clock, mended = universe.god, universe.world.clock, universe.repairing is not None
    deadline = clock.monotonic() + LIVENESS_SECONDS
    for node in universe.nodes.values():
        while node.bookie is not None and not node.damaged:
            index = node.bookie._parts.index  # noqa: SLF001 - nobody else asks a bookie for this
            held = await index.ledgers_with_rows(NO_ENTRY, MOST_LEDGERS)
            kept = [each for each in held if god.may_drop(each) or (mended and god.names_others(node.name, each))]
            if not kept:
                break
            if clock.monotonic() > deadline:
                god.violated(
                    "L4", f"{node.name} still has ledgers {kept}, which were deleted, released or given to others"
                )
                return
            await clock.sleep(0.5)


def _follow(universe: Universe, client: ClientProcess) -> Callable[[], bool]:
    """Begin to follow some of the ledgers that are open; says when all of them were read to their ends."""
    workload, god = universe.workload, universe.god
    open_ones = [
        made
        for made in workload.ledgers
        if (known := god.ledgers.get(made.ledger_id)) is not None and known.metadata.state is LedgerState.OPEN
    ]
    tasks = [client.process.spawn(workload.follow(client, made)) for made in open_ones[-FOLLOWED:]]
    for task in tasks:
        vital(god, task)
    return lambda: all(task.done() for task in tasks)


async def _write_on_all(universe: Universe) -> None:
    """A client that has met no fault writes a ledger of which every bookie has to take every entry."""
    async with universe.workload.guest("newcomer") as client:

        async def write() -> None:
            while not await universe.workload.write_on_all(client, len(universe.nodes)):
                await universe.world.clock.sleep(0.2)

        writing = client.process.spawn(write())
        vital(universe.god, writing)
        await universe.until(writing.done, LIVENESS_SECONDS, "L2", "no ledger can be written on all bookies")


async def _finish(universe: Universe) -> None:
    """Writers and recoverers that are awake come to an end, and every ledger is closed."""
    await _all(universe, "writer", "L2", "writers do not get on")
    await _all(universe, "recoverer", "L1", "recoverers do not come to an end")
    for kind in ("producer", "subscriber", "keeper", "meddler"):
        await _all(universe, kind, "S11", f"{kind}s do not come to an end")
    async with universe.workload.guest("closer") as client:
        for made in universe.workload.ledgers:
            deadline = universe.world.clock.monotonic() + LIVENESS_SECONDS
            while not await universe.workload.recover(client, made):
                if universe.world.clock.monotonic() > deadline:
                    universe.god.violated("L1", f"ledger {made.ledger_id} cannot be closed")
                    return
                await universe.world.clock.sleep(0.2)


async def _all(
    universe: Universe, kind: str, invariant: str, detail: str, others: Callable[[], bool] = lambda: True
) -> None:
    """Wait for the clients of one kind, and for others."""

    def done() -> bool:
        return not universe.workload.running(kind) and others()

    await universe.until(done, LIVENESS_SECONDS, invariant, detail)

"""The metadata store is replaced by an older copy while a simulated cluster is down, seed by seed.

A ledger never returns entries of another one with the same id; no id is assigned again once all bookies serve; ledgers
in the copy are complete; and bookies keep ledgers that the copy lacks until an operator approves. Planted bugs that
break this must be detected.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallybook.runtime.rng import Rng, SeededRng
from tallybook.sim.bugs.catalog import BUGS, planted
from tallybook.sim.checks.restored_store import Restoration
from tallybook.sim.configuration.run_configuration import MISSING_SECONDS, draw_configuration
from tallybook.sim.deterministic import World, run_seed
from tallybook.sim.faults.metadata_restore import copy_of
from tallybook.sim.oracle.oracle import InvariantBroken
from tallybook.sim.run import Universe

from .parts import checked_universe

SEEDS = 3
NOTICED_WITHIN = 40
"""Seeds within which each bug must be noticed."""

CALM = replace(
    draw_configuration(SeededRng("calm")),
    bookies=3,
    faults=(),
    net_delay_ms=1.0,
    disk_ms=0.2,
    metadata_faults=0.0,
    session_seconds=2.0,
    archive=None,
    streams=None,
    repair=None,
    restored_after=None,
)


async def restore(universe: Universe, rng: Rng) -> None:
    """Write a few ledgers, copy the store, write a few more, and restore the copy.

    Raises:
        InvariantBroken: an invariant was violated.
    """
    for node in universe.nodes.values():
        node.start_in(3 * rng.random())
    await universe.until(universe.all_serve, 60.0, "boot", "not every bookie came up")
    known = await write(universe, rng, b"known", closes=1.0)
    copy = copy_of(universe.metadata)
    forgotten: dict[int, list[bytes]] = {}
    for _ in range(rng.randint(1, 3)):
        # Each client takes ids of its own.
        forgotten |= await write(universe, rng, b"forgotten", closes=0.5)
    restoration = Restoration(
        universe,
        rng,
        known=known,
        forgotten=forgotten,
        entries=lambda ledger_id: set(known[ledger_id]),
        pause_seconds=MISSING_SECONDS,
    )
    await restoration.run(copy)


async def write(universe: Universe, rng: Rng, text: bytes, *, closes: float) -> dict[int, list[bytes]]:
    """Ledgers with a few entries, some of them never closed."""
    ledgers = {}
    async with universe.workload.extra_client("writer") as writing:
        for _ in range(rng.randint(1, 4)):
            writer = await writing.client.create_ledger()
            entries = [text + b" %d/%d" % (writer.id, number) for number in range(rng.randint(1, 5))]
            await writer.append_many(entries)
            ledgers[writer.id] = entries
            if rng.random() < closes:
                await writer.close()
    return ledgers


def run_scenario(seed: int) -> None:
    async def run(world: World) -> None:
        async with checked_universe(world, CALM) as universe:
            await restore(universe, world.rng.fork("restored"))

    run_seed(seed, run, deadline_seconds=3_000_000)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_ledger_is_served_the_entries_of_another_one_and_nothing_is_dropped(seed: int) -> None:
    run_scenario(seed)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "bug",
    ["identity of a ledger ignored", "id counter not raised", "store never compared", "deletion of any identity"],
)
def test_a_bug_that_breaks_it_is_detected(bug: str) -> None:
    with planted(bug):
        found = next(filter(None, map(failure_of, range(NOTICED_WITHIN))), "")
    assert BUGS[bug].shown_by(found.partition(":")[0]), found or f"not noticed within {NOTICED_WITHIN} seeds"


def failure_of(seed: int) -> str:
    """The violation of a seed's run; empty if it passes."""
    try:
        run_scenario(seed)
    except InvariantBroken as error:
        return str(error)
    return ""

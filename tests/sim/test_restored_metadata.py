"""The metadata store goes back to an older copy of itself while all of a simulated cluster is down, seed by seed.

What must hold: a ledger is never served the entries of another one of the same id; no id is handed out again once
all bookies serve; ledgers that the copy knows are whole; and bookies keep those that it does not know, until an
operator approves. Bugs that break this on purpose have to be noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tallybook.bookie.ledger_state import Ledger
from tallybook.bookie.store_check import StoreCheck
from tallybook.client.client import Client
from tallybook.core.errors import Conflict, LedgerExists, NoSuchLedger, OtherLedger, PeerError, TallybookError
from tallybook.metadata.memory import MemoryStore
from tallybook.runtime.deterministic import World, run_seed
from tallybook.runtime.rng import Rng, SeededRng
from tallybook.sim.god import InvariantBroken
from tallybook.sim.metadata_copy import copy_of, put_back
from tallybook.sim.run import Universe
from tallybook.sim.swarm import MISSING_SECONDS, swarm_of

SEEDS = 6
NOTICED_WITHIN = 40
"""Seeds within which each bug must be noticed."""

CALM = replace(
    swarm_of(SeededRng("calm")),
    bookies=3,
    faults=(),
    net_delay_ms=1.0,
    disk_ms=0.2,
    metadata_faults=0.0,
    session_seconds=2.0,
    archive=None,
    streams=None,
    repair=None,
)


class Restored:
    """One cluster, before its metadata went back and after."""

    def __init__(self, universe: Universe, rng: Rng) -> None:
        self.universe = universe
        self.world = universe.world
        self.rng = rng
        self.known: dict[int, list[bytes]] = {}
        self.forgotten: dict[int, list[bytes]] = {}
        self.new: dict[int, list[bytes]] = {}

    async def run(self) -> None:
        """All of it.

        Raises:
            InvariantBroken: something was seen that must not be.
        """
        await self.start()
        await self.write(self.known, self.rng.randint(1, 4), b"known", closes=1.0)
        copy = copy_of(self.universe.metadata)
        for _ in range(self.rng.randint(1, 3)):
            # Each client takes ids of its own.
            await self.write(self.forgotten, self.rng.randint(1, 4), b"forgotten", closes=0.5)
        self.kill()
        put_back(self.universe.metadata, copy)
        self.universe.god.forget(self.forgotten)
        await self.start(early=self.use_the_first_ids)
        await self.no_id_again()
        await self.read_all()
        await self.collect()

    async def start(self, early: Callable[[], Any] | None = None) -> None:
        """Start the bookies, in any order; do something as soon as the first one serves."""
        nodes = list(self.universe.nodes.values())
        for node in nodes:
            node.start_in(3 * self.rng.random())
        while not any(node.ready for node in nodes):
            await self.world.clock.sleep(0.01)
        if early is not None:
            await early()
        await self.universe.until(self.universe.all_serve, 60.0, "boot", "not every bookie came up")

    def kill(self) -> None:
        """All bookies at once, some by a power cut."""
        for node in self.universe.nodes.values():
            (node.lose_power if self.rng.random() < 0.3 else node.kill)(1e6)

    async def write(
        self, ledgers: dict[int, list[bytes]], count: int, text: bytes, *, closes: float, e: int = 3
    ) -> None:
        """Ledgers with a few entries, of writers of which some never close."""
        async with self.universe.workload.guest("writer") as writing:
            for _ in range(count):
                writer = await writing.client.create_ledger(ensemble=e, write_quorum=e, ack_quorum=min(2, e))
                entries = [text + b" %d/%d" % (writer.id, number) for number in range(self.rng.randint(1, 5))]
                await writer.append_many(entries)
                ledgers[writer.id] = entries
                if self.rng.random() < closes:
                    await writer.close()

    async def use_the_first_ids(self) -> None:
        """A client is there as soon as one bookie is. It took ids before the store went back, and still has them."""
        taken = iter(self.forgotten)
        async with self.universe.workload.guest("early") as early:
            for _ in range(self.rng.randint(0, 6)):
                try:
                    ledger_id = next(taken, None) if self.rng.random() < 0.5 else None
                    writer = await early.client.create_ledger(
                        ensemble=1, write_quorum=1, ack_quorum=1, ledger_id=ledger_id
                    )  # fmt: skip
                    self.new[writer.id] = []
                    if self.rng.random() < 0.7:
                        entry = b"new %d" % writer.id
                        await writer.append(entry)
                        self.new[writer.id] = [entry]
                        await writer.close()
                except (LedgerExists, OtherLedger, NoSuchLedger, PeerError):
                    continue
                except Conflict as error:
                    self.universe.god.violated("I15", f"a bookie takes a ledger for another one: {error.message}")

    async def no_id_again(self) -> None:
        """All bookies serve: from now on ids are new."""
        later: dict[int, list[bytes]] = {}
        try:
            await self.write(later, 3, b"later", closes=0.5)
        except (LedgerExists, OtherLedger, NoSuchLedger) as error:
            self.universe.god.violated("ids", f"an id is handed out again while all bookies serve: {error.message}")
        again = sorted(set(later) & set(self.forgotten))
        self.universe.god.expect(not again, "ids", f"ids {again} are handed out again while all bookies serve")
        self.new |= later

    async def read_all(self) -> None:
        """Every ledger by its own entries; what was never acked may lack, what was may not."""
        async with self.universe.workload.guest("reader") as reading:
            for ledger_id, entries in (*self.known.items(), *self.new.items()):
                await self._read(reading.client, ledger_id, entries)
        self.universe.god.raise_violations()

    async def _read(self, client: Client, ledger_id: int, entries: list[bytes]) -> None:
        god = self.universe.god
        try:
            reader = await client.open_ledger(ledger_id)
            last = reader.last_add_confirmed
            found = [entry.payload async for entry in reader.read(0, last)] if last >= 0 else []
        except OtherLedger:
            god.expect(not entries, "I1", f"ledger {ledger_id} has acked entries, and is said to be another one")
            return
        except TallybookError as error:
            god.violated("I15", f"ledger {ledger_id} cannot be read: {error!r}")
            return
        strange = [entry for entry in found if entry not in entries and not entry.startswith(b"new")]
        god.expect(not strange, "I15", f"ledger {ledger_id} is served entries of another one: {strange[:1]}")
        god.expect(found[: len(entries)] == entries, "I1", f"ledger {ledger_id} lacks entries that were acked")

    async def collect(self) -> None:
        """Round after round: nothing goes that the store has forgotten."""
        god, before = self.universe.god, await self._held()
        for _ in range(3):
            for node in self.universe.nodes.values():
                await node.bookie.collect()
            await self.world.clock.sleep(MISSING_SECONDS)
        for name, held in (await self._held()).items():
            lost = sorted(before[name] - held)
            god.expect(not lost, "I16", f"{name} has dropped ledgers {lost}, which the store has forgotten")
        god.raise_violations()

    async def _held(self) -> dict[str, set[int]]:
        """The ledgers that each bookie holds, of those that the store has forgotten."""
        found = {}
        for name, node in self.universe.nodes.items():
            page = await node.bookie.held_ledgers(-1, 1000)
            found[name] = {each.ledger_id for each in page.ledgers if each.ledger_id in self.forgotten}
        return found


def live_through(seed: int) -> None:
    async def run(world: World) -> None:
        universe = Universe(world, CALM)
        try:
            await Restored(universe, world.rng.fork("restored")).run()
            universe.god.raise_violations()
        finally:
            await universe.workload.close()
            for node in universe.nodes.values():
                if node.process is not None:
                    node.process.kill()
            universe.around.bury()

    run_seed(seed, run, deadline_seconds=3_000_000)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_ledger_is_served_the_entries_of_another_one_and_nothing_is_dropped(seed: int) -> None:
    live_through(seed)


def _any_identity(_ledger: Ledger, _identity: bytes) -> bool:
    return True


async def _not_raised(_store: MemoryStore, _at_least: int) -> None:
    """Whoever calls believes that it was."""


async def _not_compared(check: StoreCheck) -> list[int]:
    return []


BUGS: dict[str, tuple[type, str, Any]] = {
    "a bookie does not compare the identity": (Ledger, "is_identity", _any_identity),
    "the counter is not raised": (MemoryStore, "raise_id_counter", _not_raised),
    "a bookie does not look at what it holds": (
        StoreCheck,
        "_held_from",
        lambda _check, _counter: _not_compared(_check),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_that_breaks_it_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BUGS[bug])
    for seed in range(NOTICED_WITHIN):
        try:
            live_through(seed)
        except InvariantBroken:
            return
    pytest.fail(f"not noticed within {NOTICED_WITHIN} seeds")

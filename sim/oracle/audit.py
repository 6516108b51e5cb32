"""The last phase of a run: everything is read and compared with what was promised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallybook.core.errors import NoSuchLedger, TallybookError

from .god import KnownLedger
from .history import Reading, check
from .repairing import problem_of
from .twice import restarts_alike
from .workload import ClientProcess, MadeLedger

if TYPE_CHECKING:
    from .run import Universe


async def audit(universe: Universe) -> None:
    """Read every ledger as a client would, and every copy as nobody else can."""
    await _read_as_client(universe)
    await _read_copies(universe)
    for violation in check(universe.history):
        universe.god.violated(violation.invariant, f"ledger {violation.ledger_id}: {violation.detail}")
    await restarts_alike(universe)


async def _read_as_client(universe: Universe) -> None:
    workload = universe.workload
    async with workload.guest("auditor") as client:
        for made in workload.ledgers:
            try:
                await _read_entry(universe, client, made, await workload.read(client, made))
            except NoSuchLedger:
                there = made.ledger_id in universe.god.ledgers
                universe.god.expect(not there, "I1", f"ledger {made.ledger_id} is not found")
            except TallybookError as error:
                universe.god.violated("I1", f"ledger {made.ledger_id} cannot be read: {error!r}")


async def _read_entry(universe: Universe, client: ClientProcess, made: MadeLedger, reading: Reading) -> None:
    """One entry by itself is the one that the whole ledger showed."""
    entries = reading.ranges[-1]
    if not entries:
        return
    entry_id, payload = entries[client.rng.randint(0, len(entries) - 1)]
    reader = await client.client.open_ledger(made.ledger_id, password=made.password)
    alone = (await reader.read_entry(entry_id)).payload
    universe.god.expect(alone == payload, "I9", f"ledger {made.ledger_id}: entry {entry_id} alone is {alone[:40]!r}")


async def _read_copies(universe: Universe) -> None:
    """Every entry of a closed ledger has an ack quorum of good copies (I10); all of them, where there was a repair."""
    god = universe.god
    for ledger_id, known in list(god.ledgers.items()):
        metadata, entry_id = known.metadata, 0
        await _look_at_fences(universe, ledger_id, known)
        while entry_id <= metadata.last_entry_id:
            batch = known.batches.get(entry_id)
            if batch is None:
                god.violated("I10", f"no bookie ever acked entry {entry_id} of ledger {ledger_id}")
                break
            good = harmed = 0
            for member in metadata.bookies_of(entry_id):
                bookie, acked_by = universe.nodes[member].bookie, batch.ackers.get(member)
                if bookie is None or acked_by is None:
                    continue
                if bookie.incarnation.directory_uuid != acked_by.directory_uuid:
                    harmed += god.harms.is_lost(acked_by.directory_uuid)
                elif await god.recheck(member, bookie, ledger_id, entry_id):
                    good += 1
                else:
                    harmed += 1  # on purpose, or it was a violation
            enough = good + harmed >= metadata.quorum.ack_quorum
            god.expect(enough, "I10", f"entry {entry_id} of ledger {ledger_id} has {good} good copies")
            entry_id += batch.count
        if universe.repairing is not None and (problem := await problem_of(universe, known)) is not None:
            god.violated("I10", f"ledger {ledger_id}, after its repair: {problem}")


async def _look_at_fences(universe: Universe, ledger_id: int, known: KnownLedger) -> None:
    """Every bookie still knows what it fenced (I13)."""
    for bookie_id, uuid in known.fenced_by.items():
        bookie = universe.nodes[bookie_id].bookie
        if bookie is not None and bookie.incarnation.directory_uuid == uuid:
            await universe.god.recheck_fence(bookie_id, bookie, ledger_id)

"""The audit, last phase of every run: reads everything and compares it with what was acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallybook.core.errors import NoSuchLedger, TallybookError

from ..oracle.oracle import KnownLedger
from ..workload.history import Reading, check
from ..workload.ledgers import ClientProcess, CreatedLedger
from ..workload.repairers import problem_of
from .restart_twice import check_restart_idempotence

if TYPE_CHECKING:
    from ..run import Universe


async def audit(universe: Universe) -> None:
    """Read every ledger through a client, and every copy directly at its bookie."""
    await _read_as_client(universe)
    await _read_copies(universe)
    for violation in check(universe.history):
        universe.oracle.violated(violation.invariant, f"ledger {violation.ledger_id}: {violation.detail}")
    await check_restart_idempotence(universe)


async def _read_as_client(universe: Universe) -> None:
    workload = universe.workload
    async with workload.extra_client("auditor") as client:
        for made in workload.ledgers:
            try:
                await _read_entry(universe, client, made, await workload.read(client, made))
            except NoSuchLedger:
                there = made.ledger_id in universe.oracle.ledgers
                universe.oracle.expect(not there, "I1", f"ledger {made.ledger_id} is not found")
            except TallybookError as error:
                universe.oracle.violated("I1", f"ledger {made.ledger_id} cannot be read: {error!r}")


async def _read_entry(universe: Universe, client: ClientProcess, made: CreatedLedger, reading: Reading) -> None:
    """Check that reading one entry alone gives the same payload as reading the whole ledger (I9)."""
    entries = reading.ranges[-1]
    if not entries:
        return
    entry_id, payload = entries[client.rng.randint(0, len(entries) - 1)]
    reader = await client.client.open_ledger(made.ledger_id, password=made.password)
    alone = (await reader.read_entry(entry_id)).payload
    universe.oracle.expect(alone == payload, "I9", f"ledger {made.ledger_id}: entry {entry_id} alone is {alone[:40]!r}")


async def _read_copies(universe: Universe) -> None:
    """Every entry of a closed ledger has an ack quorum of good copies (I10); all copies are good if a repair ran."""
    oracle = universe.oracle
    for ledger_id, known in list(oracle.ledgers.items()):
        metadata, entry_id = known.metadata, 0
        await _check_fences(universe, ledger_id, known)
        while entry_id <= metadata.last_entry_id:
            batch = known.batches.get(entry_id)
            if batch is None:
                oracle.violated("I10", f"no bookie ever acked entry {entry_id} of ledger {ledger_id}")
                break
            good = harmed = 0
            for member in metadata.bookies_of(entry_id):
                bookie, acked_by = universe.nodes[member].bookie, batch.ackers.get(member)
                if bookie is None or acked_by is None:
                    continue
                if bookie.incarnation.directory_uuid != acked_by.directory_uuid:
                    harmed += oracle.injected_damage.is_lost(acked_by.directory_uuid)
                elif await oracle.recheck(member, bookie, ledger_id, entry_id):
                    good += 1
                else:
                    harmed += 1  # damaged by a fault, or ``recheck`` recorded a violation
            enough = good + harmed >= metadata.quorum.ack_quorum
            oracle.expect(enough, "I10", f"entry {entry_id} of ledger {ledger_id} has {good} good copies")
            entry_id += batch.count
        if universe.repairing is not None and (problem := await problem_of(universe, known)) is not None:
            oracle.violated("I10", f"ledger {ledger_id}, after its repair: {problem}")


async def _check_fences(universe: Universe, ledger_id: int, known: KnownLedger) -> None:
    """Check that every bookie still knows what it fenced (I13)."""
    for bookie_id, uuid in known.fenced_by.items():
        bookie = universe.nodes[bookie_id].bookie
        if bookie is not None and bookie.incarnation.directory_uuid == uuid:
            await universe.oracle.recheck_fence(bookie_id, bookie, ledger_id)

"""Open ledgers over replaced disks: with a repair, none of them stays below its number of good copies (L9).

After healing, an owner leaves a ledger open, all members of which hold all of it. One of them then comes back with an
empty disk, where the run may damage one more bookie. The repair has to recover the ledger: nobody copies what grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tallybook.core.errors import PeerError, StorageError
from tallybook.metadata.model import LedgerMetadata

from .god import AckedBatch, KnownLedger
from .workload import ClientProcess, MadeLedger

if TYPE_CHECKING:
    from .run import Universe

BATCHES: Final = 2
ATTEMPTS: Final = 4
"""Ledgers that are left until one of the bookies that may be damaged is a member."""
CLOSING_SECONDS: Final = 60.0


async def leave_over_a_replaced_disk(universe: Universe) -> MadeLedger | None:
    """Leave a ledger open and replace the disk of one of its members; return that ledger."""
    if len(universe.nodes) < 3 or universe.swarm.passwords or universe.swarm.hmac:
        return None  # nobody but its users recovers a ledger with a password
    async with universe.workload.guest("deserter") as owner:
        for _ in range(ATTEMPTS):
            if universe.nemesis.damageable() is None:
                return None
            left = await universe.workload.leave(owner, BATCHES, _hear_all)
            if left is None:
                return None
            made, members = left
            if universe.nemesis.replace_disk_of(members):
                universe.god.mark("nemesis: a disk is replaced under an open ledger")
                return made
            await _close(universe, owner, made)
    return None


async def end_left(universe: Universe, left: MadeLedger) -> None:
    """Recover a ledger that was left, once it is mended, for who reads it to its end.

    Its writer may have changed the ensemble before it left: the repair then copies, and has no reason to end it.
    """
    async with universe.workload.guest("heir") as client:
        await _close(universe, client, left)


async def _close(universe: Universe, client: ClientProcess, made: MadeLedger) -> None:
    """Recover a ledger that the repair has no reason to recover."""
    deadline = universe.world.clock.monotonic() + CLOSING_SECONDS
    while not await universe.workload.recover(client, made):
        if universe.world.clock.monotonic() > deadline:
            universe.god.violated("L1", f"ledger {made.ledger_id} cannot be closed")
            return
        await universe.world.clock.sleep(0.2)


async def _hear_all(_members: Sequence[str]) -> None:
    """Every ack reaches the writer."""


async def problem_of_open(universe: Universe, known: KnownLedger) -> str | None:
    """What lacks of a ledger that is not closed, at those that it names."""
    metadata = known.metadata
    if metadata.closed or metadata.key_verifier:
        return None
    for member in sorted({name for fragment in metadata.fragments for name in fragment.bookies}):
        bookie = universe.nodes[member].bookie
        if bookie is None:
            return f"{member} does not serve"
        try:
            if (await bookie.held(metadata.ledger_id, 0, 0)).limbo:
                return f"is open, and {member} may lack its copies"
        except (PeerError, StorageError) as error:
            return f"is open, and {member} does not say what it holds: {error!r}"
    problem = await missing_copy(universe, known, known.confirmable)
    return problem and f"is open, and {problem}"


async def missing_copy(universe: Universe, known: KnownLedger, last: int) -> str | None:
    """The first copy up to an entry that a member of its write set does not give as it was acked.

    Where an open ledger grows, a member is asked for what it has acked: its writer may have ended once an ack quorum
    had an entry, and until the ledger is recovered nobody can know that the others never got it.
    """
    metadata, entry_id = known.metadata, 0
    while entry_id <= last and (batch := known.batches.get(entry_id)) is not None:
        grows = not metadata.closed and entry_id >= metadata.last_fragment.first_entry_id
        for member in metadata.bookies_of(entry_id):
            if (grows and member not in batch.ackers) or fits_nowhere(universe, metadata, member, entry_id, batch):
                continue
            bookie = universe.nodes[member].bookie
            if bookie is None:
                return f"{member} does not serve"
            try:
                answer = await bookie.read_batches(metadata.ledger_id, entry_id, entry_id, 1)
            except (PeerError, StorageError) as error:
                return f"{member} gives no entry {entry_id}: {error!r}"
            if not batch.is_body(answer.batches[0]):
                return f"{member} has another entry {entry_id}"
        entry_id += batch.count
    return None


def fits_nowhere(universe: Universe, metadata: LedgerMetadata, member: str, entry_id: int, batch: AckedBatch) -> bool:
    """Whether neither a member nor any bookie that could take its place takes a batch that others hold."""
    named = metadata.fragment_of(entry_id).bookies
    able = [name for name in universe.nodes if name == member or name not in named]
    serving = [bookie for name in able if (bookie := universe.nodes[name].bookie) is not None]
    return all(bookie.max_batch_bytes < batch.size_bytes for bookie in serving)

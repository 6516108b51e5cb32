"""Checks that a repair recovers open ledgers with a replaced disk: all keep their number of good copies (L9).

After healing, a writer abandons a ledger whose members all hold all of it. One member then gets an empty disk, if the
run may damage another bookie. The repair must recover the ledger, because it copies closed ledgers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tallybook.core.errors import PeerError, StorageError
from tallybook.metadata.ledger.model import LedgerMetadata

from ..oracle.oracle import AckedBatch, KnownLedger
from .ledgers import ClientProcess, CreatedLedger

if TYPE_CHECKING:
    from ..run import Universe

BATCHES: Final = 2
ATTEMPTS: Final = 4
"""Maximum number of ledgers to abandon until one has a member that may be damaged."""
CLOSING_SECONDS: Final = 60.0


async def leave_over_a_replaced_disk(universe: Universe) -> CreatedLedger | None:
    """Abandon an open ledger and replace the disk of one of its members; return the ledger, or ``None``."""
    if len(universe.nodes) < 3 or universe.config.passwords or universe.config.hmac:
        return None  # a repair cannot recover a ledger with a password
    async with universe.workload.extra_client("deserter") as owner:
        for _ in range(ATTEMPTS):
            if universe.nemesis.damageable() is None:
                return None
            left = await universe.workload.abandon_unacked(owner, BATCHES, _hear_all)
            if left is None:
                return None
            made, members = left
            if universe.nemesis.replace_disk_of(members):
                universe.oracle.mark("nemesis: a disk is replaced under an open ledger")
                return made
            await _close(universe, owner, made)
    return None


async def end_left(universe: Universe, left: CreatedLedger) -> None:
    """Recover the abandoned ledger after its repair, so that readers see its end.

    If its writer had changed the ensemble before, the repair copies entries and has no reason to close the ledger.
    """
    async with universe.workload.extra_client("heir") as client:
        await _close(universe, client, left)


async def _close(universe: Universe, client: ClientProcess, made: CreatedLedger) -> None:
    """Recover a ledger that the repair need not recover."""
    deadline = universe.world.clock.monotonic() + CLOSING_SECONDS
    while not await universe.workload.recover(client, made):
        if universe.world.clock.monotonic() > deadline:
            universe.oracle.violated("L1", f"ledger {made.ledger_id} cannot be closed")
            return
        await universe.world.clock.sleep(0.2)


async def _hear_all(_members: Sequence[str]) -> None:
    """Suppress no acks."""


async def problem_of_open(universe: Universe, known: KnownLedger) -> str | None:
    """The first problem of an open ledger's copies at its bookies; ``None`` if there is none."""
    metadata = known.metadata
    if metadata.closed or metadata.key_verifier:
        return None
    for member in sorted(metadata.named_bookies):
        bookie = universe.nodes[member].bookie
        if bookie is None:
            return f"{member} does not serve"
        try:
            if (await bookie.held(metadata.ledger_id, 0, 0)).limbo:
                return f"is open, and {member} may lack its copies"
        except (PeerError, StorageError) as error:
            return f"is open, and {member} does not report its inventory: {error!r}"
    problem = await missing_copy(universe, known, known.confirmable)
    return problem and f"is open, and {problem}"


async def missing_copy(universe: Universe, known: KnownLedger, last: int) -> str | None:
    """The first missing or wrong copy of an entry up to ``last`` at a member of its write set; ``None`` if all are
    good.

    In the last fragment of an open ledger a member needs only the entries that it acked: the writer may have died when
    an ack quorum had an entry, and only a recovery can find out that the others never got it.
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
    """Whether a batch is too large for a member and for every bookie that could replace it."""
    named = metadata.fragment_of(entry_id).bookies
    able = [name for name in universe.nodes if name == member or name not in named]
    serving = [bookie for name in able if (bookie := universe.nodes[name].bookie) is not None]
    return all(bookie.max_batch_bytes < batch.size_bytes for bookie in serving)

"""Why ledgers still name a bookie that is being drained, for operators.

Each costs what a check of its copies costs, so only those are asked about that are told by their ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tallybook.client.ports import ClientWorld
from tallybook.core.errors import DamagedFile, NewerFormat, NoSuchLedger, PeerError, StorageError
from tallybook.metadata.model import Fragment, LedgerMetadata
from tallybook.metadata.store import BookieMode

from .check import CopyCheck, damaged_of, nowhere
from .open_lacking import ACCEPT_LOSS, can_be_recovered
from .pause import paused_since
from .service import STALE_SECONDS, age_of, repair_status


async def why_still_named(world: ClientWorld, bookie_id: str, ledger_ids: Iterable[int]) -> dict[int, str]:
    """What keeps each of these ledgers at a bookie, in a phrase.

    Raises:
        MetadataUnavailable: the store does not answer.
        DamagedFile, NewerFormat: what the auditor wrote down cannot be read.
    """
    known = await world.membership.bookies()
    writable = {name for name, info in known.items() if info.mode is BookieMode.WRITABLE and name != bookie_id}
    otherwise = await _why_nothing_moves(world)
    found: dict[int, str] = {}
    for ledger_id in ledger_ids:
        try:
            metadata = (await world.store.read_ledger(ledger_id)).value
        except NoSuchLedger:
            continue
        except (DamagedFile, NewerFormat) as error:
            found[ledger_id] = f"its metadata cannot be read: {error.message}"
            continue
        fragments = [each for each in metadata.fragments if bookie_id in each.bookies]
        if fragments:
            found[ledger_id] = await _why(world, metadata, bookie_id, fragments, writable) or otherwise
    return found


async def _why(
    world: ClientWorld, metadata: LedgerMetadata, bookie_id: str, fragments: list[Fragment], writable: Collection[str]
) -> str:
    check = await CopyCheck(world.store, world.connections).one(metadata)
    for lack in check.lacks:
        at = metadata.fragment_of(lack.first)
        if at in fragments and nowhere(check, metadata, lack.first):
            return f"no good copy of entries {lack.first} to {lack.last} is left: restore one, or delete the ledger"
    crowded = next((each for each in fragments if not set(writable) - set(each.bookies)), None)
    if crowded is not None:
        others = ", ".join(name for name in crowded.bookies if name != bookie_id)
        return f"no bookie besides {others or bookie_id} takes writes, so that none can take its place: add one"
    if metadata.closed or metadata.last_fragment not in fragments:
        return ""
    has_writer, without = await _members_say(world, metadata)
    if not has_writer and not can_be_recovered(metadata, without):
        return f"it is open, and too few bookies have what they held of it: {ACCEPT_LOSS}"
    if metadata.key_verifier:
        return "it is open and has a password: close it, or use 'ledger recover LEDGER --password-file FILE'"
    told = "it is open and its writer is connected" if has_writer else "it is open"
    return f"{told}: the repair ends it after its open_grace_s"


async def _members_say(world: ClientWorld, metadata: LedgerMetadata) -> tuple[bool, set[str]]:
    """Whether a member of the last fragment says that a writer is connected; and which of them do not answer, lost
    their data, or know a damaged copy of that fragment."""
    first, has_writer, without = metadata.last_fragment.first_entry_id, False, set[str]()
    for name in metadata.last_fragment.bookies:
        try:
            connection = await world.connections.get(name)
            held = await connection.held(metadata.ledger_id, first, first, identity=metadata.identity)
            damaged = await damaged_of(connection, metadata.ledger_id)
        except (PeerError, StorageError, NoSuchLedger):
            without.add(name)
            continue
        has_writer = has_writer or bool(held.writer)
        if held.limbo or any(each.last >= first for each in damaged):
            without.add(name)
    return has_writer, without


async def _why_nothing_moves(world: ClientWorld) -> str:
    """Why ledgers that could be moved are not, yet."""
    if await paused_since(world.store) is not None:
        return "the repair is paused: 'cluster audit --resume'"
    age_s = age_of(await repair_status(world.store), world.clock)
    if age_s is None or age_s >= STALE_SECONDS:
        return "no auditor is at work: is 'tallybook repair run' running?"
    return "it waits to be copied"

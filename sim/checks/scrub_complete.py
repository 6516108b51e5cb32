"""Scrub check after healing: a bookie that scrubs knows every damaged batch (L7).

Few runs still have undetected damage at this point, so one more batch is damaged, at a bookie that may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tallybook.bookie.bookie import Bookie
from tallybook.bookie.storage.location import IndexRow
from tallybook.core.errors import EntryCorrupt, EntryUnknown
from tallybook.core.ids import NO_ENTRY
from tallybook.core.limits import SECTOR_BYTES

from ..configuration.run_configuration import pick

if TYPE_CHECKING:
    from ..run import Universe

SCRUB_SECONDS: Final = 60.0
"""Many scrub periods of any run."""
POLL_SECONDS: Final = 0.5
MAX_ROWS: Final = 100_000
"""More rows than any bookie of a run has."""


async def check_scrub_finds_damage(universe: Universe) -> None:
    """Damage one batch and wait until every bookie that scrubs has all of its damage on its damage list."""
    if not universe.config.scrub_period_s:
        return
    await _damage_a_batch(universe)
    clock = universe.world.clock
    deadline = clock.monotonic() + SCRUB_SECONDS
    for node in universe.nodes.values():
        while node.bookie is not None and node.damaged and (unknown := await _unknown_damage(node.bookie)):
            if clock.monotonic() > deadline:
                universe.oracle.violated("L7", f"the scrub of {node.name} did not find that {unknown} is damaged")
                return
            await clock.sleep(POLL_SECONDS)


async def _damage_a_batch(universe: Universe) -> None:
    node = universe.nemesis.damageable()
    if node is None or node.bookie is None:
        return
    rows = await _rows(node.bookie)
    if rows:
        row = pick(universe.world.rng.fork("damage to be found"), rows)
        at = row.location.offset + row.location.size // 2
        path = node.bookie._parts.logs._directories.path_of(row.location.log_id)  # noqa: SLF001 - it may be on any disk
        node.damage(path, at // SECTOR_BYTES, at // SECTOR_BYTES)
        node.disk.rot.flip_bit(path, at)
        universe.oracle.mark("scrub: a batch was damaged for it to be found")


async def _rows(bookie: Bookie) -> list[IndexRow]:
    """All index rows of a bookie."""
    # Read from the index: a client read would put a damaged batch on the damage list.
    return await bookie._parts.index.rows_after(NO_ENTRY, NO_ENTRY, MAX_ROWS)  # noqa: SLF001


async def _unknown_damage(bookie: Bookie) -> str:
    """A damaged batch that is not on the bookie's damage list; empty if there is none."""
    parts = bookie._parts  # noqa: SLF001 - as above
    rows = await _rows(bookie)
    listed = {each[:2] for each in parts.damage.page((NO_ENTRY, NO_ENTRY), MAX_ROWS)}
    for row in rows:
        if (row.ledger_id, row.first_entry_id) not in listed:
            try:
                await parts.logs.read_many([row])
            except (EntryCorrupt, EntryUnknown):
                return f"entry {row.first_entry_id} of ledger {row.ledger_id}"
    return ""

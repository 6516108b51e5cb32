"""What every process may hold at most: looked at now and then (I20), with the journal's mark (I14)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tallybook.bookie.adds import MAX_WAITING_ADDS
from tallybook.bookie.journal.superblock import SLOT_BYTES, SLOT_COUNT, decode_slot, newest
from tallybook.bookie.journal.superblock_file import FILE_NAME
from tallybook.core.limits import MAX_BATCH_BYTES

if TYPE_CHECKING:
    from .node import BookieNode
    from .run import Universe

MAX_TASKS: Final = 4_000
"""Tasks of the whole simulation."""


def look_at_budgets(universe: Universe) -> None:
    """Write down whatever holds more than it may."""
    god = universe.god
    for node in universe.nodes.values():
        if node.bookie is None:
            continue
        stats, storage = node.bookie.stats(), node.settings.storage
        admission = node.settings.admission
        cache = stats["write_cache_bytes"]
        god.expect(cache <= storage.write_cache_bytes + 4096, "I20", f"{node.name} caches {cache} bytes")
        inflight = stats["inflight_bytes"]
        god.expect(
            inflight <= admission.max_inflight_bytes + MAX_BATCH_BYTES, "I20", f"{node.name} has {inflight} in flight"
        )
        god.expect(stats["adds_waiting"] <= MAX_WAITING_ADDS, "I20", f"{node.name}: {stats['adds_waiting']} adds wait")
        _look_at_mark(universe, node)
    for client in universe.workload.processes.values():
        budget = client.client._budget  # noqa: SLF001 - nobody but its owner looks at it otherwise
        taken, limit = budget.taken_bytes, budget.limit_bytes
        god.expect(taken <= limit + MAX_BATCH_BYTES, "I20", f"{client.name} holds {taken} bytes of {limit}")
    tasks = len(universe.world.loop.living_tasks())
    god.expect(tasks <= MAX_TASKS, "I20", f"{tasks} tasks")


def _look_at_mark(universe: Universe, node: BookieNode) -> None:
    """The journal forgets what lies below its mark, so the mark must not go back (I14)."""
    if node.bookie is None:
        return
    life = node.bookie.incarnation
    harm = universe.god.harms.of(life.directory_uuid)
    if harm is not None and harm.journal_boot:
        return
    data = node.disk.peek(f"{node.settings.data_directory}/journal/{FILE_NAME}")
    facts = newest(tuple(decode_slot(data[at * SLOT_BYTES :][:SLOT_BYTES]) for at in range(SLOT_COUNT)))
    if facts is not None:
        universe.god.marked(node.name, life.directory_uuid, facts.trim)

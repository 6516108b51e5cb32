"""What every process may hold at most: looked at now and then (I20), with the journal's mark (I14)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tallybook.bookie.adds import MAX_WAITING_ADDS
from tallybook.core.limits import MAX_BATCH_BYTES

if TYPE_CHECKING:
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
    tasks = len(universe.world.loop.living_tasks())
    god.expect(tasks <= MAX_TASKS, "I20", f"{tasks} tasks")

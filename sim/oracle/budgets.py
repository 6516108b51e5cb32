"""What every process may hold at most: looked at now and then (I20), with the journals' marks (I14)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tallybook.bookie.admission import RECOVERY_SHARE
from tallybook.bookie.journal.superblock import SLOT_BYTES, SLOT_COUNT, decode_slot, newest
from tallybook.bookie.journal.superblock_file import FILE_NAME
from tallybook.bookie.storage.write_cache import BATCH_OVERHEAD_BYTES

if TYPE_CHECKING:
    from .node import BookieNode
    from .run import Universe

TASKS_PER_PROCESS: Final = 50
"""On an average over all processes there have been; those of a dead one stay, and never run again."""
TASKS_PER_LINK: Final = 15
"""Between a client and a bookie. With streams, a repair or ensembles of all bookies, most speak to all of them."""


def look_at_budgets(universe: Universe, tasks_per_process: int = TASKS_PER_PROCESS) -> None:
    """Write down whatever holds more than it may."""
    god = universe.god
    for node in universe.nodes.values():
        if node.bookie is None:
            continue
        stats, most = node.bookie.stats(), node.settings
        cache = stats["write_cache_bytes"]
        god.expect(cache <= most.storage.write_cache_bytes, "I20", f"{node.name} caches {cache} bytes")
        inflight, limit = stats["inflight_bytes"], int(most.admission.max_inflight_bytes)
        god.expect(inflight <= limit, "I20", f"{node.name} has {inflight} bytes in flight, {limit} are allowed")
        recovery, limit = stats["recovery_inflight_bytes"], limit // RECOVERY_SHARE
        god.expect(
            recovery <= max(limit, universe.swarm.add_bytes), "I20", f"{node.name} has {recovery} bytes of recoveries"
        )
        # Whatever waits counts as in flight.
        waiting = stats["adds_waiting"]
        god.expect(waiting * BATCH_OVERHEAD_BYTES <= inflight + recovery, "I20", f"{node.name}: {waiting} adds wait")
        _look_at_mark(universe, node)
    for client in universe.workload.processes.values():
        budget = client.client._budget  # noqa: SLF001 - nobody but its owner looks at it otherwise
        taken, limit = budget.taken_bytes, int(budget.limit_bytes)
        god.expect(taken <= limit + universe.swarm.add_bytes, "I20", f"{client.name} holds {taken} bytes of {limit}")
    # How many the simulated users have is their own affair.
    tasks = sum(not task.get_name().endswith(" main") for task in universe.world.loop.living_tasks())
    processes = len(universe.around.gates)
    on_all = any(ensemble == len(universe.nodes) for ensemble, *_ in universe.swarm.quorums)
    speak_to_all = on_all or universe.streaming is not None or universe.repairing is not None
    links = len(universe.workload.processes) * len(universe.nodes) if speak_to_all else 0
    allowed = tasks_per_process * processes + TASKS_PER_LINK * links
    god.expect(tasks <= allowed, "I20", f"{tasks} tasks of {processes} processes")


def _look_at_mark(universe: Universe, node: BookieNode) -> None:
    """A journal forgets what lies below its mark, so the mark must not go back (I14)."""
    if node.bookie is None:
        return
    life = node.bookie.incarnation
    harm = universe.god.harms.of(life.directory_uuid)
    if harm is not None and harm.journal_boot:
        return
    for directory in node.settings.journal_directories or (f"{node.settings.data_directory}/journal",):
        data = node.disk.peek(f"{directory}/{FILE_NAME}")
        facts = newest(tuple(decode_slot(data[at * SLOT_BYTES :][:SLOT_BYTES]) for at in range(SLOT_COUNT)))
        if facts is not None:
            universe.god.marked(node.name, life.directory_uuid, directory, facts.trim)

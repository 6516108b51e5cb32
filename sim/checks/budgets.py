"""Checks memory and task limits of every process now and then (I20), and the trim marks of journals (I14)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tallybook.bookie.journal.superblock import SLOT_BYTES, SLOT_COUNT, decode_slot, newest
from tallybook.bookie.journal.superblock_file import FILE_NAME
from tallybook.bookie.storage.write_cache import BATCH_OVERHEAD_BYTES
from tallybook.bookie.write.admission import RECOVERY_SHARE

if TYPE_CHECKING:
    from ..cluster.bookie_node import BookieNode
    from ..run import Universe

TASKS_PER_PROCESS: Final = 50
"""Limit for the average over all processes of the run; tasks of a dead process stay, but never run again."""
TASKS_PER_LINK: Final = 15
"""Additional tasks per client and bookie, in runs where most clients talk to all bookies."""


def check_budgets(universe: Universe, tasks_per_process: int = TASKS_PER_PROCESS) -> None:
    """Record a violation for every process that exceeds a limit."""
    oracle = universe.oracle
    for node in universe.nodes.values():
        if node.bookie is None:
            continue
        stats, settings = node.bookie.stats(), node.settings
        cache = stats["write_cache_bytes"]
        oracle.expect(cache <= settings.storage.write_cache_bytes, "I20", f"{node.name} caches {cache} bytes")
        inflight, limit = stats["inflight_bytes"], int(settings.admission.max_inflight_bytes)
        oracle.expect(inflight <= limit, "I20", f"{node.name} has {inflight} bytes in flight, {limit} are allowed")
        recovery, limit = stats["recovery_inflight_bytes"], limit // RECOVERY_SHARE
        oracle.expect(
            recovery <= max(limit, universe.config.add_bytes), "I20", f"{node.name} has {recovery} bytes of recoveries"
        )
        # Adds that wait count as in flight.
        waiting = stats["adds_waiting"]
        oracle.expect(waiting * BATCH_OVERHEAD_BYTES <= inflight + recovery, "I20", f"{node.name}: {waiting} adds wait")
        _check_mark(universe, node)
    for client in universe.workload.processes.values():
        budget = client.client._budget  # noqa: SLF001 - no public way to get it
        taken, limit = budget.taken_bytes, int(budget.limit_bytes)
        oracle.expect(
            taken <= limit + universe.config.add_bytes, "I20", f"{client.name} holds {taken} bytes of {limit}"
        )
    # Tasks of the simulated applications ("main") do not count.
    tasks = sum(not task.get_name().endswith(" main") for task in universe.world.loop.living_tasks())
    processes = len(universe.env.gates)
    on_all = any(ensemble == len(universe.nodes) for ensemble, *_ in universe.config.quorums)
    speak_to_all = on_all or universe.streaming is not None or universe.repairing is not None
    links = len(universe.workload.processes) * len(universe.nodes) if speak_to_all else 0
    allowed = tasks_per_process * processes + TASKS_PER_LINK * links
    oracle.expect(tasks <= allowed, "I20", f"{tasks} tasks of {processes} processes")


def _check_mark(universe: Universe, node: BookieNode) -> None:
    """Check that a journal's trim mark does not go back: records below it may be gone (I14)."""
    if node.bookie is None:
        return
    life = node.bookie.incarnation
    injected = universe.oracle.injected_damage.of(life.directory_uuid)
    if injected is not None and injected.journal_boot:
        return
    for directory in node.settings.journal_directories or (f"{node.settings.data_directory}/journal",):
        data = node.disk.peek(f"{directory}/{FILE_NAME}")
        facts = newest(tuple(decode_slot(data[at * SLOT_BYTES :][:SLOT_BYTES]) for at in range(SLOT_COUNT)))
        if facts is not None:
            universe.oracle.trimmed(node.name, life.directory_uuid, directory, facts.trim)

"""Very many small ledgers in one bookie: its memory does not grow with them."""

from tallybook.bench.loads.many_ledgers import KEPT_ONE_IN, STEPS, run_step, settings_of
from tallybook.bookie.process import assembly
from tallybook.bookie.storage.entry_log import logs as entry_log
from tallybook.core.limits import KIB

LEDGERS = 2_000
DROPPED = LEDGERS - LEDGERS // KEPT_ONE_IN
MOST_IN_MEMORY = 300
FULL_LEDGERS = 500
BUFFER_BATCHES = 250
"""More do not fit one buffer of the write cache."""


async def test_what_a_bookie_holds_in_memory_does_not_grow_with_its_ledgers(tmp_path, monkeypatch):
    monkeypatch.setattr(assembly, "MAX_IDLE_LEDGERS", MOST_IN_MEMORY)
    monkeypatch.setattr(entry_log, "FULL_LEDGERS", FULL_LEDGERS)
    settings = settings_of(tmp_path)
    storage = settings.storage.model_copy(update={"write_cache_bytes": 256 * KIB})
    collection = settings.collection.model_copy(update={"compact_index_after": DROPPED})
    settings = settings.model_copy(update={"storage": storage, "collection": collection})
    found = {step: await run_step(step, tmp_path, LEDGERS, settings) for step in STEPS}
    assert [found[step]["ledgers_in_memory"] for step in STEPS] == [MOST_IN_MEMORY, 0, MOST_IN_MEMORY]
    assert found["fill"]["entry_logs"] >= LEDGERS / (FULL_LEDGERS + BUFFER_BATCHES)
    assert [found[step]["ledgers_dropped_total"] for step in STEPS] == [0, 0, DROPPED]
    assert [found[step]["index_compactions_total"] for step in STEPS] == [0, 0, 1]

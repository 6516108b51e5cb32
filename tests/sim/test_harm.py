"""What was damaged on purpose excuses the loss of just that, and of nothing that came after."""

from __future__ import annotations

from typing import Any

import pytest

from tallybook.bookie.bookie import Bookie
from tallybook.bookie.storage.location import Location
from tallybook.core.answers import Incarnation
from tallybook.core.errors import EntryCorrupt
from tallybook.sim.harm import Harms
from tallybook.sim.one import run_quietly
from tallybook.sim.swarm import swarm_of_seed

LIFE = Incarnation("uuid", 3)
LATER = Incarnation("uuid", 4)
NEXT = Incarnation("another uuid", 1)
BATCH = (1, 12)
STORED = Location(log_id=7, offset=1000, size=100, entry_count=1)
"""In sectors 1 and 2."""


@pytest.fixture
def harms() -> Harms:
    return Harms()


def test_nothing_excuses_a_bookie_to_which_nothing_was_done(harms: Harms) -> None:
    assert not harms.explain(LIFE, BATCH, STORED)
    assert not harms.explain(LIFE, BATCH, None)
    assert harms.bookies() == []


def test_a_lost_directory_excuses_all_that_it_acked_and_nothing_that_the_next_one_acked(harms: Harms) -> None:
    harms.lose("b0", "uuid")
    assert harms.explain(LIFE, BATCH, None)
    assert harms.is_lost("uuid")
    assert not harms.explain(NEXT, BATCH, None)
    assert not harms.is_lost("another uuid")
    assert harms.bookies() == ["b0"]


@pytest.mark.parametrize(("sector", "hit"), [(0, False), (1, True), (2, True), (3, False)])
def test_a_damaged_sector_of_an_entry_log_excuses_the_batches_in_it(harms: Harms, sector: int, hit: bool) -> None:
    harms.damage("b0", LIFE, "/data/bookie/ledgers/entrylog-0000000000000007.log", sector, sector)
    assert harms.explain(LATER, BATCH, STORED) is hit
    assert not harms.explain(LATER, BATCH, STORED._replace(log_id=8))
    assert not harms.explain(LIFE, BATCH, None), "what was not stored yet is in the journal"


def test_a_batch_of_a_damaged_log_that_an_index_made_anew_does_not_know_is_excused(harms: Harms) -> None:
    log, index = "/data/bookie/ledgers/entrylog-0000000000000007.log", "/data/bookie/index/changes.log"
    harms.damage("b0", LIFE, log, 1, 1, [BATCH])
    assert not harms.explain(LIFE, BATCH, None), "the index still knows where it lies"
    harms.damage("b0", LIFE, index, 3, 3)
    assert harms.explain(LIFE, BATCH, None)
    assert not harms.explain(LIFE, (1, 13), None), "it lay in another log"
    assert not harms.explain(LIFE, BATCH, STORED._replace(log_id=8)), "it was given back since"


def test_a_damaged_journal_excuses_what_stood_nowhere_else_by_then(harms: Harms) -> None:
    harms.damage("b0", LIFE, "/data/bookie/journal/segment-1", 0, 0)
    assert harms.explain(LIFE, BATCH, None)
    assert not harms.explain(LATER, BATCH, None)
    assert not harms.explain(LIFE, BATCH, STORED)


def test_a_refusal_to_start_must_name_what_was_damaged(harms: Harms) -> None:
    harms.damage("b0", LIFE, "/data/bookie/index/changes.log", 0, 0)
    harm = harms.of("uuid")
    assert harm is not None
    assert harm.explains_refusal("the index /data/bookie/index/changes.log is damaged at offset 0")
    assert not harm.explains_refusal("/data/bookie/journal/superblock is damaged")


def test_a_bookie_that_was_replaced_and_gives_nothing_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Bookie.read_batches

    async def read_batches(bookie: Bookie, *question: int) -> Any:
        if bookie._parts.table.limbo.events:  # it took the place of another one
            raise EntryCorrupt("it never gives anything back")
        return await right(bookie, *question)

    monkeypatch.setattr(Bookie, "read_batches", read_batches)
    seeds = [seed for seed in range(200) if swarm_of_seed(seed).theme == "losses"]
    failure = next(filter(None, (run_quietly(seed).failure for seed in seeds)), "")
    assert failure.startswith("InvariantBroken: I12")

"""Injected damage excuses the loss of exactly the damaged data, and of nothing later."""

from __future__ import annotations

from typing import Any

import pytest

from tallybook.bookie.read.read_path import ReadPath
from tallybook.bookie.storage.location import Location
from tallybook.core.answers import Incarnation
from tallybook.core.errors import EntryCorrupt
from tallybook.sim.configuration.run_configuration import configuration_of_seed
from tallybook.sim.one_seed import run_quietly
from tallybook.sim.oracle.injected_damage import InjectedDamageLog

LIFE = Incarnation("uuid", 3)
LATER = Incarnation("uuid", 4)
NEXT = Incarnation("another uuid", 1)
BATCH = (1, 12)
STORED = Location(log_id=7, offset=1000, size=100, entry_count=1)
"""In sectors 1 and 2."""


@pytest.fixture
def injected_damage() -> InjectedDamageLog:
    return InjectedDamageLog()


def test_nothing_excuses_a_bookie_to_which_nothing_was_done(injected_damage: InjectedDamageLog) -> None:
    assert not injected_damage.explain(LIFE, BATCH, STORED)
    assert not injected_damage.explain(LIFE, BATCH, None)
    assert injected_damage.bookies() == []


def test_a_lost_directory_excuses_all_that_it_acked_and_nothing_that_the_next_one_acked(
    injected_damage: InjectedDamageLog,
) -> None:
    injected_damage.lose("b0", "uuid")
    assert injected_damage.explain(LIFE, BATCH, None)
    assert injected_damage.is_lost("uuid")
    assert not injected_damage.explain(NEXT, BATCH, None)
    assert not injected_damage.is_lost("another uuid")
    assert injected_damage.bookies() == ["b0"]


@pytest.mark.parametrize(("sector", "hit"), [(0, False), (1, True), (2, True), (3, False)])
def test_a_damaged_sector_of_an_entry_log_excuses_the_batches_in_it(
    injected_damage: InjectedDamageLog, sector: int, hit: bool
) -> None:
    injected_damage.damage("b0", LIFE, "/data/bookie/ledgers/entrylog-0000000000000007.log", sector, sector)
    assert injected_damage.explain(LATER, BATCH, STORED) is hit
    assert not injected_damage.explain(LATER, BATCH, STORED._replace(log_id=8))
    assert not injected_damage.explain(LIFE, BATCH, None), "what was not stored yet is in the journal"


def test_a_batch_of_a_damaged_log_that_an_index_made_anew_does_not_know_is_excused(
    injected_damage: InjectedDamageLog,
) -> None:
    log, index = "/data/bookie/ledgers/entrylog-0000000000000007.log", "/data/bookie/index/changes.log"
    injected_damage.damage("b0", LIFE, log, 1, 1, [BATCH])
    assert not injected_damage.explain(LIFE, BATCH, None), "the index still knows where it lies"
    injected_damage.damage("b0", LIFE, index, 3, 3)
    assert injected_damage.explain(LIFE, BATCH, None)
    assert not injected_damage.explain(LIFE, (1, 13), None), "it lay in another log"
    assert not injected_damage.explain(LIFE, BATCH, STORED._replace(log_id=8)), "it was given back since"


def test_a_damaged_journal_excuses_what_stood_nowhere_else_by_then(injected_damage: InjectedDamageLog) -> None:
    injected_damage.damage("b0", LIFE, "/data/bookie/journal/segment-1", 0, 0)
    assert injected_damage.explain(LIFE, BATCH, None)
    assert not injected_damage.explain(LATER, BATCH, None)
    assert not injected_damage.explain(LIFE, BATCH, STORED)


def test_a_refusal_to_start_must_name_the_damage(injected_damage: InjectedDamageLog) -> None:
    injected_damage.damage("b0", LIFE, "/data/bookie/index/changes.log", 0, 0)
    injected = injected_damage.of("uuid")
    assert injected is not None
    assert injected.explains_refusal("the index /data/bookie/index/changes.log is damaged at offset 0")
    assert not injected.explains_refusal("/data/bookie/journal/superblock is damaged")


def test_a_bookie_that_was_replaced_and_gives_nothing_back_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ReadPath.read

    async def read(reads: ReadPath, *question: int, **how: bool) -> Any:
        if reads._table.limbo.events:  # it took the place of another one
            raise EntryCorrupt("it never gives anything back")
        return await right(reads, *question, **how)

    monkeypatch.setattr(ReadPath, "read", read)
    seeds = [seed for seed in range(200) if configuration_of_seed(seed).fault_mix == "losses"]
    failure = next(filter(None, (run_quietly(seed).failure for seed in seeds)), "")
    assert failure.startswith("InvariantBroken: I12")

"""Exhaustive search of small worlds: the state machines of writer and recovery with every order of messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallybook.client.recovery.machine import Close
from tallybook.client.writer.machine import WriterMachine
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import LedgerMetadata, LedgerState
from tallybook.sim.model import BrokenWorld, Model, ModelLimits, explore, world

TWO_RECOVERIES_OF_TWO_BOOKIES = ModelLimits(Quorum(2, 2, 2), batches=1, recoverers=2, losses=0, late_answers=False)
SMALL_ENOUGH = {
    "a lost message": ModelLimits(batches=1, recoverers=1, losses=1, late_answers=False),
    "a spare": ModelLimits(batches=1, recoverers=1, losses=0, replacements=1),
    "one bookie": ModelLimits(Quorum(1, 1, 1), batches=2, recoverers=2, losses=1),
    "two recoveries of two bookies": TWO_RECOVERIES_OF_TWO_BOOKIES,
}
LARGE = {
    "two recoveries of three bookies": ModelLimits(batches=1, recoverers=2, losses=0, late_answers=False),
    "a lost message and a spare": ModelLimits(batches=1, recoverers=1, losses=1, replacements=1),
}
WORLDS = [
    *(pytest.param(limits, id=name) for name, limits in SMALL_ENOUGH.items()),
    *(pytest.param(limits, id=name, marks=pytest.mark.nightly) for name, limits in LARGE.items()),
]


@pytest.mark.parametrize("limits", WORLDS)
def test_no_world_that_can_be_reached_is_broken(limits: ModelLimits) -> None:
    assert explore(Model(limits)).closed


def test_f01_recovery_reads_that_do_not_fence_are_found_to_lose_a_confirmed_entry() -> None:
    with pytest.raises(BrokenWorld, match="I2: entry 0 is confirmed, and the ledger ends at -1") as caught:
        explore(Model(ModelLimits(batches=1, recoverers=1, losses=1, late_answers=False, reads_fence=False)))
    assert "begins: recoverer 0" in str(caught.value)


def test_a_recovery_that_believes_one_absent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quorum, "absent", lambda _quorum, positions, _entry_id: len(positions) >= 1)
    with pytest.raises(BrokenWorld, match="I2"):
        explore(Model(ModelLimits(batches=1, recoverers=1, losses=0, late_answers=False)))


def test_a_recovery_that_closes_a_closed_ledger_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = world.closed_at

    def again(known: LedgerMetadata, end: Close, fresh: LedgerMetadata) -> LedgerMetadata:
        return right(known, end, replace(fresh, state=LedgerState.IN_RECOVERY, last_entry_id=-1, length=0))

    monkeypatch.setattr(world, "closed_at", again)
    with pytest.raises(BrokenWorld, match="I3: a closed ledger changed"):
        explore(Model(TWO_RECOVERIES_OF_TWO_BOOKIES))


def test_a_writer_that_confirms_with_one_ack_too_few_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = WriterMachine.acked

    def eager(machine: WriterMachine, position: int, first: int, bookie_id: str) -> list[object]:
        batch = machine._batches.get(first)
        if batch is not None:
            batch.acked.add((position + 1) % 3)
        return original(machine, position, first, bookie_id)

    monkeypatch.setattr(WriterMachine, "acked", eager)
    with pytest.raises(BrokenWorld, match="I10"):
        explore(Model(ModelLimits(batches=1, recoverers=0, losses=0)))

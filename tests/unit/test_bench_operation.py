"""The benchmarks of operation: what their arithmetic says, without a cluster."""

from typing import Any

import pytest

from tallybook.bench.operation.fairness import SLOT_NS, jain_index, window_seconds, within
from tallybook.bench.operation.gates import GATES, PARTS
from tallybook.bench.operation.overload import MODEST_RATE, Window, growth, turn_of
from tallybook.bench.pages import verdict
from tallybook.core.errors import InvalidArgument

TWO_SECONDS = Window(10 * SLOT_NS, 30 * SLOT_NS)


def member(confirmed: int, *, refused: int = 0, errors: dict[str, int] | None = None) -> dict[str, Any]:
    """What a client says, all of whose confirmations fell into one slot of the window."""
    return {"slots": {"12": confirmed}, "refused": {"12": refused}, "errors": errors or {}}


def test_every_gate_of_operation_is_on_another_figure_and_of_a_part_that_can_be_switched_off():
    assert len({gate.figure for gate in GATES}) == len(GATES)
    assert {gate.workload for gate in GATES} == set(PARTS)
    assert all(verdict(gate, {}).startswith("MISSING") for gate in GATES)


def test_an_even_share_is_one_and_one_that_has_all_is_one_of_all():
    assert jain_index([7, 7, 7, 7]) == 1
    assert jain_index([9, 0, 0, 0]) == 0.25
    assert jain_index([1, 2, 3]) == pytest.approx(36 / (3 * 14))


def test_the_fairness_of_nothing_is_no_figure():
    with pytest.raises(InvalidArgument, match="nobody got anything"):
        jain_index([0, 0])


def test_only_slots_that_lie_wholly_in_a_window_count():
    slots = {0: 1, 1: 10, 2: 100, 3: 1000}
    assert within(slots, SLOT_NS, 3 * SLOT_NS) == 110
    assert within(slots, SLOT_NS + 1, 3 * SLOT_NS + 1) == 100
    assert window_seconds(SLOT_NS + 1, 3 * SLOT_NS + 1) == pytest.approx(0.1)


def test_a_window_without_a_whole_slot_is_no_time():
    with pytest.raises(InvalidArgument, match="shorter than a slot"):
        window_seconds(SLOT_NS + 1, 2 * SLOT_NS)


def test_a_turn_counts_confirmations_within_the_window_only():
    crowd = [member(100), {"slots": {"12": 100, "9": 5_000, "30": 5_000}, "refused": {}, "errors": {}}]
    found = turn_of(crowd, member(200), TWO_SECONDS, rate=1000.0, memory={})
    assert found.goodput == 100
    assert found.jain == 1
    assert found.modest_part == 200 / (2 * MODEST_RATE)


def test_a_client_that_starves_shows_in_the_index_and_one_with_an_error_in_the_errors():
    crowd = [member(100, refused=500), member(0, refused=1000, errors={"NotEnoughBookies": 3})]
    found = turn_of(crowd, member(1), TWO_SECONDS, rate=1000.0, memory={})
    assert found.jain == 0.5
    assert found.errors == 3
    assert found.refused_part == 0.75


def test_memory_that_goes_up_and_down_has_not_grown_and_the_bookie_that_grows_counts():
    assert growth([{"b1": [2, 4]}, {"b1": [4, 2]}]) == 1
    assert growth([{"b1": [2, 2], "b2": [4, 4]}, {"b1": [2, 2], "b2": [4, 8]}]) == 1.5

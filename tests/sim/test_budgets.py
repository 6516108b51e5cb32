"""Whatever holds more than it may is noticed (I20): the bounds are near enough to be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count, islice
from typing import Any

import pytest

from tallybook.bookie.admission import Admission
from tallybook.bookie.bookie import Bookie
from tallybook.client.budget import ByteBudget
from tallybook.sim.one import run_quietly
from tallybook.sim.swarm import Swarm, swarm_of_seed

SEEDS = 4


def first_failure(fits: Callable[[Swarm], bool]) -> str:
    """Of the first seeds whose run is of this shape."""
    seeds = islice((seed for seed in count(1) if fits(swarm_of_seed(seed))), SEEDS)
    return next(filter(None, (run_quietly(seed).failure for seed in seeds)), "")


def test_a_bookie_that_takes_whatever_comes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Admission._ordinary_refusal

    def refusal(door: Admission, size: int, dirty_ledgers: int, beside: bool) -> Any:
        found = right(door, size, dirty_ledgers, beside)
        return None if found is not None and found.reason == "bytes in flight" else found

    monkeypatch.setattr(Admission, "_ordinary_refusal", refusal)
    assert "bytes in flight" in first_failure(lambda swarm: swarm.writers * swarm.in_flight * swarm.burst >= 144)


def test_a_client_that_appends_without_a_bound_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByteBudget, "_fits", lambda *_: True)
    failure = first_failure(lambda swarm: swarm.pending_bytes < swarm.burst * swarm.entry_bytes)
    assert failure.startswith("InvariantBroken: I20: writer")
    assert "holds" in failure


def test_tasks_that_every_add_leaves_behind_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right, left = Bookie.add, []

    def add(bookie: Bookie, *batch: Any, **how: Any) -> None:
        left.extend(asyncio.get_running_loop().create_task(asyncio.Event().wait()) for _ in range(5))
        right(bookie, *batch, **how)

    monkeypatch.setattr(Bookie, "add", add)
    assert "tasks of" in first_failure(lambda swarm: swarm.writers == 3 and swarm.in_flight >= 4)

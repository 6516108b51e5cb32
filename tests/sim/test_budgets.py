"""Budget checks of the simulation (I20): exceeding any limit is detected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count, islice
from typing import Any

import pytest

from tallybook.bookie.write.add_path import AddPath
from tallybook.bookie.write.admission import Admission
from tallybook.client.budget import ByteBudget
from tallybook.sim.configuration.run_configuration import RunConfiguration, configuration_of_seed
from tallybook.sim.one_seed import run_quietly

SEEDS = 4


def first_failure(fits: Callable[[RunConfiguration], bool]) -> str:
    """Reports of the first seeds with such a configuration."""
    seeds = islice((seed for seed in count(1) if fits(configuration_of_seed(seed))), SEEDS)
    return next(filter(None, (run_quietly(seed).failure for seed in seeds)), "")


def test_a_bookie_without_admission_limits_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Admission._ordinary_refusal

    def refusal(admission: Admission, *add: Any, **how: Any) -> Any:
        found = right(admission, *add, **how)
        return None if found is not None and found.reason == "bytes in flight" else found

    monkeypatch.setattr(Admission, "_ordinary_refusal", refusal)
    assert "bytes in flight" in first_failure(lambda config: config.writers * config.in_flight * config.burst >= 144)


def test_a_client_that_appends_without_a_bound_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByteBudget, "_fits", lambda *_: True)
    failure = first_failure(lambda config: config.pending_bytes < config.burst * config.entry_bytes)
    assert failure.startswith("InvariantBroken: I20: writer")
    assert "holds" in failure


def test_tasks_that_every_add_leaves_behind_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    right, left = AddPath.take, []

    def take(adds: AddPath, *batch: Any, **how: Any) -> None:
        left.extend(asyncio.get_running_loop().create_task(asyncio.Event().wait()) for _ in range(5))
        right(adds, *batch, **how)

    monkeypatch.setattr(AddPath, "take", take)
    assert "tasks of" in first_failure(lambda config: config.writers == 3 and config.in_flight >= 4)

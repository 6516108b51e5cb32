"""Defects planted in the cluster, or in the simulation itself, that must not pass: one or two seeds for each."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from tallybook.core.errors import BookieUnavailable
from tallybook.sim import run as run_module
from tallybook.sim.nemesis import Nemesis
from tallybook.sim.one import run_quietly
from tallybook.sim.pens import Pen
from tallybook.sim.workload import Workload


@pytest.mark.parametrize("error", [KeyError("gone"), BookieUnavailable("gone"), asyncio.CancelledError("gone")])
def test_an_error_of_the_simulation_itself_is_the_failure_of_its_seed(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def audit(_universe: object) -> None:
        raise error

    monkeypatch.setattr(run_module, "audit", audit)
    report = run_quietly(111)
    assert report.failure == f"harness: {error!r}"
    assert any("in audit" in line for line in report.trace), "where it was"
    assert report.digest


@pytest.mark.parametrize(
    ("owner", "name", "invariant"),
    [
        (Nemesis, "_node", "simulation"),
        (Workload, "_fill", "simulation"),
        (Pen, "reliable", "client"),
    ],
)
def test_whatever_dies_in_a_run_does_not_die_unnoticed(
    owner: type, name: str, invariant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> NoReturn:
        raise RuntimeError("it does not work")

    async def broken_later(*_: object) -> NoReturn:
        broken()

    later = asyncio.iscoroutinefunction(getattr(owner, name))
    monkeypatch.setattr(owner, name, broken_later if later else broken)
    failure = run_quietly(7).failure
    assert failure.startswith(f"InvariantBroken: {invariant}: ")
    assert "it does not work" in failure

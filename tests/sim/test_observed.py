"""The observed bookie of the simulation: the LAC that it reports never falls within one incarnation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tallybook.bookie.bookie import Bookie
from tallybook.core.answers import FenceAnswer, Incarnation, LacAnswer, ReadAnswer
from tallybook.core.errors import EntryAbsent
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, close
from tallybook.sim.coverage import CoverageMarks
from tallybook.sim.oracle.observed_bookie import ObservedBookie
from tallybook.sim.oracle.oracle import Oracle
from tallybook.sim.stage.disk_bookie import batch_of

LIFE = Incarnation("uuid of b0", 1)
ASKING: dict[str, Callable[[ObservedBookie], Awaitable[object]]] = {
    "read_lac": lambda bookie: bookie.read_lac(1),
    "wait_lac": lambda bookie: bookie.wait_lac(1, 0, 10),
    "fence": lambda bookie: bookie.fence(1, b""),
    "read_batches": lambda bookie: bookie.read_batches(1, 0, 0, 1),
    "recovery_read": lambda bookie: bookie.recovery_read(1, 0, b""),
}


class Telling:
    """A bookie that returns a preset LAC."""

    bookie_id = "b0"
    incarnation = LIFE
    lac = -1

    async def read_lac(self, _ledger_id: int) -> LacAnswer:
        return LacAnswer(self.lac, fenced=False)

    async def wait_lac(self, *_question: int) -> LacAnswer:
        return LacAnswer(self.lac, fenced=False)

    async def fence(self, *_question: Any) -> FenceAnswer:
        return FenceAnswer(self.lac, self.lac)

    async def read_batches(self, *_question: int, **_more: bool) -> ReadAnswer:
        return ReadAnswer((), self.lac)

    async def recovery_read(self, *_question: Any) -> ReadAnswer:
        return ReadAnswer((), self.lac)


@pytest.fixture
def watched() -> SimpleNamespace:
    oracle, telling = Oracle(CoverageMarks(), lambda *_: None, lambda: 0), Telling()
    oracle.changed(1, None, LedgerMetadata(1, Quorum(1, 1, 1), (Fragment(0, ("b0",)),), "creator", 0))
    for entry_id in range(3):
        oracle.acked("b0", LIFE, batch_of(entry_id))
    return SimpleNamespace(oracle=oracle, telling=telling, bookie=_observed(telling, oracle))


def _observed(telling: Telling, oracle: Oracle) -> ObservedBookie:
    return ObservedBookie(cast(Bookie, telling), oracle, lambda: False)


@pytest.mark.parametrize("later", ASKING)
@pytest.mark.parametrize("sooner", ASKING)
def test_a_last_add_confirmed_that_falls_in_one_life_is_detected(
    watched: SimpleNamespace, sooner: str, later: str
) -> None:
    told = []
    for lac, question in ((0, sooner), (2, sooner), (2, later), (1, later)):
        watched.telling.lac = lac
        asyncio.run(cast(Any, ASKING[question](watched.bookie)))
        told.append([invariant for invariant, _ in watched.oracle.violations])
    assert told == [[], [], [], ["I6"]]


@pytest.mark.parametrize("question", ASKING)
def test_a_last_add_confirmed_above_the_ack_quorum_is_detected(watched: SimpleNamespace, question: str) -> None:
    watched.telling.lac = 3
    asyncio.run(cast(Any, ASKING[question](watched.bookie)))
    assert [invariant for invariant, _ in watched.oracle.violations] == ["I6"]


def test_another_life_may_begin_below(watched: SimpleNamespace) -> None:
    watched.telling.lac = 2
    asyncio.run(watched.bookie.read_lac(1))
    watched.telling.lac = 1
    asyncio.run(_observed(watched.telling, watched.oracle).read_lac(1))
    assert watched.oracle.violations == []


def test_a_bookie_whose_limbo_is_ended_without_its_entries_is_detected(watched: SimpleNamespace) -> None:
    async def end_limbo(_ledger_id: int) -> None:
        """Return the preset answer."""

    async def absent(*_question: int) -> ReadAnswer:
        raise EntryAbsent("not here")

    before = watched.oracle.ledgers[1].metadata
    watched.oracle.changed(1, before, close(before, 1, 10))
    watched.telling.end_limbo = end_limbo
    asyncio.run(watched.bookie.end_limbo(1))
    assert watched.oracle.violations == []
    watched.telling.read_batches = absent
    asyncio.run(watched.bookie.end_limbo(1))
    assert [invariant for invariant, _ in watched.oracle.violations] == ["I11", "I11"]

"""Committers that collide pause before they try again."""

import asyncio
from itertools import pairwise

import pytest

from tallybook.core.errors import MetadataConflict
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.store import BadVersion, MetadataStore
from tallybook.metadata.transactions import Transaction, commit
from tallybook.metadata.wrapped_store import WrappedStore
from tallybook.runtime.rng import SeededRng


class FreeClock:
    """Waiting costs nothing but the turn of others."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_us(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


class TakenStore(WrappedStore):
    """Another process is always first; notes when a record would have been written."""

    def __init__(self, store: MetadataStore, clock: FreeClock) -> None:
        super().__init__(store)
        self.clock = clock
        self.tried_at: list[float] = []

    async def write_record(self, name: str, value: bytes, expected_version: int | None) -> BadVersion:
        self.tried_at.append(self.clock.now)
        return BadVersion()


async def test_committers_that_collide_pause_for_different_times_before_they_try_again():
    shared = MemoryMetadata(SeededRng(1)).client().store
    transaction = Transaction("sales", 0)
    await shared.create_ledger(
        LedgerMetadata(
            0, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0, custom=transaction.marks,
            state=LedgerState.CLOSED, last_entry_id=9, length=90,
        )
    )  # fmt: skip
    found = []
    for seed in (1, 2):
        clock = FreeClock()
        store = TakenStore(shared, clock)
        with pytest.raises(MetadataConflict):
            await commit(LedgerUpdater(store, clock, SeededRng(seed)), transaction, [0])
        assert all(earlier < later for earlier, later in pairwise(store.tried_at))
        assert 1 < store.tried_at[-1] < 5, "the first tries follow soon, the last ones a quarter of a second apart"
        found.append(store.tried_at)
    assert set(found[0]).isdisjoint(found[1][1:])

"""``metadata/connection_status.py``: whether the metadata store is reachable, in the metrics of each process."""

from __future__ import annotations

from kazoo.client import KazooState

from tallybook.metadata.client import MetadataClient
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.metered_store import METADATA_METRICS
from tallybook.metadata.zookeeper.session import Session
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng


async def test_a_connection_that_is_lost_and_a_session_that_is_over_are_distinguished() -> None:
    clock, plain = RealClock(), MemoryMetadata(SeededRng(1)).client()
    session = Session(("127.0.0.1:1",), "zk://", clock=clock, rng=SeededRng(1), timeout_seconds=1, session_seconds=1)
    load = MetadataClient(plain.store, plain.membership, link=session.link).metered(clock).load
    assert load is not None

    def told() -> tuple[object, object]:
        readings = METADATA_METRICS.readings(load)
        return readings["metadata_connected"], readings["metadata_expiries"]

    seen = [told()]
    for state in (KazooState.CONNECTED, KazooState.SUSPENDED, KazooState.CONNECTED, KazooState.LOST):
        session._take_state(state)
        seen.append(told())
    assert seen == [(False, 0), (True, 0), (False, 0), (True, 0), (False, 1)]


async def test_a_store_that_needs_no_connection_can_always_be_asked() -> None:
    load = MemoryMetadata(SeededRng(1)).client().metered(RealClock()).load
    assert load is not None
    assert METADATA_METRICS.readings(load)["metadata_connected"] is True

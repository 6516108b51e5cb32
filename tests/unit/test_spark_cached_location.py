"""A connection to a cluster that a Spark stream keeps open between its triggers."""

import pickle
import threading

import pytest

from tallybook.core.errors import MetadataUnavailable
from tallybook.spark import cached_location as kept
from tallybook.spark.cached_location import CachedLocation
from tallybook.spark.ledgers.micro_batches import LedgerStreamReader
from tallybook.spark.ledgers.offset import StreamOffset
from tallybook.spark.options import LocationOptions, ReadOptions

THREAD = "tallybook"


@pytest.fixture
def openings(monkeypatch):
    """How often a cluster was opened in this test."""
    found, real = [], kept.open_location

    def opened(place):
        found.append(place)
        return real(place)

    monkeypatch.setattr(kept, "open_location", opened)
    return found


@pytest.fixture
def place(new_cluster):
    return LocationOptions(new_cluster(), None)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def test_the_triggers_of_a_stream_share_one_connection_which_ends_with_it(openings, place):
    reader = LedgerStreamReader(ReadOptions(place), None)
    start = reader.initialOffset()
    for _ in range(3):
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
        assert reader.partitions(start, start) == []
    assert len(openings) == 1
    assert len(threads()) == 1
    assert StreamOffset.parse(start).cluster_id
    assert len(pickle.loads(pickle.dumps(reader)).__dict__) == len(reader.__dict__)
    reader.stop()
    reader.stop()
    assert not threads()


def test_a_call_that_failed_leaves_nothing_open_and_the_next_one_opens_again(openings, place):
    shared = CachedLocation(place)

    async def fails(_place):
        raise MetadataUnavailable("away")

    async def works(found):
        return found.cluster_id

    cluster_id = shared.ask(works)
    with pytest.raises(MetadataUnavailable):
        shared.ask(fails)
    assert not threads()
    assert shared.ask(works) == cluster_id
    assert len(openings) == 2
    shared.close()
    assert not threads()

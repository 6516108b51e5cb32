"""The note that the metadata store was restored from an older copy."""

import pytest

from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.metadata.behind import RECORD, Behind, BehindRecord, decode_behind, encode_behind
from tallybook.metadata.memory import MemoryMetadata
from tallybook.runtime.deterministic import World, run_seed

BEHIND = Behind(10, 21, "b1", 1_000)


@pytest.mark.parametrize("second", [(10, 5), (3, 21), (30, 40)])
def test_findings_of_several_bookies_are_one_and_a_new_one_is_not_approved(second: tuple[int, int]) -> None:
    async def scenario(world: World) -> None:
        store = MemoryMetadata(world.rng).client().store
        record = BehindRecord(store, world.clock, world.rng)
        await record.approve()
        assert await record.read() is None, "there is nothing to approve"
        await record.report("b1", 10, 21)
        await record.report("b2", *second)
        found = await record.read()
        assert found is not None
        assert (found.id_counter, found.highest_id) == (min(10, second[0]), max(21, second[1]))
        assert await store.id_counter() == max(21, second[1]) + 1
        await record.approve()
        found = await record.read()
        assert found is not None
        assert not found.pauses
        await record.report("b3", *second)
        found = await record.read()
        assert found is not None
        assert found.pauses

    run_seed(1, scenario)


def test_a_record_comes_back_as_it_was_written() -> None:
    assert decode_behind(RECORD, encode_behind(BEHIND)) == BEHIND


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b"\xff", encode_behind(BEHIND).replace(b"21", b"-1")])
def test_a_record_that_cannot_be_is_damaged(value: bytes) -> None:
    with pytest.raises(DamagedFile):
        decode_behind(RECORD, value)


def test_a_record_of_a_later_version_is_told() -> None:
    with pytest.raises(NewerFormat):
        decode_behind(RECORD, encode_behind(BEHIND).replace(b'"format": 1', b'"format": 2'))

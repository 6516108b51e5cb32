"""The key for encrypted copies: one per archive, even if several processes create it, and rewrapped by any key."""

import asyncio

import pytest

from tallybook.archive.copy_key import RECORD, ensure_copy_key, find_copy_key
from tallybook.archive.objects.encryption.format import copy_data_key, encode_key, wrap
from tallybook.core.errors import ArchiveKeyMissing, DamagedFile, MetadataOutcomeUnknown
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.records.update import RecordUpdater
from tallybook.metadata.store import MetadataStore, Unknown
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng

from ..support.archive_keys import InMemoryKeys


def updater_of(store: MetadataStore) -> RecordUpdater:
    return RecordUpdater(store, RealClock(), SeededRng(2))


@pytest.fixture
def store() -> MetadataStore:
    return MemoryMetadata(SeededRng(1)).client().store


async def test_it_is_created_once_on_first_use(store):
    keys = InMemoryKeys()
    assert await find_copy_key(store, keys) is None
    assert await ensure_copy_key(updater_of(store), keys, make=False) is None
    made = await ensure_copy_key(updater_of(store), keys, make=True)
    assert made is not None
    assert (len(made.key), made.before) == (32, "")
    assert repr(made.key) not in repr(made)
    again = await ensure_copy_key(updater_of(store), keys, make=True)
    assert again is not None
    assert (again.key, again.before) == (made.key, "k1")
    record = await store.read_record(RECORD)
    assert record is not None
    assert made.key not in record.value


async def test_concurrent_creators_get_the_same_one(store):
    found = await asyncio.gather(*(ensure_copy_key(updater_of(store), InMemoryKeys(), make=True) for _ in range(5)))
    assert len({each.key for each in found if each is not None}) == 1


async def test_it_outlives_the_keys_that_it_is_wrapped_with(store):
    keys = InMemoryKeys()
    made = await ensure_copy_key(updater_of(store), keys, make=True)
    keys.rotate()
    assert (await find_copy_key(store, keys)).before == "k1"
    assert (await ensure_copy_key(updater_of(store), keys, make=False)).before == "k1"
    found = await find_copy_key(store, InMemoryKeys(2))
    assert (found.key, found.before) == (made.key, "k2")


async def test_it_is_not_replaced_where_the_key_for_it_is_missing(store):
    await ensure_copy_key(updater_of(store), InMemoryKeys(1), make=True)
    with pytest.raises(ArchiveKeyMissing, match="k1"):
        await ensure_copy_key(updater_of(store), InMemoryKeys(2), make=True)


@pytest.mark.parametrize(
    "value",
    [b"", b"TBSK", encode_key(wrap(bytes(32), "k1", InMemoryKeys().keys.keys["k1"], bytes(12), 0, "ledgers/x"))],
)
async def test_a_record_that_is_none_or_an_objects_own_key_is_damage(store, value):
    await store.write_record(RECORD, value, None)
    with pytest.raises(DamagedFile, match=RECORD):
        await ensure_copy_key(updater_of(store), InMemoryKeys(), make=True)


async def test_a_possible_write_is_reported(store, monkeypatch):
    async def unknown(*_args: object) -> Unknown:
        return Unknown("away")

    monkeypatch.setattr(store, "write_record", unknown)
    with pytest.raises(MetadataOutcomeUnknown, match="away"):
        await ensure_copy_key(updater_of(store), InMemoryKeys(), make=True)


def test_the_key_of_a_copy_follows_from_its_content_its_name_and_the_key_for_copies():
    key, digests = bytes(32), [bytes(32), b"1" * 32]
    known = copy_data_key(key, "a", digests)
    assert known.hex() == "a96aae0e8ce4ed2549ac4aa58e0aea1acead14c4b1780d1436793e3ef3c76c46"
    others = [
        copy_data_key(b"1" * 32, "a", digests),
        copy_data_key(key, "b", digests),
        copy_data_key(key, "a", digests[::-1]),
        copy_data_key(key, "a", digests[:1]),
        copy_data_key(key, "a", []),
    ]
    assert len({known, *others}) == 6

"""Rekeying: every object gets the current key or is reported by name; an interrupted run resumes."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import NoReturn

import pytest

from tallybook.archive.format.schema import object_key
from tallybook.archive.objects.encryption.store import EncryptedObject, EncryptedStore
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.core.errors import ArchiveUnavailable
from tallybook.offload import rekey as rekeying
from tallybook.offload.rekey import CURRENT, FAILED, PLAIN, REWRAPPED, SEALED, Rekeyed, rekey
from tallybook.runtime.clock import RealClock
from tallybook.runtime.tasks import InlineWorkers

from ..support.archive_keys import InMemoryKeys

OBJECTS = [object_key(f"00000000-0000-4000-8000-{number:012d}", [number]) for number in range(4)]
TEXT = bytes(range(256)) * 300
OLD = InMemoryKeys(1).keys.keys
COPY_KEY = bytes(range(32))


async def some_objects() -> MemoryObjectStore:
    """Two encrypted objects, a plain one, one encrypted with a lost key, and a foreign one."""
    below = MemoryObjectStore(RealClock())
    for key in OBJECTS[:2]:
        await store_of(below, InMemoryKeys(1)).put(key, TEXT)
    await below.put(OBJECTS[2], TEXT)
    await store_of(below, InMemoryKeys(0)).put(OBJECTS[3], TEXT)
    await below.put("notes/readme", b"x")
    return below


def store_of(below: MemoryObjectStore, keys: InMemoryKeys) -> EncryptedStore:
    return EncryptedStore(below, InlineWorkers(), keys)


def go_away(monkeypatch: pytest.MonkeyPatch, below: MemoryObjectStore) -> NoReturn:
    """Make the store unavailable from now on."""

    def refuse(*_: object) -> NoReturn:
        raise ArchiveUnavailable("away")

    monkeypatch.setattr(below, "list", refuse)
    refuse()


async def outcomes(store: EncryptedStore, *, change: bool = True, seal_plain: bool = False) -> list[tuple[str, str]]:
    """The results by key."""
    found = [done async for done in run_of(store, change=change, seal_plain=seal_plain)]
    return [(done.outcome, done.before) for done in sorted(found, key=lambda done: done.key)]


def run_of(store: EncryptedStore, *, change: bool = True, seal_plain: bool = True) -> AsyncIterator[Rekeyed]:
    return rekey(store, "k2", change=change, seal_plain=seal_plain, copy_key=COPY_KEY)


async def test_each_object_gets_the_current_key_and_one_that_cannot_does_not_keep_the_others():
    below = await some_objects()
    store = store_of(below, InMemoryKeys(2, others=OLD))
    assert await outcomes(store) == [(REWRAPPED, "k1"), (REWRAPPED, "k1"), (PLAIN, ""), (FAILED, "")]
    assert await outcomes(store) == [(CURRENT, "k2"), (CURRENT, "k2"), (PLAIN, ""), (FAILED, "")]
    without_old = store_of(below, InMemoryKeys(2))
    for key in OBJECTS[:3]:
        assert await without_old.read(key, 7, 3) == TEXT[7:10]


async def test_a_trial_changes_nothing():
    below = await some_objects()
    store = store_of(below, InMemoryKeys(2, others=OLD))
    before = [found async for page in below.list() for found in page]
    found = await outcomes(store, change=False, seal_plain=True)
    assert found == [(REWRAPPED, "k1"), (REWRAPPED, "k1"), (SEALED, ""), (FAILED, "")]
    assert [found async for page in below.list() for found in page] == before
    assert await store.wrapping(OBJECTS[0]) == "k1"


async def test_a_plain_object_is_encrypted_under_its_name_also_where_plain_ones_are_refused():
    below = await some_objects()
    keys = InMemoryKeys(2, others=OLD)
    keys.refuse_plain()
    store = store_of(below, keys)
    assert (SEALED, "") in await outcomes(store, seal_plain=True)
    assert await store.is_encrypted(OBJECTS[2])
    assert await store.read(OBJECTS[2], 0, len(TEXT)) == TEXT
    assert not [found.key async for page in below.list("ledgers/") for found in page]


async def test_a_plain_object_stays_until_its_encrypted_copy_was_read_back(monkeypatch):
    below = await some_objects()
    store = store_of(below, InMemoryKeys(2, others=OLD))
    find = store.find_encrypted

    async def wrong(key: str) -> EncryptedObject:
        found = await find(key)

        async def read(offset: int, size: int) -> bytes:
            return (await found.read(offset, size))[:-1] + b"!"

        return replace(found, read=read)

    monkeypatch.setattr(store, "find_encrypted", wrong)
    found = [done async for done in run_of(store) if done.key == OBJECTS[2]]
    assert (found[0].outcome, "plain object is kept" in found[0].problem) == (FAILED, True)
    assert (await below.info(OBJECTS[2])).size_bytes == len(TEXT)


async def test_the_key_of_an_encrypted_copy_is_fetched_once_for_all_that_is_read_back(monkeypatch):
    monkeypatch.setattr(rekeying, "PIECE_BYTES", len(TEXT) // 20)
    below = await some_objects()
    read, fetched = below.read, list[str]()

    async def counted(key: str, offset: int, size: int) -> bytes:
        fetched.append(key)
        return bytes(await read(key, offset, size))

    monkeypatch.setattr(below, "read", counted)
    await outcomes(store_of(below, InMemoryKeys(2, others=OLD)), seal_plain=True)
    assert fetched.count(f"sealed/keys/{OBJECTS[2]}") == 1
    assert await below.read(f"sealed/keys/{OBJECTS[2]}", 0, 4) == b"TBSK"

    fetched.clear()
    await below.put(OBJECTS[2], TEXT)
    await outcomes(store_of(below, InMemoryKeys(2, others=OLD)), seal_plain=True)
    assert fetched.count(OBJECTS[2]) == 20
    assert fetched.count(f"sealed/keys/{OBJECTS[2]}") == 2, "once for its name, once for what it opens"


async def test_what_changes_while_it_is_encrypted_is_not_encrypted(monkeypatch):
    """The key follows from what was there first: something else must never be encrypted with it."""
    below = await some_objects()
    store = store_of(below, InMemoryKeys(2, others=OLD))
    read, asked = store.read_plain, [0]

    async def other(key: str, offset: int, size: int) -> bytes:
        asked[0] += 1
        return (await read(key, offset, size)) if asked[0] == 1 else bytes(size)

    monkeypatch.setattr(store, "read_plain", other)
    found = [done async for done in run_of(store) if done.key == OBJECTS[2]]
    assert (found[0].outcome, "changed while it was encrypted" in found[0].problem) == (FAILED, True)
    assert not await store.is_encrypted(OBJECTS[2])
    assert await below.read(OBJECTS[2], 0, len(TEXT)) == TEXT


async def test_a_plain_object_that_a_run_left_beside_its_encrypted_copy_is_removed_by_the_next(monkeypatch):
    below = await some_objects()
    store = store_of(below, InMemoryKeys(2, others=OLD))

    async def away(_key: str) -> None:
        go_away(monkeypatch, below)

    monkeypatch.setattr(store, "delete_plain", away)
    with pytest.raises(ArchiveUnavailable):
        await outcomes(store, seal_plain=True)
    monkeypatch.undo()
    assert (await outcomes(store))[2] == (CURRENT, "k2")
    assert (await outcomes(store, seal_plain=True, change=False))[2] == (SEALED, "k2")
    assert await store.is_plain(OBJECTS[2])
    assert (await outcomes(store, seal_plain=True))[2] == (SEALED, "k2")
    assert not await store.is_plain(OBJECTS[2])
    assert await store.read(OBJECTS[2], 0, len(TEXT)) == TEXT


async def test_a_plain_object_that_is_another_than_the_encrypted_one_is_reported_and_neither_is_touched():
    below = await some_objects()
    await below.put(OBJECTS[0], TEXT[::-1])
    store = store_of(below, InMemoryKeys(2, others=OLD))
    found = [done async for done in run_of(store) if done.key == OBJECTS[0]]
    assert (found[0].outcome, "different content" in found[0].problem) == (FAILED, True)
    assert await below.read(OBJECTS[0], 0, len(TEXT)) == TEXT[::-1]
    assert await store.read(OBJECTS[0], 0, len(TEXT)) == TEXT


async def test_a_key_that_was_rotated_meanwhile_is_reported():
    """The requested state is not the state of the objects yet."""
    below = await some_objects()
    store = store_of(below, InMemoryKeys(3, others=OLD))
    found = [done async for done in rekey(store, "k2", change=True, seal_plain=False) if done.key == OBJECTS[0]]
    assert (found[0].outcome, found[0].before) == (FAILED, "k3")

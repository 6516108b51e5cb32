"""An encrypted object store beyond the contract: readers, damage, and leftover files.

tests/contract/objects tests the contract of every object store.
"""

import pytest

from tallybook.archive.objects.encryption import format as encryption_format
from tallybook.archive.objects.encryption.format import ENCRYPTED_FRAME_BYTES, FRAME_BYTES, RECORD_BYTES
from tallybook.archive.objects.encryption.store import EncryptedStore
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.archive.objects.port import UnfinishedUpload
from tallybook.core.errors import (
    ArchiveKeyMissing,
    ArchiveUnavailable,
    InvalidArgument,
    NewerFormat,
    ObjectDamaged,
    ObjectMissing,
)
from tallybook.runtime.clock import RealClock
from tallybook.runtime.tasks import InlineWorkers

from ..support.archive_keys import InMemoryKeys

KEY, OTHER = "ledgers/1-a", "ledgers/2-b"
TEXT = bytes(range(256)) * 600
"""Three frames."""


class Counting(MemoryObjectStore):
    """Records reads, and fails the given puts."""

    def __init__(self) -> None:
        super().__init__(RealClock())
        self.read_bytes: list[tuple[str, int]] = []
        self.no_put = ""

    async def read(self, key: str, offset: int, size: int) -> bytes:
        self.read_bytes.append((key, size))
        return await super().read(key, offset, size)

    async def put(self, key: str, data: object) -> None:
        if self.no_put and key.startswith(self.no_put):
            raise ArchiveUnavailable("away")
        await super().put(key, data)  # type: ignore[arg-type]

    async def all(self) -> list[str]:
        return [found.key async for page in self.list() for found in page]


@pytest.fixture
def below() -> Counting:
    return Counting()


@pytest.fixture
def keys() -> InMemoryKeys:
    return InMemoryKeys()


def encrypted_store(below: MemoryObjectStore, keys: InMemoryKeys | None) -> EncryptedStore:
    return EncryptedStore(below, InlineWorkers(), keys)


async def listed(store: EncryptedStore) -> list[str]:
    return [found.key async for page in store.list() for found in page]


async def test_nothing_of_what_is_written_is_seen_below(below, keys):
    store = encrypted_store(below, keys)
    await store.put(KEY, TEXT)
    assert await below.all() == [f"sealed/keys/{KEY}", f"sealed/objects/{KEY}"]
    data = await below.read(f"sealed/objects/{KEY}", 0, (await below.info(f"sealed/objects/{KEY}")).size_bytes)
    assert TEXT[:32] not in data
    assert (await below.info(f"sealed/keys/{KEY}")).size_bytes == RECORD_BYTES
    await store.put(OTHER, TEXT)
    assert data[:64] != await below.read(f"sealed/objects/{OTHER}", 0, 64), "encrypted differently each time"


async def test_a_range_costs_the_frames_that_it_touches(below, keys):
    await encrypted_store(below, keys).put(KEY, TEXT)
    store = encrypted_store(below, keys)
    assert await store.read(KEY, FRAME_BYTES + 5, 10) == TEXT[FRAME_BYTES + 5 : FRAME_BYTES + 15]
    assert await store.read(KEY, 0, 1) == TEXT[:1]
    frame = (f"sealed/objects/{KEY}", ENCRYPTED_FRAME_BYTES)
    assert below.read_bytes == [(f"sealed/keys/{KEY}", RECORD_BYTES), frame, frame]


async def test_several_ranges_of_one_frame_are_one_read_of_it(below, keys):
    store = encrypted_store(below, keys)
    await store.put(KEY, TEXT)
    ranges = [(3, 7), (100, 50), (FRAME_BYTES - 1, 2), (2 * FRAME_BYTES + 9, 4)]
    below.read_bytes.clear()
    assert await store.read_many(KEY, ranges) == [TEXT[offset : offset + size] for offset, size in ranges]
    assert len(below.read_bytes) == 2


async def test_what_is_encrypted_is_listed_and_not_read_without_keys(below, keys):
    await encrypted_store(below, keys).put(KEY, TEXT)
    without = encrypted_store(below, None)
    assert await listed(without) == [KEY]
    assert (await without.info(KEY)).size_bytes == len(TEXT)
    with pytest.raises(ArchiveKeyMissing, match="archive_keys is not set here"):
        await without.read(KEY, 0, 1)
    with pytest.raises(ObjectMissing):
        await without.read(OTHER, 0, 1)
    await without.delete(KEY)
    assert await below.all() == []


async def test_an_object_whose_key_was_dropped_is_neither_absent_nor_damaged(below, keys):
    await encrypted_store(below, keys).put(KEY, TEXT)
    keys.rotate(keep=False)
    store = encrypted_store(below, keys)
    with pytest.raises(ArchiveKeyMissing, match="k1"):
        await store.read(KEY, 0, 1)
    assert keys.wanted[-1] == "k1"
    with pytest.raises(ArchiveKeyMissing):
        await store.rewrap(KEY)
    await store.put(OTHER, TEXT)
    assert await store.read(OTHER, 0, 3) == TEXT[:3]


async def test_what_is_plain_is_read_until_the_keys_refuse_it(below, keys):
    await below.put(KEY, TEXT)
    store = encrypted_store(below, keys)
    assert await store.read(KEY, 0, 4) == TEXT[:4]
    keys.refuse_plain()
    for each in (store, encrypted_store(below, keys)):  # also one that has read it
        with pytest.raises(ObjectDamaged, match="not encrypted"):
            await each.read(KEY, 0, 4)
        assert await listed(each) == [KEY]
        with pytest.raises(ObjectMissing):
            await each.read(OTHER, 0, 4)


async def test_where_something_is_encrypted_and_plain_the_encrypted_one_counts(below, keys):
    store = encrypted_store(below, keys)
    await store.put(KEY, TEXT)
    await below.put(KEY, b"forged")
    assert await encrypted_store(below, keys).read(KEY, 0, 6) == TEXT[:6]
    assert [found.size_bytes async for page in store.list() for found in page] == [len(TEXT)]


async def test_objects_and_keys_that_are_exchanged_are_damage(below, keys):
    store = encrypted_store(below, keys)
    await store.put(KEY, TEXT)
    await store.put(OTHER, TEXT)
    for folder in ("sealed/objects/", "sealed/keys/"):
        size = (await below.info(folder + OTHER)).size_bytes
        theirs, ours = [await below.read(folder + key, 0, size) for key in (OTHER, KEY)]
        await below.put(folder + KEY, theirs)
        with pytest.raises(ObjectDamaged):
            await encrypted_store(below, keys).read(KEY, 0, 1)
        await below.put(folder + KEY, ours)
    whole = {folder: await below.read(folder + OTHER, 0, (await below.info(folder + OTHER)).size_bytes)
             for folder in ("sealed/objects/", "sealed/keys/")}  # fmt: skip
    for folder, data in whole.items():
        await below.put(folder + KEY, data)
    with pytest.raises(ObjectDamaged, match="another object"):
        await encrypted_store(below, keys).read(KEY, 0, 1)


async def test_a_truncated_encrypted_object_is_damaged(below, keys):
    store = encrypted_store(below, keys)
    await store.put(KEY, TEXT)
    data = await below.read(f"sealed/objects/{KEY}", 0, 2 * ENCRYPTED_FRAME_BYTES)
    await below.put(f"sealed/objects/{KEY}", data)
    with pytest.raises(ObjectDamaged):
        await store.read(KEY, 2 * FRAME_BYTES, 10)
    with pytest.raises(ObjectDamaged):
        await store.read(KEY, 0, len(TEXT))
    assert await store.read(KEY, 0, 10) == TEXT[:10]


async def test_a_wrapped_key_of_a_newer_tallybook_is_distinguished(below, keys, monkeypatch):
    store = encrypted_store(below, keys)
    monkeypatch.setattr(encryption_format, "VERSION", encryption_format.VERSION + 1)
    await store.put(KEY, TEXT)
    monkeypatch.undo()
    for each in (encrypted_store(below, keys), encrypted_store(below, None)):
        with pytest.raises(NewerFormat):
            await each.read(KEY, 0, 1)


async def test_an_object_that_was_written_anew_is_opened_with_its_new_key(below, keys):
    store, other = encrypted_store(below, keys), encrypted_store(below, keys)
    await store.put(KEY, TEXT)
    assert await store.read(KEY, 0, 3) == TEXT[:3]
    await other.put(KEY, TEXT[::-1])
    assert await store.read(KEY, 0, 3) == TEXT[::-1][:3]


async def test_an_object_that_is_encrypted_during_a_read_is_found(below, keys):
    await below.put(KEY, TEXT)
    store = encrypted_store(below, keys)
    assert await store.read(KEY, 0, 3) == TEXT[:3]
    await encrypted_store(below, keys).put(KEY, TEXT)
    await below.delete(KEY)
    assert await store.read(KEY, 0, 3) == TEXT[:3]


async def test_rewrapping_changes_the_key_and_not_the_object(below, keys):
    store = encrypted_store(below, keys)
    await store.put(KEY, TEXT)
    before = await below.read(f"sealed/objects/{KEY}", 0, ENCRYPTED_FRAME_BYTES)
    keys.rotate()
    assert await store.wrapping(KEY) == "k1"
    await store.rewrap(KEY)
    assert await store.wrapping(KEY) == "k2"
    assert await below.read(f"sealed/objects/{KEY}", 0, ENCRYPTED_FRAME_BYTES) == before
    assert await encrypted_store(below, InMemoryKeys(2)).read(KEY, 0, 3) == TEXT[:3]


async def test_what_an_upload_leaves_that_ends_before_its_key_is_collected(below, keys):
    store = encrypted_store(below, keys)
    below.no_put = "sealed/keys/"
    upload = store.upload(KEY)
    await upload.write(TEXT)
    with pytest.raises(ArchiveUnavailable):
        await upload.finish()
    await upload.abort()
    assert await listed(store) == []
    with pytest.raises(ObjectMissing):
        await store.read(KEY, 0, 1)
    [left] = await store.unfinished_uploads()
    assert left.key == KEY
    await store.abort_upload(left)
    assert await below.all() == []


async def test_a_key_without_its_object_is_no_object_and_is_collected(below, keys):
    store = encrypted_store(below, keys)
    await store.put(KEY, TEXT)
    await below.delete(f"sealed/objects/{KEY}")
    assert await listed(store) == []
    with pytest.raises(ObjectMissing):
        await encrypted_store(below, keys).read(KEY, 0, 1)
    [left] = await store.unfinished_uploads()
    await store.abort_upload(left)
    assert await below.all() == []


async def test_a_half_that_has_become_whole_is_not_collected(below, keys):
    store = encrypted_store(below, keys)
    await store.put(KEY, TEXT)
    await store.abort_upload(UnfinishedUpload(KEY, "half", 0))
    assert await store.read(KEY, 0, 3) == TEXT[:3]


async def test_a_half_of_what_is_plain_may_be_a_copy_in_the_making_and_is_not_collected(below, keys):
    store = encrypted_store(below, keys)
    await below.put(KEY, TEXT)
    await below.put(f"sealed/objects/{KEY}", TEXT)
    assert await store.unfinished_uploads() == []
    await store.abort_upload(UnfinishedUpload(KEY, "half", 0))
    assert await below.all() == [KEY, f"sealed/objects/{KEY}"]
    await store.delete(KEY)
    assert await below.all() == []


async def test_an_upload_below_is_reported_under_the_key_of_its_object(below, keys):
    store = encrypted_store(below, keys)
    await store.upload(KEY).write(bytes(2 * FRAME_BYTES))
    [left] = await store.unfinished_uploads()
    assert left.key == KEY
    await store.abort_upload(left)
    assert below.uploads == {}


async def test_nothing_can_be_put_where_encrypted_objects_are_kept(below, keys):
    for store in (encrypted_store(below, keys), encrypted_store(below, None)):
        for key in ("sealed/objects/x", "sealed/keys/x", "sealed/x"):
            with pytest.raises(InvalidArgument):
                await store.put(key, b"x")
            with pytest.raises(InvalidArgument):
                await store.delete(key)


async def test_plain_and_encrypted_objects_are_listed_in_one_order(below, keys):
    store = encrypted_store(below, keys)
    every = [f"{folder}/{number}" for folder in ("a", "ledgers", "sealer", "sets", "z") for number in range(5)]
    for number, key in enumerate(every):
        await (below if number % 2 else store).put(key, b"x")
    assert await listed(store) == every
    assert [found.key async for page in store.list("s") for found in page] == every[10:20]
    assert [found.key async for page in store.list(after="ledgers/2") for found in page] == every[8:]
    assert [found.key async for page in store.list("sealed/") for found in page] == []

"""Catalog of a bucket with forged objects: each is detected by its key, and the others are still found."""

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallybook.archive.catalog import BucketCatalog, read_catalog
from tallybook.archive.encoder import ObjectEncoder
from tallybook.archive.format import row_groups
from tallybook.archive.format.schema import DIRECTORY_KEY, FORMAT, FORMAT_KEY, object_key
from tallybook.archive.library import ArchiveLibrary
from tallybook.archive.manifest import MANIFEST_KEY, Manifest, read_manifest, write_manifest
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.core.batch import encode_batch, verify_batch
from tallybook.core.errors import (
    ArchiveDenied,
    ArchiveUnavailable,
    DamagedFile,
    InvalidArgument,
    NewerFormat,
    NoSuchLedger,
    ObjectDamaged,
    ObjectMissing,
    TallybookError,
)
from tallybook.core.quorum import Quorum
from tallybook.metadata.codec import encode_ledger
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.store import MetadataStore, Versioned
from tallybook.metadata.transactions import read_view
from tallybook.offload.rebuild import Rebuilt, claim_bucket, rebuild_catalog
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import InlineWorkers

UUID = "00000000-0000-4000-8000-{:012d}"
GOOD, BAD = (object_key(UUID.format(number), [number]) for number in (1, 2))
PAYLOADS = [b"first", b"second"]


def metadata_of(ledger_id: int) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id, Quorum(1, 1, 1), (Fragment(0, ("a",)),), "creator", 0,
        state=LedgerState.CLOSED, last_entry_id=1, length=sum(map(len, PAYLOADS)),
    )  # fmt: skip


def an_object(number: int, metadata: bytes | None = None, *, uuid: int | None = None, created_at_ms: int = 17) -> bytes:
    """An object with one ledger of two entries, whose metadata are as given."""
    encoder = ObjectEncoder(UUID.format(uuid or number), created_at_ms)
    encoder.begin(number, metadata or encode_ledger(metadata_of(number)))
    batch = encode_batch(number, 0, PAYLOADS, lac=-1, ledger_length=11, written_at_us=5)
    encoder.add(batch, verify_batch(batch))
    encoder.end()
    encoder.finish()
    return b"".join(encoder.take())


def new_metadata() -> MetadataStore:
    return MemoryMetadata(SeededRng(1)).client().store


async def catalog_of(store: MemoryObjectStore) -> BucketCatalog:
    return await read_catalog(store, InlineWorkers())


async def rebuilt(store: MemoryObjectStore, metadata: MetadataStore) -> list[Rebuilt]:
    return [each async for each in rebuild_catalog(store, metadata, InlineWorkers())]


async def bucket(**objects: bytes) -> MemoryObjectStore:
    """A bucket with the objects of ledgers 1 and 2."""
    store = MemoryObjectStore(RealClock())
    for name, data in objects.items():
        await store.put({"good": GOOD, "bad": BAD}[name], data)
    return store


def footer(change: Callable[[dict[str, object]], object]) -> Callable[[], bytes]:
    """An object whose footer has another value for its directory, of the same length."""

    def forge() -> bytes:
        data = an_object(2)
        found = re.search(rb'\{"offset"[^}]*\}', data)
        assert found is not None
        forged = json.dumps(change(json.loads(found.group())), separators=(",", ":")).encode()
        assert len(forged) <= len(found.group())
        return data.replace(found.group(), forged.ljust(len(found.group())))

    return forge


def with_metadata(**changes: object) -> Callable[[], bytes]:
    """An object whose directory has other metadata."""
    return lambda: an_object(2, encode_ledger(replace(metadata_of(2), **changes)))  # type: ignore[arg-type]


def saying(directory: str) -> bytes:
    """A file of Parquet whose footer says this of its directory."""
    out = io.BytesIO()
    said = {DIRECTORY_KEY: directory, FORMAT_KEY: str(FORMAT)}
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(said), out)
    return out.getvalue()


FORGERIES: dict[str, Callable[[], bytes]] = {
    "an index beyond the end": footer(lambda part: part | {"offset": 99_999}),
    "an index before the beginning": footer(lambda part: part | {"offset": -9}),
    "an index of no bytes": footer(lambda part: part | {"bytes": 0}),
    "an index that unpacks to nothing": footer(lambda part: part | {"raw_bytes": 0}),
    "an index elsewhere": footer(lambda part: part | {"offset": 4}),
    "an index at no number": footer(lambda part: part | {"offset": "x"}),
    "an index at half a number": footer(lambda part: part | {"offset": 0.5}),
    "an index that is true": footer(lambda part: part | {"bytes": True}),
    "no index": footer(lambda part: {}),
    "an index that is a list": footer(lambda part: [1]),
    "an index deeper than Python goes": lambda: saying("[" * 5_000),
    "an index without an end": lambda: saying('{"offset": 1e999, "bytes": 1, "raw_bytes": 1, "crc32c": 1}'),
    "metadata of another ledger": with_metadata(ledger_id=7),
    "metadata of a ledger that is open": with_metadata(state=LedgerState.OPEN, last_entry_id=-1, length=0),
    "metadata of a longer ledger": with_metadata(last_entry_id=2),
    "no metadata": lambda: an_object(2, b"metadata"),
    "another object": lambda: an_object(3),
    "nothing": lambda: b"",
    "no Parquet": lambda: b"no object" * 100,
    "a footer longer than the object": lambda: b"PAR1" + (10**6).to_bytes(4, "little") + b"PAR1",
    "half of an object": lambda: an_object(2)[:-100],
}


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_forged_object_is_named_and_the_others_are_found(forgery: str) -> None:
    store = await bucket(good=an_object(1), bad=FORGERIES[forgery]())
    catalog = await catalog_of(store)
    assert list(catalog.ledgers) == [1]
    assert list(catalog.damaged) == [BAD]
    assert BAD in catalog.damaged[BAD]
    metadata = new_metadata()
    found = await rebuilt(store, metadata)
    assert [(each.key, each.ledger_ids, bool(each.problem)) for each in found] == [(BAD, (), True), (GOOD, (1,), False)]
    assert (await metadata.list_ledgers()).ledger_ids == (1,)


async def test_an_object_of_a_newer_format_is_not_left_out_of_a_catalog(monkeypatch) -> None:
    store = await bucket(good=an_object(1))
    with monkeypatch.context() as newer:
        newer.setattr(row_groups, "FORMAT", 2)
        await store.put(BAD, an_object(2))
    with pytest.raises(NewerFormat, match=f"{BAD}: the object is of format 2, this Tallybook knows 1"):
        await catalog_of(store)
    metadata = new_metadata()
    with pytest.raises(NewerFormat):
        # It may be where the youngest copy of a ledger is, or the only one.
        await rebuilt(store, metadata)
    assert (await metadata.list_ledgers()).ledger_ids == ()


@pytest.mark.parametrize(
    "custom",
    [
        {"tallybook.sink": b"once/8d0c-11/0", "tallybook.since": b"7"},
        {"tallybook.sink": b"sales/17", "tallybook.pending": b"1"},
    ],
    ids=["once", "pending"],
)
async def test_ledgers_of_a_sink_come_back_in_view_though_nothing_is_known_of_the_sink(
    custom: dict[str, bytes],
) -> None:
    store = MemoryObjectStore(RealClock())
    marked = replace(metadata_of(1), custom=custom | {"mine": b"x"})
    await store.put(GOOD, an_object(1, encode_ledger(marked)))
    metadata = new_metadata()
    assert [each.ledger_ids for each in await rebuilt(store, metadata)] == [(1,)]
    found = (await metadata.read_ledger(1)).value
    assert (await read_view(metadata)).sees(found)
    assert dict(found.custom) == {"mine": b"x"}


async def with_manifest(store: MemoryObjectStore, ledgers: dict[int, str], *dropped: str) -> MemoryObjectStore:
    await write_manifest(store, InlineWorkers(), Manifest("a-cluster", ledgers, dict.fromkeys(dropped, 0)))
    return store


async def test_a_ledger_that_has_no_row_in_the_manifest_does_not_come_back_and_its_id_is_not_given_again() -> None:
    store = await bucket(good=an_object(1), bad=an_object(2))
    await with_manifest(store, {1: GOOD}, BAD)
    catalog = await catalog_of(store)
    assert (list(catalog.ledgers), dict(catalog.damaged), catalog.last_id) == ([1], {}, 2)
    metadata = new_metadata()
    assert [each.ledger_ids for each in await rebuilt(store, metadata)] == [(1,)]
    assert (await metadata.list_ledgers()).ledger_ids == (1,)
    assert await metadata.id_counter() > 2
    await claim_bucket(store, metadata, InlineWorkers())
    manifest = await read_manifest(store, InlineWorkers())
    assert manifest == Manifest(await metadata.cluster_id(), {1: GOOD}, {BAD: 0}), "the bucket is of this cluster now"


@pytest.mark.parametrize("where", ["damaged", "lost", "dropped"])
async def test_an_id_is_not_given_again_though_no_object_that_can_be_read_has_its_ledger(where: str) -> None:
    store, ledger_id = MemoryObjectStore(RealClock()), 5_000
    key = object_key(UUID.format(3), [3, ledger_id])
    await store.put(GOOD, an_object(1))
    if where == "damaged":
        await store.put(key, b"no object")
    elif where == "lost":
        await with_manifest(store, {1: GOOD, ledger_id: object_key(UUID.format(3), [3])})
    else:
        await with_manifest(store, {1: GOOD}, key)
    metadata = new_metadata()
    await rebuilt(store, metadata)
    assert await metadata.id_counter() > ledger_id


async def test_a_rebuild_raises_the_counter_in_one_step_also_past_a_name_with_a_number_that_no_ledger_can_have() -> (
    None
):
    metadata = new_metadata()
    store = await with_manifest(MemoryObjectStore(RealClock()), {10**15: GOOD})
    await store.put(object_key(UUID.format(3), [2**63]), b"no object")
    await rebuilt(store, metadata)
    assert await metadata.next_ledger_id() == 10**15 + 1


async def test_an_object_that_the_manifest_does_not_know_counts() -> None:
    store = await with_manifest(MemoryObjectStore(RealClock()), {1: GOOD})
    await store.put(GOOD, an_object(1))
    await store.put(BAD, an_object(2))
    assert list((await catalog_of(store)).ledgers) == [1, 2]


async def test_of_an_object_only_the_ledgers_count_that_the_manifest_says_are_in_it() -> None:
    """Here, one that has moved to an object which was lost; it is not looked for where it was deleted from."""
    store = await with_manifest(MemoryObjectStore(RealClock()), {2: GOOD})
    await store.put(GOOD, an_object(1))
    catalog = await catalog_of(store)
    assert list(catalog.ledgers) == []
    assert "ledger 2" in catalog.damaged[GOOD]


async def test_the_object_that_the_manifest_names_is_read_first_and_a_dropped_one_where_that_is_damaged() -> None:
    store = await with_manifest(await store_with_a_damaged_younger_object(), {1: YOUNG}, OLD)
    catalog = await catalog_of(store)
    assert [catalog.ledgers[1].receipt.key, *(each.receipt.key for each in catalog.older[1])] == [YOUNG, OLD]
    await with_manifest(store, {1: OLD}, YOUNG)
    catalog = await catalog_of(store)
    assert [catalog.ledgers[1].receipt.key, *(each.receipt.key for each in catalog.older[1])] == [OLD, YOUNG]


async def test_a_damaged_manifest_is_named_and_everything_counts() -> None:
    store = await bucket(good=an_object(1))
    await store.put(MANIFEST_KEY, b"no manifest")
    catalog = await catalog_of(store)
    assert (list(catalog.ledgers), list(catalog.damaged)) == ([1], [MANIFEST_KEY])


OLD, YOUNG = (object_key(UUID.format(number), [1]) for number in (1, 2))


async def store_with_a_damaged_younger_object() -> MemoryObjectStore:
    """Ledger 1 twice: what was archived, and what an attempt left behind that was never committed."""
    store, damaged = MemoryObjectStore(RealClock()), an_object(1, uuid=2)
    at = damaged.index(PAYLOADS[0])
    await store.put(OLD, an_object(1))
    await store.put(YOUNG, damaged[:at] + b"F" + damaged[at + 1 :])
    catalog = await catalog_of(store)
    assert catalog.ledgers[1].receipt.key == YOUNG
    assert [found.receipt.key for found in catalog.older[1]] == [OLD]
    assert not catalog.damaged, "its index does not tell"
    return store


@pytest.mark.parametrize("named", [False, True], ids=["no manifest", "manifest"])
async def test_where_an_object_is_damaged_no_other_ledger_of_the_same_id_takes_its_place(named: bool) -> None:
    """The metadata were lost, and the id was given again; the object of the ledger before it is still there."""
    store = await store_with_a_damaged_younger_object()
    before = replace(metadata_of(1), creator_token="before")
    await store.put(OLD, an_object(1, encode_ledger(before)))
    await store.put(YOUNG, await store.read(YOUNG, 0, (await store.info(YOUNG)).size_bytes))
    if named:
        await with_manifest(store, {1: YOUNG})
    metadata = new_metadata()
    found = await rebuilt(store, metadata)
    assert [(each.key, each.ledger_ids, bool(each.problem)) for each in found] == [(YOUNG, (), True)]
    async with ArchiveLibrary(store, InlineWorkers()) as library:
        with pytest.raises(ObjectDamaged, match=YOUNG):
            _ = [each async for each in library.read(1)]


class Refusing(MemoryObjectStore):
    """Does not give one object while ``error`` is set."""

    error: TallybookError | None = None

    async def read(self, key: str, offset: int, size: int) -> bytes:
        if self.error is not None and key == YOUNG:
            raise self.error
        return await super().read(key, offset, size)


UNREAD: dict[str, TallybookError | None] = {
    "damaged": None,
    "refused": ArchiveDenied("in Glacier"),
    "hanging": ArchiveUnavailable("timed out"),
}


@pytest.mark.parametrize("named", [False, True], ids=["no manifest", "manifest"])
@pytest.mark.parametrize("how", UNREAD)
async def test_where_an_object_cannot_be_read_no_older_ledger_of_the_same_id_takes_its_place(
    how: str, named: bool
) -> None:
    store, whole = Refusing(RealClock()), an_object(1, uuid=2)
    await store.put(OLD, an_object(1, encode_ledger(replace(metadata_of(1), creator_token="before"))))
    await store.put(YOUNG, whole if UNREAD[how] else whole[:-100])
    if named:
        await with_manifest(store, {1: YOUNG})
    store.error = UNREAD[how]
    catalog = await catalog_of(store)
    assert (dict(catalog.ledgers), list(catalog.damaged)) == ({}, [YOUNG])
    assert catalog.lost_with(YOUNG) == (frozenset({1}) if named else None)
    async with ArchiveLibrary(store, InlineWorkers()) as library:
        with pytest.raises(
            type(UNREAD[how] or ObjectDamaged("")), match=r"ledger 1 (is|may be) in an object that cannot be read"
        ):
            await anext(library.read(1))
    metadata = new_metadata()
    found = await rebuilt(store, metadata)
    assert [(each.key, each.ledger_ids) for each in found] == [(YOUNG, ())]
    assert named or f"ledger 1 in {OLD}" in found[0].problem
    store.error = None
    await store.put(YOUNG, whole)
    await rebuilt(store, metadata)
    assert (await metadata.read_ledger(1)).value.identity == metadata_of(1).identity


@pytest.mark.parametrize("where", ["moved since", "dropped", "moved since, no manifest"])
async def test_where_an_object_cannot_be_read_its_ledger_is_found_where_it_moved_to_or_came_from(where: str) -> None:
    store, later = Refusing(RealClock()), RealClock().wall_us() // 1000 + 1_000
    await store.put(YOUNG, an_object(1, uuid=2))
    await store.put(OLD, an_object(1, created_at_ms=17 if where == "dropped" else later))
    if "no manifest" not in where:
        await with_manifest(store, {1: YOUNG}, *([OLD] if where == "dropped" else []))
    store.error = ArchiveDenied("in Glacier")
    catalog = await catalog_of(store)
    assert {each: found.receipt.key for each, found in catalog.ledgers.items()} == {1: OLD}
    assert catalog.lost_with(YOUNG) == (None if "no manifest" in where else frozenset({1}))


async def test_an_older_object_takes_the_place_of_none_that_is_lost_from_the_bucket() -> None:
    store = await with_manifest(MemoryObjectStore(RealClock()), {1: YOUNG})
    await store.put(OLD, an_object(1, encode_ledger(replace(metadata_of(1), creator_token="before"))))
    catalog = await catalog_of(store)
    assert (dict(catalog.ledgers), list(catalog.damaged)) == ({}, [YOUNG])


async def test_a_ledger_that_only_an_unreadable_set_may_hold_is_not_said_to_be_absent() -> None:
    store, key = MemoryObjectStore(RealClock()), object_key(UUID.format(3), [3, 9])
    await store.put(key, b"no object")
    async with ArchiveLibrary(store, InlineWorkers()) as library:
        with pytest.raises(ObjectDamaged, match="ledger 5 may be in an object that cannot be read"):
            await anext(library.read(5))
        with pytest.raises(NoSuchLedger):
            await anext(library.read(10))


async def test_a_ledger_whose_youngest_object_is_damaged_comes_back_out_of_an_older_one() -> None:
    store, metadata = await store_with_a_damaged_younger_object(), new_metadata()
    found = await rebuilt(store, metadata)
    assert [(each.key, each.ledger_ids, bool(each.problem)) for each in found] == [
        (YOUNG, (), True),
        (OLD, (1,), False),
    ]
    archived = (await metadata.read_ledger(1)).value.archived
    assert archived is not None
    assert archived.key == OLD


async def test_a_ledger_that_is_damaged_in_all_of_its_objects_is_given_up() -> None:
    store, metadata = await store_with_a_damaged_younger_object(), new_metadata()
    whole = an_object(1)
    await store.put(OLD, whole.replace(PAYLOADS[0], b"First"))
    found = await rebuilt(store, metadata)
    assert sorted(each.key for each in found if each.problem) == [OLD, YOUNG]
    assert len(found) == 2, "each is read once"
    assert (await metadata.list_ledgers()).ledger_ids == ()


@pytest.mark.parametrize("gone", [False, True])
async def test_a_library_goes_on_in_an_older_object_where_the_youngest_is_damaged_or_gone(gone: bool) -> None:
    store = await store_with_a_damaged_younger_object()
    async with ArchiveLibrary(store, InlineWorkers()) as library:
        if gone:
            await store.delete(YOUNG)
        assert [entry.payload async for entry in library.read(1)] == PAYLOADS


@pytest.mark.parametrize("first", [len(PAYLOADS) + 1, 2**63 - 1, 2**63])
async def test_a_library_refuses_a_range_that_begins_past_the_end(first: int) -> None:
    store = await store_with_a_damaged_younger_object()
    async with ArchiveLibrary(store, InlineWorkers()) as library:
        assert [entry async for entry in library.read(1, len(PAYLOADS))] == []
        for last in (None, first):
            with pytest.raises(InvalidArgument):
                await anext(library.read(1, first, last))


async def test_a_library_fails_where_every_object_of_a_ledger_is_damaged_or_gone() -> None:
    store = await store_with_a_damaged_younger_object()
    async with ArchiveLibrary(store, InlineWorkers()) as library:
        await store.delete(OLD)
        with pytest.raises(ObjectMissing):
            await anext(library.read(1))


@pytest.mark.parametrize("error", [DamagedFile("the record is damaged"), NewerFormat("the record is of format 9")])
async def test_an_unreadable_record_is_named_and_other_ledgers_are_found(error, monkeypatch) -> None:
    store, metadata = MemoryObjectStore(RealClock()), new_metadata()
    for number in (1, 2):
        await store.put(object_key(UUID.format(number), [number]), an_object(number))
    read_ledger = metadata.read_ledger

    async def read(ledger_id: int, *, linearizable: bool = False) -> Versioned:
        if ledger_id == 1:
            raise error
        return await read_ledger(ledger_id, linearizable=linearizable)

    monkeypatch.setattr(metadata, "read_ledger", read)
    found = await rebuilt(store, metadata)
    told, silent = ("newer", "unreadable") if isinstance(error, NewerFormat) else ("unreadable", "newer")
    assert [dict(getattr(each, told)) for each in found] == [{1: error.message}, {}]
    assert [dict(getattr(each, silent)) for each in found] == [{}, {}]
    assert [each.ledger_ids for each in found] == [(), (2,)]

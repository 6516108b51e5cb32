"""Contract of metadata records, the small values beside the ledgers. One suite for all drivers."""

import asyncio

import pytest

from tallybook.core.errors import InvalidArgument, MetadataUnavailable
from tallybook.metadata.rules import MAX_RECORD_BYTES, MAX_RECORD_NAME_BYTES, MAX_RECORD_SEGMENTS
from tallybook.metadata.store import BadVersion, MetadataRecord, Ok, RecordPage

ODD_NAMES = [
    "a", "streams/orders/eu", "größe/ü", "a/.", "../..", "b%2f/%", "zookeeper", "r-a/f-b", "a b/\t", "x\0y", "日本/🦫",
    "x" * MAX_RECORD_NAME_BYTES, "/".join("s" * MAX_RECORD_SEGMENTS),
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
async def test_a_record_is_kept_under_any_name(world, name):
    async with world() as store:
        one, other = await store.client(), await store.client()
        assert await one.store.read_record(name) is None
        made = await one.store.write_record(name, b"\x00value", None)
        assert isinstance(made, Ok)
        assert await other.store.read_record(name, linearizable=True) == MetadataRecord(b"\x00value", made.version)
        assert await other.store.list_records() == RecordPage((name,), complete=True)
        changed = await other.store.write_record(name, b"", made.version)
        assert changed.version > made.version
        assert await one.store.read_record(name, linearizable=True) == MetadataRecord(b"", changed.version)
        assert isinstance(await one.store.delete_record(name, changed.version), Ok)
        assert await other.store.read_record(name, linearizable=True) is None
        assert await other.store.list_records() == RecordPage((), complete=True)


async def test_names_that_are_alike_are_different_records(world):
    async with world() as store:
        client = await store.client()
        names = ["a", "a/b", "a/b/c", "A", "a-b", "a%2Fb", "r-a", "f-a"]
        for name in names:
            assert isinstance(await client.store.write_record(name, name.encode(), None), Ok)
        for name in names:
            assert (await client.store.read_record(name)).value == name.encode()
        await client.store.delete_record("a", (await client.store.read_record("a")).version)
        assert (await client.store.read_record("a/b")).value == b"a/b"


async def test_a_record_is_made_once(world):
    async with world() as store:
        clients = [await store.client() for _ in range(4)]
        results = await asyncio.gather(
            *(client.store.write_record("archive/leader", b"%d" % n, None) for n, client in enumerate(clients))
        )
        [winner] = [n for n, result in enumerate(results) if isinstance(result, Ok)]
        assert results.count(BadVersion()) == 3
        found = await clients[0].store.read_record("archive/leader", linearizable=True)
        assert found == MetadataRecord(b"%d" % winner, results[winner].version)


async def test_only_the_version_that_was_read_is_written_over_or_deleted(world):
    async with world() as store:
        client = await store.client()
        made = await client.store.write_record("a/b", b"1", None)
        now = await client.store.write_record("a/b", b"2", made.version)
        for version in (-1, made.version, now.version + 1):
            assert await client.store.write_record("a/b", b"3", version) == BadVersion()
            assert await client.store.delete_record("a/b", version) == BadVersion()
        assert await client.store.write_record("a/b", b"3", None) == BadVersion()
        assert await client.store.read_record("a/b") == MetadataRecord(b"2", now.version)


@pytest.mark.parametrize("name", ["never", "a", "a/b/c"])
async def test_what_is_not_there_is_neither_written_over_nor_deleted(world, name):
    async with world() as store:
        client = await store.client()
        await client.store.write_record("a/b", b"1", None)
        for version in (-1, 0, 1):
            assert await client.store.write_record(name, b"2", version) == BadVersion()
            assert await client.store.delete_record(name, version) == BadVersion()
        assert await client.store.read_record(name) is None


async def test_a_deleted_record_can_be_made_again(world):
    async with world() as store:
        client = await store.client()
        for _ in range(2):
            made = await client.store.write_record("a/b", b"1", None)
            await client.store.delete_record("a/b", made.version)
            assert await client.store.write_record("a/b", b"2", made.version) == BadVersion()


async def test_no_write_is_lost_among_many_at_once(world):
    async with world() as store:
        clients = [await store.client() for _ in range(3)]
        await clients[0].store.write_record("count", b"0", None)

        async def count(client) -> None:
            for _ in range(8):
                result = BadVersion()
                while not isinstance(result, Ok):
                    value, version = await client.store.read_record("count", linearizable=True)
                    result = await client.store.write_record("count", b"%d" % (int(value) + 1), version)

        await asyncio.gather(*(count(client) for client in clients))
        assert (await clients[1].store.read_record("count", linearizable=True)).value == b"24"


NAMES = sorted(
    ["a", "a!", "a-b", "a.b", "a/b", "a/b/c", "a/bc", "a/ü", "a0", "ab", "b/c/d/e", "b/d", "ü", "\U0001f9ab", "\uffee"]
)


@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b", "b/c/", "ü", "c", "a//", "/"])
async def test_pages_hold_what_begins_with_the_prefix_in_order_of_code_points(world, prefix, limit):
    async with world() as store:
        client = await store.client()
        for name in reversed(NAMES):
            await client.store.write_record(name, b"", None)
        found, page = [], await client.store.list_records(prefix, limit=limit)
        while not page.complete:
            assert len(page.names) == limit
            found += page.names
            page = await client.store.list_records(prefix, found[-1], limit)
        assert found + list(page.names) == [name for name in NAMES if name.startswith(prefix)]


async def test_a_page_begins_behind_any_text_whether_it_is_a_name_or_not(world):
    async with world() as store:
        client = await store.client()
        for name in NAMES:
            await client.store.write_record(name, b"", None)
        for after in [*NAMES, "a/", "a/b/", "a//", "b/c/d", "\0", "zz", "\U0010ffff"]:
            expected = tuple(name for name in NAMES if name > after)
            assert await client.store.list_records(after=after) == RecordPage(expected, complete=True)


async def test_what_another_client_has_just_made_is_listed(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        for n in range(20):
            await one.store.write_record(f"streams/{n:02}", b"", None)
            assert (await other.store.list_records("streams/")).names[-1] == f"streams/{n:02}"


@pytest.mark.parametrize(
    "name",
    ["", "/", "/a", "a/", "a//b", "\ud800", "x" * (MAX_RECORD_NAME_BYTES + 1), "ü" * 257, "/".join("s" * 17)],
    ids=ascii,
)
async def test_a_name_that_names_nothing_is_refused(world, name):
    async with world() as store:
        client = await store.client()
        for operation in (
            lambda: client.store.read_record(name),
            lambda: client.store.write_record(name, b"", None),
            lambda: client.store.delete_record(name, 0),
        ):
            with pytest.raises(InvalidArgument):
                await operation()


async def test_what_does_not_fit_is_refused(world):
    async with world() as store:
        client = await store.client()
        made = await client.store.write_record("a", bytes(MAX_RECORD_BYTES), None)
        for version in (None, made.version):
            with pytest.raises(InvalidArgument, match=f"{MAX_RECORD_BYTES + 1}"):
                await client.store.write_record("a", bytes(MAX_RECORD_BYTES + 1), version)
        assert await client.store.read_record("a") == MetadataRecord(bytes(MAX_RECORD_BYTES), made.version)
        for arguments in ({"limit": 0}, {"prefix": "\ud800"}, {"after": "\ud800"}):
            with pytest.raises(InvalidArgument):
                await client.store.list_records(**arguments)


async def test_records_outlive_their_client_and_a_closed_client_answers_nothing(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        made = await one.store.write_record("a/b", b"1", None)
        await one.close()
        for operation in (
            lambda: one.store.read_record("a/b"),
            lambda: one.store.write_record("a/b", b"2", made.version),
            lambda: one.store.delete_record("a/b", made.version),
            one.store.list_records,
        ):
            with pytest.raises(MetadataUnavailable):
                await operation()
        assert await other.store.read_record("a/b", linearizable=True) == MetadataRecord(b"1", made.version)

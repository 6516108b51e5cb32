"""Contract of ``MetadataStore``: ledgers, ids, cookies and watches. One suite for all drivers."""

import asyncio
import random
from dataclasses import replace

import pytest

from tallybook.core.errors import InvalidArgument, LedgerExists, MetadataConflict, MetadataUnavailable, NoSuchLedger
from tallybook.core.ids import MAX_ID, NO_IDENTITY
from tallybook.core.limits import LEDGER_ID_BLOCK, MAX_CUSTOM_METADATA_BYTES
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import (
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerState,
    MissedRange,
    begin_recovery,
)
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.store import BadVersion, Deletion, Ok
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng

from .conftest import settled

ODD_BOOKIE_IDS = ["b1", "a/b", ".", "..", "b%2f", "zoo keeper", "größe", "x" * 128]


def ledger(ledger_id: int, creator: str = "creator", **fields) -> LedgerMetadata:
    fragment = Fragment(0, ("b1", "b2", "b3"))
    return LedgerMetadata(ledger_id, Quorum(3, 3, 2), (fragment,), creator, 1_700_000_000_000, **fields)


async def returns(work, seconds: float = 10.0):
    """Wait for something that must happen."""
    return await asyncio.wait_for(work, seconds)


# --- create, read -----------------------------------------------------------------------------------------------------


async def test_a_created_ledger_is_read_by_every_client_as_it_was_given(world):
    given = replace(
        ledger(7),
        state=LedgerState.CLOSED,
        last_entry_id=99,
        length=12_345,
        digest=DigestType.HMAC_SHA256,
        key_salt=b"\x00salt",
        key_verifier=b"\xffverifier",
        writer_token="",
        fragments=(Fragment(0, ("b1", "b2", "b3")), Fragment(40, ("b1", "b4", "b3"))),
        missed=(MissedRange("b4", 40, 50), MissedRange("b1", 41, 99)),
        custom={"owner": b"\x00\xff", "": b""},
    )
    async with world() as store:
        one, other = await store.client(), await store.client()
        created = await one.store.create_ledger(given)
        assert created.value == given
        assert await other.store.read_ledger(7, linearizable=True) == created
        assert await one.store.read_ledger(7) == created


async def test_creating_again_with_the_same_token_gives_what_is_stored(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        created = await one.store.create_ledger(ledger(7))
        assert await other.store.create_ledger(ledger(7)) == created
        recovering = begin_recovery(created.value)
        written = await other.store.update_ledger(recovering, created.version)
        assert await one.store.create_ledger(ledger(7)) == (recovering, written.version)


async def test_creating_a_ledger_that_another_client_created_is_refused(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        created = await one.store.create_ledger(ledger(7, "one"))
        with pytest.raises(LedgerExists):
            await other.store.create_ledger(ledger(7, "other"))
        assert await other.store.read_ledger(7, linearizable=True) == created


async def test_of_many_creators_exactly_one_succeeds(world):
    async with world() as store:
        clients = [await store.client() for _ in range(4)]
        results = await asyncio.gather(
            *(client.store.create_ledger(ledger(7, f"creator {n}")) for n, client in enumerate(clients)),
            return_exceptions=True,
        )
        [winner] = [result for result in results if not isinstance(result, Exception)]
        assert [type(result) for result in results if result is not winner] == [LedgerExists] * 3
        assert await clients[0].store.read_ledger(7, linearizable=True) == winner


@pytest.mark.parametrize("ledger_id", [0, 4095, 4096, 2**48 + 5, MAX_ID])
async def test_reading_a_ledger_that_never_was_says_so(world, ledger_id):
    async with world() as store:
        client = await store.client()
        with pytest.raises(NoSuchLedger):
            await client.store.read_ledger(ledger_id)
        with pytest.raises(NoSuchLedger):
            await client.store.read_ledger(ledger_id, linearizable=True)


async def test_ids_outside_63_bits_are_refused(world):
    async with world() as store:
        client = await store.client()
        for ledger_id in (-1, MAX_ID + 1):
            with pytest.raises(InvalidArgument):
                await client.store.read_ledger(ledger_id)
            with pytest.raises(InvalidArgument):
                await client.store.delete_ledger(ledger_id, 0)
            with pytest.raises(InvalidArgument):
                client.store.watch_ledger(ledger_id)


async def test_metadata_of_the_largest_size_is_kept_and_a_larger_one_is_refused(world):
    async with world() as store:
        client = await store.client()
        custom = {"x": bytes(MAX_CUSTOM_METADATA_BYTES - 1)}
        bookies = tuple(f"bookie-{n:03}".ljust(100, "x") for n in range(64))
        fragments = tuple(Fragment(first, bookies) for first in range(130))
        large = replace(ledger(7, custom=custom), quorum=Quorum(64, 3, 2), fragments=fragments)
        created = await client.store.create_ledger(large)
        assert (await client.store.read_ledger(7)).value == large
        larger = replace(large, fragments=tuple(Fragment(first, bookies) for first in range(150)))
        with pytest.raises(InvalidArgument):
            await client.store.update_ledger(larger, created.version)
        with pytest.raises(InvalidArgument):
            await client.store.create_ledger(replace(larger, ledger_id=8))
        assert (await client.store.read_ledger(7)) == created


# --- update, delete ---------------------------------------------------------------------------------------------------


async def test_an_update_of_the_current_version_is_seen_by_all_clients(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        created = await one.store.create_ledger(ledger(7))
        result = await other.store.update_ledger(begin_recovery(created.value), created.version)
        assert isinstance(result, Ok)
        assert result.version > created.version
        assert await one.store.read_ledger(7, linearizable=True) == (begin_recovery(created.value), result.version)


async def test_an_update_of_an_older_version_changes_nothing(world):
    async with world() as store:
        client = await store.client()
        created = await client.store.create_ledger(ledger(7))
        first = await client.store.update_ledger(begin_recovery(created.value), created.version)
        assert await client.store.update_ledger(created.value, created.version) == BadVersion()
        assert await client.store.read_ledger(7) == (begin_recovery(created.value), first.version)


async def test_a_version_that_never_was_matches_nothing(world):
    async with world() as store:
        client = await store.client()
        created = await client.store.create_ledger(ledger(7))
        for version in (-1, created.version - 1, created.version + 1):
            assert await client.store.update_ledger(created.value, version) == BadVersion()
            assert await client.store.delete_ledger(7, version) == BadVersion()
        assert await client.store.read_ledger(7) == created


async def test_a_ledger_that_is_not_there_is_neither_updated_nor_deleted(world):
    async with world() as store:
        client = await store.client()
        assert await client.store.update_ledger(ledger(7), 0) == BadVersion()
        assert await client.store.delete_ledger(7, 0) == BadVersion()
        with pytest.raises(NoSuchLedger):
            await client.store.read_ledger(7)


async def test_a_deleted_ledger_is_gone_for_all_clients(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        created = await one.store.create_ledger(ledger(7))
        assert isinstance(await other.store.delete_ledger(7, created.version), Ok)
        with pytest.raises(NoSuchLedger):
            await one.store.read_ledger(7, linearizable=True)
        assert await one.store.update_ledger(created.value, created.version) == BadVersion()
        assert await one.store.delete_ledger(7, created.version) == BadVersion()


async def test_a_deletion_leaves_a_record_and_what_was_never_there_has_none(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        versions = {i: (await one.store.create_ledger(ledger(i))).version for i in (7, 9)}
        assert isinstance(await one.store.delete_ledger(7, versions[7]), Ok)
        found = [await other.store.deletion(i) for i in (6, 7, 8, 9, 2**62)]
        assert found == [None, Deletion(NO_IDENTITY), None, None, None]


async def test_the_record_of_a_deletion_distinguishes_the_ledger_from_another_one_of_its_id(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        neighbours = [(await one.store.create_ledger(ledger(i, f"creator of {i}"))) for i in range(4094, 4098)]
        await asyncio.gather(
            *(one.store.delete_ledger(each.value.ledger_id, each.version, each.value.identity) for each in neighbours)
        )
        for each in neighbours:
            deletion = await other.store.deletion(each.value.ledger_id)
            assert deletion == Deletion.of(each.value.identity)
            assert deletion.is_of(each.value.identity)
            assert not deletion.is_of(ledger(each.value.ledger_id, "somebody else").identity)
            assert deletion.is_of(NO_IDENTITY)


async def test_what_an_updater_deletes_is_recorded_with_its_identity(world):
    async with world() as store:
        client = await store.client()
        created = await client.store.create_ledger(ledger(7))
        await LedgerUpdater(client.store, RealClock(), SystemRng()).delete(7)
        assert await client.store.deletion(7) == Deletion.of(created.value.identity)


async def test_a_ledger_changed_since_it_was_read_is_not_deleted(world):
    async with world() as store:
        client = await store.client()
        created = await client.store.create_ledger(ledger(7))
        await client.store.update_ledger(begin_recovery(created.value), created.version)
        assert await client.store.delete_ledger(7, created.version) == BadVersion()
        assert (await client.store.read_ledger(7)).value.state is LedgerState.IN_RECOVERY


async def test_r09_the_id_of_a_deleted_ledger_is_never_used_again(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        created = await one.store.create_ledger(ledger(7))
        await other.store.create_ledger(ledger(8))
        await other.store.delete_ledger(7, created.version)
        for client in (one, other):
            with pytest.raises(LedgerExists):
                await client.store.create_ledger(ledger(7))
            with pytest.raises(LedgerExists):
                await client.store.create_ledger(ledger(7, "somebody else"))
        assert (await one.store.list_ledgers()).ledger_ids == (8,)


async def test_ids_stay_used_in_any_order_of_deletions(world):
    async with world() as store:
        client = await store.client()
        ids = list(range(4090, 4102))
        versions = {i: (await client.store.create_ledger(ledger(i))).version for i in ids if i != 4093}
        order = list(versions)
        random.Random(3).shuffle(order)
        for ledger_id in order:
            assert isinstance(await client.store.delete_ledger(ledger_id, versions[ledger_id]), Ok)
        for ledger_id in order:
            with pytest.raises(LedgerExists):
                await client.store.create_ledger(ledger(ledger_id))
        assert await client.store.create_ledger(ledger(4093))
        assert await client.store.list_ledgers() == ((4093,), True)


async def test_neighbours_deleted_by_two_clients_at_once_are_both_gone(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        versions = {i: (await one.store.create_ledger(ledger(i))).version for i in range(20)}
        results = await asyncio.gather(
            *((one, other)[i % 2].store.delete_ledger(i, version) for i, version in versions.items())
        )
        assert all(isinstance(result, Ok) for result in results)
        assert await one.store.list_ledgers() == ((), True)
        for ledger_id in versions:
            with pytest.raises(LedgerExists):
                await other.store.create_ledger(ledger(ledger_id))


async def test_r10_no_update_is_lost_among_many_at_once(world):
    async with world() as store:
        clients = [await store.client() for _ in range(3)]
        await clients[0].store.create_ledger(ledger(7, custom={"count": b"0"}))

        async def count(client) -> None:
            updater = LedgerUpdater(client.store, RealClock(), SystemRng())
            for _ in range(8):
                await updater.update(7, one_more)

        await asyncio.gather(*(count(client) for client in clients))
        assert (await clients[1].store.read_ledger(7, linearizable=True)).value.custom == {"count": b"24"}


def one_more(metadata: LedgerMetadata) -> LedgerMetadata:
    return replace(metadata, custom={"count": b"%d" % (int(metadata.custom["count"]) + 1)})


# --- ids --------------------------------------------------------------------------------------------------------------


async def test_no_ledger_id_is_handed_out_twice(world):
    async with world() as store:
        clients = [await store.client() for _ in range(3)]
        count = LEDGER_ID_BLOCK + 10
        ids = await asyncio.gather(*(client.store.next_ledger_id() for _ in range(count) for client in clients))
        assert len(set(ids)) == 3 * count
        assert min(ids) >= 0


async def test_one_client_hands_out_ascending_ids(world):
    async with world() as store:
        client = await store.client()
        ids = [await client.store.next_ledger_id() for _ in range(LEDGER_ID_BLOCK + 2)]
        assert ids == sorted(ids)


async def test_the_counter_lies_above_every_id_assigned_by_any_client(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        assert await other.store.id_counter() == 0
        for _ in range(LEDGER_ID_BLOCK + 1):
            ledger_id = await one.store.next_ledger_id()
            assert await other.store.id_counter() > ledger_id
        assert await other.store.next_ledger_id() > ledger_id


async def test_a_raised_counter_never_falls_and_no_id_below_it_is_handed_out(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        await one.store.raise_id_counter(700)
        assert await other.store.id_counter() == 700
        await other.store.raise_id_counter(650)
        assert await one.store.id_counter() == 700
        assert [await other.store.next_ledger_id() for _ in range(2)] == [700, 701]
        with pytest.raises(InvalidArgument):
            await one.store.raise_id_counter(-1)


# --- listing ----------------------------------------------------------------------------------------------------------


async def test_pages_follow_each_other_and_only_the_last_is_complete(world):
    async with world() as store:
        client = await store.client()
        for ledger_id in (5, 1, 9, 3, 7):
            await client.store.create_ledger(ledger(ledger_id))
        assert await client.store.list_ledgers(limit=2) == ((1, 3), False)
        assert await client.store.list_ledgers(after=3, limit=2) == ((5, 7), False)
        assert await client.store.list_ledgers(after=7, limit=2) == ((9,), True)
        assert await client.store.list_ledgers(after=9, limit=2) == ((), True)
        assert await client.store.list_ledgers(after=4) == ((5, 7, 9), True)


async def test_a_page_that_is_exactly_full_and_final_is_complete(world):
    async with world() as store:
        client = await store.client()
        for ledger_id in range(3):
            await client.store.create_ledger(ledger(ledger_id))
        assert await client.store.list_ledgers(limit=3) == ((0, 1, 2), True)
        assert await client.store.list_ledgers(limit=2) == ((0, 1), False)


BOUNDARIES = (0, 4095, 4096, 2**24 - 1, 2**24, 2**36 - 1, 2**36, 2**48 - 1, 2**48, 2**62, MAX_ID)


@pytest.mark.parametrize("limit", [1, 2, 3, len(BOUNDARIES), 1000])
async def test_e05_a_listing_crosses_every_boundary_of_the_id_ranges(world, limit):
    async with world() as store:
        client = await store.client()
        for ledger_id in BOUNDARIES:
            await client.store.create_ledger(ledger(ledger_id))
        found, page = [], await client.store.list_ledgers(limit=limit)
        while not page.complete:
            assert len(page.ledger_ids) == limit
            found += page.ledger_ids
            page = await client.store.list_ledgers(after=found[-1], limit=limit)
        assert tuple(found) + page.ledger_ids == BOUNDARIES


async def test_what_another_client_has_just_created_is_listed(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        for ledger_id in range(30):
            await one.store.create_ledger(ledger(ledger_id))
            assert await other.store.list_ledgers(after=ledger_id - 1) == ((ledger_id,), True)


async def test_deleted_ledgers_are_not_listed(world):
    async with world() as store:
        client = await store.client()
        versions = [(await client.store.create_ledger(ledger(ledger_id))).version for ledger_id in range(4)]
        await client.store.delete_ledger(1, versions[1])
        await client.store.delete_ledger(3, versions[3])
        assert await client.store.list_ledgers() == ((0, 2), True)


async def test_a_page_of_nothing_cannot_be_asked_for(world):
    async with world() as store:
        client = await store.client()
        with pytest.raises(InvalidArgument):
            await client.store.list_ledgers(limit=0)


# --- cluster id, cookies ----------------------------------------------------------------------------------------------


async def test_all_clients_see_one_cluster_id_from_the_start(world):
    async with world() as store:
        clients = [await store.client() for _ in range(4)]
        ids = await asyncio.gather(*(client.store.cluster_id() for client in clients))
        assert len(set(ids)) == 1
        assert len(ids[0]) == 36
        assert await (await store.client()).store.cluster_id() == ids[0]


@pytest.mark.parametrize("bookie_id", ODD_BOOKIE_IDS)
async def test_a_cookie_is_kept_for_any_bookie_id(world, bookie_id):
    async with world() as store:
        one, other = await store.client(), await store.client()
        assert await one.store.read_cookie(bookie_id) is None
        await one.store.write_cookie(bookie_id, b"\x00cookie")
        assert await other.store.read_cookie(bookie_id) == b"\x00cookie"
        assert await other.store.read_cookie("another") is None
        await other.store.delete_cookie(bookie_id)
        await other.store.delete_cookie(bookie_id)
        assert await one.store.read_cookie(bookie_id) is None


async def test_a_cookie_gives_way_to_another_one_only_when_told_so(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        await one.store.write_cookie("b1", b"old")
        await other.store.write_cookie("b1", b"old")
        with pytest.raises(MetadataConflict):
            await other.store.write_cookie("b1", b"new")
        assert await one.store.read_cookie("b1") == b"old"
        await other.store.write_cookie("b1", b"new", replace=True)
        assert await one.store.read_cookie("b1") == b"new"
        await other.store.write_cookie("b2", b"first", replace=True)
        assert await one.store.read_cookie("b2") == b"first"


async def test_bookie_ids_and_cookies_out_of_bounds_are_refused(world):
    async with world() as store:
        client = await store.client()
        for bookie_id in ("", "x" * 129, "a\nb", "a\0b"):
            with pytest.raises(InvalidArgument):
                await client.store.write_cookie(bookie_id, b"cookie")
            with pytest.raises(InvalidArgument):
                await client.store.read_cookie(bookie_id)
        with pytest.raises(InvalidArgument):
            await client.store.write_cookie("b1", bytes(64 * 1024 + 1))


# --- watches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["this client", "another client"])
async def test_a_watch_wakes_on_creation_update_and_deletion(world, writer):
    async with world() as store:
        one, other = await store.client(), await store.client()
        author = one if writer == "this client" else other
        watch = one.store.watch_ledger(7)
        await settled(watch)
        created = await author.store.create_ledger(ledger(7))
        await returns(watch.changed())
        updated = await author.store.update_ledger(begin_recovery(created.value), created.version)
        await returns(watch.changed())
        assert await one.store.read_ledger(7, linearizable=True) == (begin_recovery(created.value), updated.version)
        await author.store.delete_ledger(7, updated.version)
        await returns(watch.changed())


async def test_a_change_right_after_the_watch_began_is_not_missed(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        created = await other.store.create_ledger(ledger(7))
        watch = one.store.watch_ledger(7)
        await other.store.update_ledger(begin_recovery(created.value), created.version)
        await returns(watch.changed())


async def test_a_change_between_two_waits_is_not_missed(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        version = (await other.store.create_ledger(ledger(7))).version
        watch = one.store.watch_ledger(7)
        for count in range(10):
            changed = ledger(7, custom={"count": b"%d" % count})
            version = (await other.store.update_ledger(changed, version)).version
            while (await one.store.read_ledger(7)).value != changed:
                await returns(watch.changed())


async def test_versions_read_by_one_client_never_go_back(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        version = (await other.store.create_ledger(ledger(7))).version
        await one.store.read_ledger(7, linearizable=True)
        seen = []

        async def write() -> None:
            nonlocal version
            for count in range(30):
                version = (await other.store.update_ledger(ledger(7, custom={"n": b"%d" % count}), version)).version

        async def read() -> None:
            while not seen or seen[-1] < version or version < 30:
                seen.append((await one.store.read_ledger(7)).version)

        await returns(asyncio.gather(write(), read()), 30)
        assert seen == sorted(seen)


async def test_every_watch_of_a_ledger_wakes_and_those_of_others_sleep_on(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        created = await other.store.create_ledger(ledger(7))
        bystander = one.store.watch_ledger(8)
        watches = [one.store.watch_ledger(7), one.store.watch_ledger(7), other.store.watch_ledger(7)]
        for watch in (*watches, bystander):
            await settled(watch)
        await other.store.update_ledger(begin_recovery(created.value), created.version)
        for watch in watches:
            await returns(watch.changed())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bystander.changed(), 0.2)


async def test_a_closed_watch_ends_the_wait_and_the_other_one_goes_on(world):
    async with world() as store:
        client = await store.client()
        closed, kept = client.store.watch_ledger(7), client.store.watch_ledger(7)
        await settled(closed)
        await settled(kept)
        waiting = asyncio.ensure_future(closed.changed())
        await asyncio.sleep(0)
        await closed.close()
        await closed.close()
        with pytest.raises(MetadataUnavailable):
            await returns(waiting)
        await client.store.create_ledger(ledger(7))
        await returns(kept.changed())


# --- closing ----------------------------------------------------------------------------------------------------------


async def test_a_closed_client_answers_nothing_and_ends_its_watches(world):
    async with world() as store:
        client = await store.client()
        created = await client.store.create_ledger(ledger(7))
        watch = client.store.watch_ledger(7)
        await settled(watch)
        waiting = asyncio.ensure_future(watch.changed())
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(MetadataUnavailable):
            await returns(waiting)
        for operation in (
            lambda: client.store.read_ledger(7),
            lambda: client.store.create_ledger(ledger(8)),
            lambda: client.store.update_ledger(created.value, created.version),
            lambda: client.store.delete_ledger(7, created.version),
            client.store.list_ledgers,
            client.store.id_counter,
            client.store.next_ledger_id,
            client.store.cluster_id,
            lambda: client.store.read_cookie("b1"),
            lambda: client.store.write_cookie("b1", b""),
            client.membership.bookies,
        ):
            with pytest.raises(MetadataUnavailable):
                await returns(operation())
        with pytest.raises(MetadataUnavailable):
            client.store.watch_ledger(7)
        with pytest.raises(MetadataUnavailable):
            client.membership.watch()


async def test_what_was_written_outlives_its_client(world):
    async with world() as store:
        one = await store.client()
        cluster_id = await one.store.cluster_id()
        created = await one.store.create_ledger(ledger(await one.store.next_ledger_id()))
        await one.store.write_cookie("b1", b"cookie")
        counter = await one.store.id_counter()
        await one.close()
        await one.close()
        other = await store.client()
        assert await other.store.cluster_id() == cluster_id
        assert await other.store.read_ledger(created.value.ledger_id) == created
        assert await other.store.read_cookie("b1") == b"cookie"
        assert await other.store.next_ledger_id() >= counter

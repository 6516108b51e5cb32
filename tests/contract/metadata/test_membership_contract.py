"""Contract of ``Membership``: which bookies are alive. One suite for all drivers."""

import asyncio

import pytest

from tallybook.core.answers import Incarnation
from tallybook.core.errors import InvalidArgument, MetadataConflict, MetadataUnavailable
from tallybook.metadata.store import BookieInfo, BookieMode

from .conftest import settled


def bookie(bookie_id: str = "b1", *, uuid: str = "uuid-1", boot: int = 1, **fields) -> BookieInfo:
    return BookieInfo(bookie_id, f"{bookie_id}.example:3181", Incarnation(uuid, boot), **fields)


async def returns(work, seconds: float = 10.0):
    """Wait for something that must happen."""
    return await asyncio.wait_for(work, seconds)


async def stays(work) -> None:
    """Something that must not happen does not, for a while."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work, 0.2)


async def sees(store, client, expected: dict[str, BookieInfo]) -> None:
    """Wait until a client sees exactly these bookies."""

    async def same() -> bool:
        return await client.membership.bookies() == expected

    await store.eventually(same)


async def test_a_registered_bookie_is_seen_as_it_described_itself(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        info = bookie(mode=BookieMode.READ_ONLY, http_address="b1:8080", rack="/r1/ü", free_bytes=2**40)
        await one.membership.register(info)
        await sees(store, one, {"b1": info})
        await sees(store, other, {"b1": info})


async def test_no_bookie_is_alive_in_a_new_store(world):
    async with world() as store:
        assert await (await store.client()).membership.bookies() == {}


async def test_bookies_of_all_clients_are_listed_in_order_of_id(world):
    async with world() as store:
        clients = [await store.client() for _ in range(3)]
        names = ["b2", "b10", "a", "ü", "B", "a/b", ".", "..", "100%"]
        await asyncio.gather(*(clients[n % 3].membership.register(bookie(name)) for n, name in enumerate(names)))
        await sees(store, clients[0], {name: bookie(name) for name in names})
        assert list(await clients[0].membership.bookies()) == sorted(names)


async def test_a_second_live_process_under_one_id_is_refused(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        first = await one.membership.register(bookie())
        for uuid, boot in (("uuid-1", 1), ("uuid-1", 0), ("uuid-2", 9)):
            with pytest.raises(MetadataConflict):
                await other.membership.register(bookie(uuid=uuid, boot=boot))
        with pytest.raises(MetadataConflict):
            await one.membership.register(bookie())
        await stays(first.lost())
        await sees(store, other, {"b1": bookie()})


async def test_of_many_at_once_under_one_id_exactly_one_is_registered(world):
    async with world() as store:
        clients = [await store.client() for _ in range(4)]
        results = await asyncio.gather(
            *(client.membership.register(bookie(uuid=f"uuid-{n}")) for n, client in enumerate(clients)),
            return_exceptions=True,
        )
        refused = [result for result in results if isinstance(result, MetadataConflict)]
        assert len(refused) == 3
        winner = next(n for n, result in enumerate(results) if not isinstance(result, Exception))
        await sees(store, clients[0], {"b1": bookie(uuid=f"uuid-{winner}")})


@pytest.mark.parametrize("same_client", [True, False])
async def test_the_next_life_of_a_bookie_takes_over_at_once(world, same_client):
    async with world() as store:
        one = await store.client()
        other = one if same_client else await store.client()
        earlier = await one.membership.register(bookie(boot=1))
        later = await other.membership.register(bookie(boot=2))
        await returns(earlier.lost())
        await stays(later.lost())
        await sees(store, one, {"b1": bookie(boot=2)})
        with pytest.raises(MetadataConflict):
            await earlier.update(bookie(boot=1, mode=BookieMode.READ_ONLY))
        await earlier.close()
        await sees(store, one, {"b1": bookie(boot=2)})
        await stays(later.lost())


async def test_a_bookie_that_leaves_is_gone_and_may_come_back(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        registration = await one.membership.register(bookie())
        await one.membership.register(bookie("b2"))
        await registration.close()
        await returns(registration.lost())
        await sees(store, other, {"b2": bookie("b2")})
        await registration.close()
        await other.membership.register(bookie(uuid="uuid-2"))
        await sees(store, one, {"b1": bookie(uuid="uuid-2"), "b2": bookie("b2")})


async def test_closing_a_client_takes_its_bookies_along(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        registration = await one.membership.register(bookie())
        await other.membership.register(bookie("b2"))
        await one.close()
        await returns(registration.lost())
        await sees(store, other, {"b2": bookie("b2")})


async def test_a_bookie_changes_what_it_says_of_itself(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        registration = await one.membership.register(bookie())
        for free_bytes, mode in enumerate((BookieMode.READ_ONLY, BookieMode.WRITABLE, BookieMode.READ_ONLY)):
            changed = bookie(mode=mode, rack=mode.value, free_bytes=free_bytes)
            await registration.update(changed)
            await sees(store, other, {"b1": changed})
        with pytest.raises(InvalidArgument):
            await registration.update(bookie("b2"))
        await stays(registration.lost())


async def test_r07_an_expired_bookie_is_not_listed_and_learns_that_it_is_lost(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        registration = await one.membership.register(bookie())
        survivor = await other.membership.register(bookie("b2"))
        await store.expire(one, "b1")
        await returns(registration.lost())
        await sees(store, other, {"b2": bookie("b2")})
        with pytest.raises(MetadataConflict):
            await registration.update(bookie(mode=BookieMode.READ_ONLY))
        await stays(survivor.lost())


async def test_an_expired_bookie_registers_again(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        expired = await one.membership.register(bookie())
        await store.expire(one, "b1")
        await returns(expired.lost())
        again = await one.membership.register(bookie())
        await sees(store, other, {"b1": bookie()})
        await expired.close()
        await stays(again.lost())
        await sees(store, other, {"b1": bookie()})


async def test_the_place_of_an_expired_bookie_is_free_for_others(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        expired = await one.membership.register(bookie())
        await store.expire(one, "b1")
        await returns(expired.lost())
        await other.membership.register(bookie(uuid="uuid-2"))
        await sees(store, one, {"b1": bookie(uuid="uuid-2")})


@pytest.mark.parametrize("watcher", ["this client", "another client"])
async def test_a_watch_wakes_on_join_change_leave_and_expiry(world, watcher):
    async with world() as store:
        one, other = await store.client(), await store.client()
        client = one if watcher == "this client" else other
        watch = client.membership.watch()
        await settled(watch)
        registration = await one.membership.register(bookie())
        await returns(watch.changed())
        await settled(watch)
        await registration.update(bookie(mode=BookieMode.READ_ONLY))
        await returns(watch.changed())
        await settled(watch)
        await registration.close()
        await returns(watch.changed())
        await settled(watch)
        expiring = await one.membership.register(bookie("b2"))
        await settled(watch)
        await store.expire(one, "b2")
        await returns(watch.changed())
        await returns(expiring.lost())
        await sees(store, client, {})


async def test_a_join_right_after_the_watch_began_is_not_missed(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        watch = one.membership.watch()
        await other.membership.register(bookie())
        await returns(watch.changed())
        await sees(store, one, {"b1": bookie()})


async def test_following_the_watch_shows_every_state_of_the_membership_in_the_end(world):
    async with world() as store:
        one, other = await store.client(), await store.client()
        watch = one.membership.watch()
        registrations = {}
        for n in range(12):
            name = f"b{n % 4}"
            if name in registrations:
                await registrations.pop(name).close()
            else:
                registrations[name] = await other.membership.register(bookie(name))
            while list(await one.membership.bookies()) != sorted(registrations):
                await returns(watch.changed())


async def test_a_closed_membership_watch_ends_the_wait(world):
    async with world() as store:
        client = await store.client()
        watch = client.membership.watch()
        await settled(watch)
        waiting = asyncio.ensure_future(watch.changed())
        await asyncio.sleep(0)
        await watch.close()
        with pytest.raises(MetadataUnavailable):
            await returns(waiting)
        await client.membership.register(bookie())


async def test_bookie_ids_out_of_bounds_are_refused(world):
    async with world() as store:
        client = await store.client()
        for bookie_id in ("", "x" * 129, "tab\t"):
            with pytest.raises(InvalidArgument):
                await client.membership.register(bookie(bookie_id))
        assert await client.membership.bookies() == {}

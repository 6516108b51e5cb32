"""Reports of a client about refused, cancelled or delayed work: done, not done, or unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pytest

from tallybook.client.client import Client
from tallybook.core.answers import FenceAnswer, ReadAnswer
from tallybook.core.errors import (
    Busy,
    EntryTooLarge,
    LedgerClosed,
    LedgerHasWriter,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NotEnoughBookies,
    Outcome,
    RecoveryFailed,
    TallybookError,
    Unauthorized,
)
from tallybook.metadata.store import MetadataStore
from tallybook.sim.memory_bookie.bookie import MemoryBookie

from ..simulated import scenario
from ..support.direct_connections import DirectConnection
from ..support.fault_script import FaultScript
from ..support.faulty_metadata import FaultyMetadataStore, MetadataFault
from ..support.ledger_scenario import SMALL, eventually, lines, read_all
from ..support.memory_cluster import MemoryCluster
from .parts import hold_commits, release_commits, written_ledger

# -- appends --------------------------------------------------------------------------------------


@scenario()
async def test_an_append_to_a_closed_handle_was_not_done(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    await ledger.append(b"x")
    await ledger.close()
    for attempt in (ledger.append(b"late"), ledger.append_many([b"late"])):
        with pytest.raises(LedgerClosed) as caught:
            await attempt
        assert caught.value.outcome is Outcome.NOT_DONE


@scenario()
async def test_busy_tells_when_there_should_be_room_again_and_the_client_how_much_is_taken(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    assert (client.pending_bytes, client.max_pending_bytes) == (0, SMALL.max_pending_bytes)

    def filled() -> int:
        with pytest.raises(Busy) as refused:
            [ledger.append_nowait(bytes(400)) for _ in range(1000)]
        assert client.max_pending_bytes - 500 < client.pending_bytes <= client.max_pending_bytes
        return refused.value.retry_after_ms

    assert filled() == 1, "nothing is known yet"
    await eventually(lambda: client.pending_bytes == 0, cluster)
    quick = filled()
    await cluster.world.clock.sleep(quick / 1000)
    assert 0 < client.pending_bytes < client.max_pending_bytes
    await eventually(lambda: client.pending_bytes == 0, cluster)
    hold_commits(cluster)
    pending = ledger.append_nowait(b"held up")
    await cluster.world.clock.sleep(1.5)
    release_commits(cluster)
    await pending
    assert 1 < quick < filled() <= 1000


@scenario()
async def test_when_a_handle_dies_sent_appends_are_unknown_and_later_ones_not_done(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    await ledger.append(b"x")
    for name in ledger.metadata.last_fragment.bookies[1:]:
        cluster.bookies[name].kill()
    pending = ledger.append_nowait(b"sent")
    with pytest.raises(NotEnoughBookies) as sent:
        await pending
    with pytest.raises(NotEnoughBookies) as later:
        ledger.append_nowait(b"never sent")
    assert (sent.value.outcome, later.value.outcome) == (Outcome.UNKNOWN, Outcome.NOT_DONE)
    assert later.value.message == sent.value.message
    with pytest.raises(NotEnoughBookies) as again:
        await pending
    assert again.value.outcome is Outcome.UNKNOWN


@scenario()
async def test_appends_that_wait_for_space_when_the_handle_dies_were_not_done_unless_some_were_sent(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    await ledger.append(b"x")
    hold_commits(cluster)
    many = asyncio.ensure_future(ledger.append_many([bytes(900)] * 100))
    await cluster.world.clock.sleep(0.1)
    waiting = asyncio.ensure_future(ledger.append(bytes(900)))
    await cluster.world.clock.sleep(0.1)
    ledger.abandon()
    outcomes = []
    for call in (many, waiting):
        with pytest.raises(TallybookError) as caught:
            await call
        outcomes.append(caught.value.outcome)
    assert outcomes == [Outcome.UNKNOWN, Outcome.NOT_DONE]


@scenario()
async def test_one_entry_too_large_among_many_stops_all_before_any_is_sent(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    with pytest.raises(EntryTooLarge):
        await ledger.append_many([b"fine", bytes(2 << 20)])
    assert await ledger.append(b"first") == 0
    await ledger.close()


# -- adoption -------------------------------------------------------------------------------------


def seen_with(
    cluster: MemoryCluster, steps: Iterable[tuple[str, MetadataFault]]
) -> Callable[[MetadataStore], MetadataStore]:
    return lambda store: FaultyMetadataStore(store, FaultScript(steps), cluster.world.clock)


@pytest.mark.parametrize("fault", [MetadataFault.UNKNOWN_APPLIED, MetadataFault.UNKNOWN_LOST])
@scenario()
async def test_an_adoption_of_unknown_outcome_is_resolved_by_reading_again(
    cluster: MemoryCluster, client: Client, *, fault: MetadataFault
) -> None:
    ledger_id = (await client.create_unowned_ledger()).ledger_id
    steps = [
        ("update_ledger", fault),
        ("read_ledger", MetadataFault.UNAVAILABLE),
        ("read_ledger", MetadataFault.UNAVAILABLE),
    ]
    async with cluster.client(SMALL, seen_through=seen_with(cluster, steps)) as other:
        with pytest.raises(MetadataOutcomeUnknown):
            await other.adopt_ledger(ledger_id)
        with pytest.raises(MetadataUnavailable):
            await other.adopt_ledger(ledger_id)
        ledger = await other.adopt_ledger(ledger_id)
        assert await ledger.append(b"ours") == 0
        with pytest.raises(LedgerHasWriter):
            await other.adopt_ledger(ledger_id)
        await ledger.close()


@scenario()
async def test_of_two_adoptions_at_once_one_becomes_the_writer(cluster: MemoryCluster, client: Client) -> None:
    ledger_id = (await client.create_unowned_ledger()).ledger_id
    found = await asyncio.gather(*(client.adopt_ledger(ledger_id) for _ in range(2)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in found) == ["LedgerHasWriter", "LedgerWriter"]


# -- passwords ------------------------------------------------------------------------------------


@scenario()
async def test_a_password_for_a_ledger_that_has_none_is_refused(cluster: MemoryCluster, client: Client) -> None:
    """A caller that passes an identity relies on it: without it, the ledger could be another one."""
    ledger = await client.create_ledger()
    await ledger.append(b"x")
    for attempt in (client.open_ledger, client.recover_ledger, client.delete_ledger, client.adopt_ledger):
        with pytest.raises(Unauthorized, match="has no password"):
            await attempt(ledger.id, password=b"secret")
    await ledger.close()


# -- recovery among busy and hanging bookies ------------------------------------------------------


def busy_at_first(bookie: MemoryBookie, patch: pytest.MonkeyPatch, times: int) -> None:
    """Let ``bookie`` answer its first fences and recovery reads with BUSY."""
    left = {"fence": times, "recovery_read": times}
    fence, recovery_read = bookie.fence, bookie.recovery_read

    def put_off(what: str) -> None:
        left[what] -= 1
        if left[what] >= 0:
            raise Busy("later", retry_after_ms=50)

    async def busy_fence(ledger_id: int, key: bytes) -> FenceAnswer:
        put_off("fence")
        return await fence(ledger_id, key)

    async def busy_read(ledger_id: int, entry_id: int, key: bytes, max_bytes: int = 0) -> ReadAnswer:
        put_off("recovery_read")
        return await recovery_read(ledger_id, entry_id, key, max_bytes)

    patch.setattr(bookie, "fence", busy_fence)
    patch.setattr(bookie, "recovery_read", busy_read)


@scenario()
async def test_recovery_comes_back_to_bookies_that_are_busy(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 50)
    ledger.abandon()
    with pytest.MonkeyPatch.context() as patch:
        for bookie in cluster.bookies.values():
            busy_at_first(bookie, patch, 5)
        assert await read_all(client, ledger.id) == lines(50)


@scenario()
async def test_recovery_does_not_wait_for_ever_for_bookies_that_stay_busy(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 50)
    ledger.abandon()
    began = cluster.world.clock.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        for bookie in cluster.bookies.values():
            busy_at_first(bookie, patch, 1_000_000)
        with pytest.raises(RecoveryFailed):
            await client.open_ledger(ledger.id)
    assert cluster.world.clock.monotonic() - began < 2 * 5.0
    assert await read_all(client, ledger.id) == lines(50)


@scenario()
async def test_recovery_piles_up_no_reads_at_a_bookie_that_hangs(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    hanging = cluster.bookies[ledger.metadata.last_fragment.bookies[0]]
    pending = [ledger.append_nowait(payload) for payload in lines(400)]
    await pending[-1]
    ledger.abandon()
    hanging.pause()
    under_way, most = 0, 0
    asked, fence = DirectConnection.recovery_read, DirectConnection.fence

    async def counted(
        self: DirectConnection, ledger_id: int, entry_id: int, key: bytes, *more: int, **options: bytes
    ) -> ReadAnswer:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await asked(self, ledger_id, entry_id, key, *more, **options)
        finally:
            under_way -= 1

    async def without_lac(self: DirectConnection, ledger_id: int, key: bytes, **options: bytes) -> FenceAnswer:
        return FenceAnswer(-1, (await fence(self, ledger_id, key, **options)).last_held)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectConnection, "recovery_read", counted)
        patch.setattr(DirectConnection, "fence", without_lac)
        closed = await client.recover_ledger(ledger.id)
    assert closed.last_entry_id == 399
    assert most <= 6, "two batches' worth"
    hanging.resume()

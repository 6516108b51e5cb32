"""The real client on in-memory bookies, in virtual time: a ledger from creation to recovery."""

from __future__ import annotations

import asyncio

import pytest

from tallybook.client.client import Client
from tallybook.core.batch import decode_header
from tallybook.core.errors import (
    Busy,
    DataMissing,
    EntryCorrupt,
    EntryTooLarge,
    InvalidArgument,
    LedgerClosed,
    NoSuchLedger,
    NotEnoughBookies,
    Outcome,
    ReadBeyondLac,
    TallybookError,
    Unauthorized,
)
from tallybook.metadata.ledger.model import DigestType

from ..sampling import sample
from ..simulated import scenario
from ..support.ledger_scenario import SMALL, lines, read_all
from ..support.memory_cluster import MemoryCluster
from .parts import hold_commits, release_commits, written_ledger

BAD_RANGES = (
    (0, 10, ReadBeyondLac),
    (-1, 3, InvalidArgument),
    (3, 2, InvalidArgument),
    (0, 2**63, InvalidArgument),
)


@scenario()
async def test_a_call_that_opens_a_handle_is_awaited_or_stands_in_a_with_block(
    cluster: MemoryCluster, client: Client
) -> None:
    async with client.create_ledger() as ledger:
        await ledger.append(b"first")
    assert ledger.metadata.closed
    async with client.open_ledger(ledger.id) as reader:
        assert (await reader.read_entry(0)).payload == b"first"
    second, third = await asyncio.gather(client.create_ledger(), asyncio.create_task(client.create_ledger()))
    assert {(await writer.close()).last_entry_id for writer in (second, third)} == {-1}
    with pytest.raises(NoSuchLedger):
        async with client.open_ledger(99):
            pass


@scenario()
async def test_what_is_not_bytes_is_refused_by_the_call_itself(cluster: MemoryCluster, client: Client) -> None:
    async with client.create_ledger() as ledger:
        for call in (lambda: ledger.append("text"), lambda: ledger.append_many([b"bytes", "text"])):  # type: ignore[arg-type, list-item]
            with pytest.raises(TypeError, match="an entry is bytes, not str"):
                call()
    assert ledger.metadata.last_entry_id == -1


@scenario()
async def test_an_empty_entry_and_an_empty_ledger_are_fine(cluster: MemoryCluster, client: Client) -> None:
    async with await client.create_ledger() as ledger:
        assert await ledger.append(b"") == 0
    assert await read_all(client, ledger.id) == [b""]
    async with await client.create_ledger() as empty:
        pass
    assert (empty.metadata.last_entry_id, empty.metadata.length) == (-1, 0)
    assert await read_all(client, empty.id) == []


@scenario(bookies=5)
async def test_striping_spreads_entries_and_reads_them_back(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 200, close=True, ensemble=5, write_quorum=3, ack_quorum=2, stripe_entries=10)
    held = {name: bookie.durable_batches(ledger.id) for name, bookie in cluster.bookies.items()}
    firsts = {first for batches in held.values() for first in batches}
    assert all(sum(first in batches for batches in held.values()) == 3 for first in firsts)
    for batches in held.values():
        for first, batch in batches.items():
            assert first // 10 == decode_header(batch).last_entry_id // 10, "a batch crosses a stripe"
    assert max(decode_header(batch).entry_count for batches in held.values() for batch in batches.values()) > 1
    assert await read_all(client, ledger.id) == lines(200)


@scenario()
async def test_a_reader_takes_the_next_replica_when_a_copy_is_damaged(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 100, close=True)
    names = ledger.metadata.last_fragment.bookies
    cluster.bookies[names[0]].faults.rot(ledger.id, 0)
    cluster.bookies[names[1]].kill()
    assert await read_all(client, ledger.id) == lines(100)
    reader = await client.open_ledger(ledger.id)
    assert (await reader.read_entry(50)).payload == lines(100)[50]


@scenario()
async def test_with_no_good_copy_the_most_serious_answer_wins(cluster: MemoryCluster, client: Client) -> None:
    async with await client.create_ledger() as ledger:
        await ledger.append(b"only")
    for name in ledger.metadata.last_fragment.bookies:
        cluster.bookies[name].drop(ledger.id, 0)
    reader = await client.open_ledger(ledger.id)
    with pytest.raises(DataMissing):
        await reader.read_entry(0)
    cluster.bookies[ledger.metadata.last_fragment.bookies[2]].faults.inject(ledger.id, 0, EntryCorrupt)
    with pytest.raises(EntryCorrupt):
        await reader.read_entry(0)


@scenario()
async def test_reads_past_the_last_add_confirmed_are_refused(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 10)
    reader = await client.open_ledger(ledger.id, recover=False)
    known = reader.last_add_confirmed
    assert known <= 9
    for first, last, error in BAD_RANGES:
        with pytest.raises(error):
            await anext(reader.read(first, last))
    await cluster.world.clock.sleep(1)
    assert await reader.read_last_add_confirmed() == 9


@scenario()
async def test_the_password_is_needed_for_everything(cluster: MemoryCluster, client: Client) -> None:
    unowned = await client.create_unowned_ledger(password=b"right")
    with pytest.raises(Unauthorized):
        await client.adopt_ledger(unowned.ledger_id, password=b"wrong")
    ledger = await client.adopt_ledger(unowned.ledger_id, password=b"right")
    await ledger.append(b"x")
    for attempt in (client.open_ledger, client.recover_ledger, client.delete_ledger):
        with pytest.raises(Unauthorized):
            await attempt(ledger.id, password=b"wrong")
    await ledger.close()


@scenario()
async def test_an_hmac_ledger_reads_back_and_needs_a_password(cluster: MemoryCluster, client: Client) -> None:
    with pytest.raises(InvalidArgument):
        await client.create_ledger(digest=DigestType.HMAC_SHA256)
    ledger = await written_ledger(client, 20, close=True, digest=DigestType.HMAC_SHA256, password=b"key")
    assert await read_all(client, ledger.id, b"key") == lines(20)


@scenario()
async def test_bad_requests_get_typed_errors_and_lose_nothing(cluster: MemoryCluster, client: Client) -> None:
    for sizes in ((3, 4, 2), (3, 2, 3), (0, 0, 0)):
        with pytest.raises(InvalidArgument):
            await client.create_ledger(ensemble=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2])
    with pytest.raises(NotEnoughBookies):
        await client.create_ledger(ensemble=4)
    for ledger_id, error in ((12345, NoSuchLedger), (-1, InvalidArgument), (2**63, InvalidArgument)):
        for attempt in (client.open_ledger, client.recover_ledger):
            with pytest.raises(error):
                await attempt(ledger_id)
    ledger = await client.create_ledger()
    with pytest.raises(EntryTooLarge):
        await ledger.append(bytes(2 << 20))
    assert await ledger.append(b"still good") == 0
    await ledger.close()
    with pytest.raises(LedgerClosed):
        await ledger.append(b"late")
    await client.delete_ledger(ledger.id)
    with pytest.raises(NoSuchLedger):
        await client.open_ledger(ledger.id)


@scenario()
async def test_the_byte_budget_bounds_a_writer_whose_bookies_hang(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    await ledger.append(b"warm")
    hold_commits(cluster)
    pending = [ledger.append_nowait(bytes(500)) for _ in range(100)]

    def overfill() -> None:
        pending.extend(ledger.append_nowait(bytes(500)) for _ in range(1000))

    with pytest.raises(Busy):
        overfill()
    waiting = asyncio.ensure_future(ledger.append(bytes(500)))
    await cluster.world.clock.sleep(0.1)
    assert not waiting.done()
    release_commits(cluster)
    last = await waiting
    assert 100 < last < 140
    await ledger.close()


@scenario()
async def test_a_cancelled_append_keeps_its_id_and_stalls_no_other(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    cancelled = asyncio.ensure_future(ledger.append(b"cancelled"))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await ledger.append(b"next") == 1
    await ledger.close()
    assert await read_all(client, ledger.id) == [b"cancelled", b"next"]


@scenario()
async def test_closing_the_client_fails_pending_appends(cluster: MemoryCluster, client: Client) -> None:
    async with cluster.client(SMALL) as other:
        ledger = await other.create_ledger()
        hold_commits(cluster)
        pending = ledger.append_nowait(b"never told")
    with pytest.raises(TallybookError) as caught:
        await pending
    assert caught.value.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("seed", [*sample(range(20))])
def test_random_kills_never_lose_an_acked_entry(seed: int) -> None:
    """Bookies restart, one at a time, while a writer writes; then another client recovers."""

    @scenario(bookies=4, seed=seed, deadline_seconds=3600)
    async def play(cluster: MemoryCluster, client: Client) -> None:
        rng = cluster.world.rng.fork("nemesis")
        ledger = await client.create_ledger(ensemble=4, write_quorum=3, ack_quorum=2, stripe_entries=7)
        acked = -1

        async def write() -> None:
            nonlocal acked
            for payload in lines(600):
                acked = await ledger.append(payload)

        writing = asyncio.ensure_future(write())
        for _ in range(6):
            victim = cluster.bookies[f"bookie-{rng.randint(0, 3)}"]
            victim.kill()
            await cluster.world.clock.sleep(rng.random() * 4)
            victim.restart()
            await cluster.world.clock.sleep(rng.random())
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        ledger.abandon()
        found = await read_all(client, ledger.id)
        assert len(found) > acked
        assert found == lines(600)[: len(found)]

    play()


@scenario()
async def test_a_bookie_that_hangs_is_dropped_and_holds_no_memory(cluster: MemoryCluster, client: Client) -> None:
    """A bookie accepts and never acks: the writer continues, and drops what it queued with the connection."""
    ledger = await written_ledger(client, 10)
    victim = cluster.bookies[ledger.metadata.last_fragment.bookies[1]]
    victim.hold_commits()
    for start in range(10, 2010, 100):
        await ledger.append_many(lines(100, start))
        await cluster.world.clock.sleep(0.3)
    victim.release_commits()
    await ledger.close()
    assert [missed.bookie_id for missed in ledger.metadata.missed] == [victim.bookie_id]
    assert await read_all(client, ledger.id) == lines(2010)

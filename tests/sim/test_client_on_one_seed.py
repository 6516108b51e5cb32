"""The real client code against in-memory bookies, on virtual time: a ledger from end to end."""

from __future__ import annotations

import asyncio

import pytest

from tallybook.client.client import Client
from tallybook.core.batch import Entry, decode_header
from tallybook.core.errors import (
    Busy,
    DataMissing,
    EntryCorrupt,
    EntryTooLarge,
    InvalidArgument,
    LedgerClosed,
    LedgerFenced,
    LedgerHasWriter,
    NoSuchLedger,
    NotEnoughBookies,
    Outcome,
    ReadBeyondLac,
    RecoveryFailed,
    TallybookError,
    Unauthorized,
)
from tallybook.metadata.model import DigestType, LedgerState
from tallybook.runtime.deterministic import World, run_seed
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import SMALL, eventually, lines, read_all, scenario

BAD_RANGES = (
    (0, 10, ReadBeyondLac),
    (-1, 3, InvalidArgument),
    (3, 2, InvalidArgument),
    (0, 2**63, InvalidArgument),
)


@scenario()
async def test_what_was_appended_is_read_back_in_order(cluster: MemoryCluster, client: Client) -> None:
    async with await client.create_ledger() as ledger:
        assert await ledger.append(b"first") == 0
        assert await ledger.append_many(lines(500)) == range(1, 501)
        assert ledger.last_add_confirmed == 500
    assert ledger.metadata.closed
    assert ledger.metadata.length == 5 + sum(map(len, lines(500)))
    assert await read_all(client, ledger.id) == [b"first", *lines(500)]


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
    async with await client.create_ledger(ensemble=5, write_quorum=3, ack_quorum=2, stripe_entries=10) as ledger:
        await ledger.append_many(lines(200))
    held = {name: bookie.durable_batches(ledger.id) for name, bookie in cluster.bookies.items()}
    firsts = {first for batches in held.values() for first in batches}
    assert all(sum(first in batches for batches in held.values()) == 3 for first in firsts)
    for batches in held.values():
        for first, batch in batches.items():
            assert first // 10 == decode_header(batch).last_entry_id // 10, "a batch crosses a stripe"
    assert max(decode_header(batch).entry_count for batches in held.values() for batch in batches.values()) > 1
    assert await read_all(client, ledger.id) == lines(200)


@scenario()
async def test_one_of_three_bookies_dies_and_the_missed_range_is_recorded(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(50))
    victim = ledger.metadata.last_fragment.bookies[2]
    cluster.bookies[victim].kill()
    for start in range(50, 250, 50):
        await ledger.append_many(lines(50, start))
        await cluster.world.clock.sleep(1)
    noted = await client.ledger_metadata(ledger.id)
    assert [(m.bookie_id, m.last_entry_id) for m in noted.missed] == [(victim, None)]
    await ledger.close()
    (missed,) = ledger.metadata.missed
    assert (missed.bookie_id, missed.last_entry_id) == (victim, 249)
    assert 0 < missed.first_entry_id <= 50
    assert await read_all(client, ledger.id) == lines(250)


@scenario()
async def test_a_bookie_that_restarts_soon_misses_nothing(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(50))
    victim = cluster.bookies[ledger.metadata.last_fragment.bookies[1]]
    victim.kill()
    await ledger.append_many(lines(50, 50))
    victim.restart()
    await ledger.append_many(lines(50, 100))
    await ledger.close()
    assert ledger.metadata.missed == ()
    last = max(first for first in victim.durable_batches(ledger.id))
    assert last + 1 > 100
    assert await read_all(client, ledger.id) == lines(150)


@scenario()
async def test_without_an_ack_quorum_appends_fail_and_the_ledger_still_closes(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(10))
    for name in ledger.metadata.last_fragment.bookies[1:]:
        cluster.bookies[name].kill()
    pending = ledger.append_nowait(b"too late")
    with pytest.raises(NotEnoughBookies) as caught:
        await pending
    assert caught.value.outcome is Outcome.UNKNOWN
    with pytest.raises(NotEnoughBookies):
        await ledger.append(b"never")
    assert (await ledger.close()).last_entry_id == 9


@scenario()
async def test_recovery_fences_the_old_writer_and_keeps_what_was_acked(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger(password=b"secret")
    await ledger.append_many(lines(100))
    async with cluster.client(SMALL) as other:
        assert await read_all(other, ledger.id, b"secret") == lines(100)
        metadata = await other.ledger_metadata(ledger.id)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 99)
    with pytest.raises(LedgerFenced):
        await ledger.append(b"fenced")
    assert (await ledger.close()).last_entry_id == 99, "both ends are the same"


@scenario()
async def test_a_writer_that_dies_mid_stream_loses_nothing_acked(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    acked: list[int] = []

    async def write() -> None:
        for payload in lines(1000):
            acked.append(await ledger.append(payload))  # noqa: PERF401 (seen while it grows)

    writing = asyncio.ensure_future(write())
    await eventually(lambda: len(acked) > 100, cluster)
    writing.cancel()
    ledger.abandon()
    found = await read_all(client, ledger.id)
    assert len(found) > acked[-1]
    assert found == lines(1000)[: len(found)]


@scenario()
async def test_two_recoveries_at_once_report_the_same_end(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(40))
    for payload in lines(40, 40):
        ledger.append_nowait(payload)
    async with cluster.client(SMALL) as one, cluster.client(SMALL) as two:
        ends = await asyncio.gather(one.recover_ledger(ledger.id), two.recover_ledger(ledger.id))
    assert ends[0].last_entry_id == ends[1].last_entry_id >= 39
    assert ends[0].length == ends[1].length == sum(map(len, lines(ends[0].last_entry_id + 1)))


@scenario()
async def test_recovery_with_one_bookie_down_keeps_everything(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(100))
    ledger.abandon()
    cluster.bookies[ledger.metadata.last_fragment.bookies[0]].kill()
    assert await read_all(client, ledger.id) == lines(100)


@scenario()
async def test_recovery_without_coverage_fails_and_cuts_nothing(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(100))
    ledger.abandon()
    down = [cluster.bookies[name] for name in ledger.metadata.last_fragment.bookies[:2]]
    for bookie in down:
        bookie.kill()
    with pytest.raises(RecoveryFailed):
        await client.open_ledger(ledger.id)
    for bookie in down:
        bookie.restart()
    assert await read_all(client, ledger.id) == lines(100)


@scenario()
async def test_a_reader_takes_the_next_replica_when_a_copy_is_damaged(cluster: MemoryCluster, client: Client) -> None:
    async with await client.create_ledger() as ledger:
        await ledger.append_many(lines(100))
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
async def test_a_tailing_reader_follows_the_writer_to_the_close(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    seen: list[Entry] = []

    async def tail() -> None:
        async with cluster.client(SMALL) as other:
            reader = await other.open_ledger(ledger.id, recover=False)
            async for entry in reader.tail():
                seen.append(entry)  # noqa: PERF401 (seen while it grows)

    tailing = asyncio.ensure_future(tail())
    await ledger.append_many(lines(30))
    # Nothing more is written: the explicit LAC must bring the last entries.
    await eventually(lambda: len(seen) == 30, cluster, seconds=5)
    await ledger.append_many(lines(30, 30))
    await ledger.close()
    await tailing
    assert [entry.payload for entry in seen] == lines(60)


@scenario()
async def test_reads_past_the_last_add_confirmed_are_refused(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(10))
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
    async with await client.create_ledger(digest=DigestType.HMAC_SHA256, password=b"key") as ledger:
        await ledger.append_many(lines(20))
    assert await read_all(client, ledger.id, b"key") == lines(20)


@scenario()
async def test_a_ledger_is_adopted_once(cluster: MemoryCluster, client: Client) -> None:
    unowned = await client.create_unowned_ledger()
    ledger = await client.adopt_ledger(unowned.ledger_id)
    with pytest.raises(LedgerHasWriter):
        await client.adopt_ledger(unowned.ledger_id)
    await ledger.close()
    with pytest.raises(LedgerClosed):
        await client.adopt_ledger(unowned.ledger_id)


@scenario()
async def test_bad_requests_get_typed_errors_and_lose_nothing(cluster: MemoryCluster, client: Client) -> None:
    for sizes in ((3, 4, 2), (3, 2, 3), (0, 0, 0)):
        with pytest.raises(InvalidArgument):
            await client.create_ledger(ensemble=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2])
    with pytest.raises(NotEnoughBookies):
        await client.create_ledger(ensemble=4)
    for ledger_id, error in ((12345, NoSuchLedger), (-1, InvalidArgument), (2**63, InvalidArgument)):
        with pytest.raises(error):
            await client.open_ledger(ledger_id)
    ledger = await client.create_ledger()
    with pytest.raises(EntryTooLarge):
        await ledger.append(bytes(2 << 20))
    with pytest.raises(InvalidArgument):
        await ledger.append("text")  # type: ignore[arg-type]
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
    for bookie in cluster.bookies.values():
        bookie.hold_commits()
    pending = [ledger.append_nowait(bytes(500)) for _ in range(100)]

    def overfill() -> None:
        pending.extend(ledger.append_nowait(bytes(500)) for _ in range(1000))

    with pytest.raises(Busy):
        overfill()
    waiting = asyncio.ensure_future(ledger.append(bytes(500)))
    await cluster.world.clock.sleep(0.1)
    assert not waiting.done()
    for bookie in cluster.bookies.values():
        bookie.release_commits()
    last = await waiting
    assert 100 < last < 140
    await ledger.close()


@scenario()
async def test_a_cancelled_append_keeps_its_id_and_stalls_nobody(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    cancelled = asyncio.ensure_future(ledger.append(b"cancelled"))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await ledger.append(b"next") == 1
    await ledger.close()
    assert await read_all(client, ledger.id) == [b"cancelled", b"next"]


@scenario()
async def test_closing_the_client_fails_what_is_pending(cluster: MemoryCluster, client: Client) -> None:
    async with cluster.client(SMALL) as other:
        ledger = await other.create_ledger()
        for bookie in cluster.bookies.values():
            bookie.hold_commits()
        pending = ledger.append_nowait(b"never told")
    with pytest.raises(TallybookError) as caught:
        await pending
    assert caught.value.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("seed", range(20))
def test_random_kills_never_lose_an_acked_entry(seed: int) -> None:
    """Bookies come and go, one at a time, while a writer writes; then another client recovers."""

    async def play(world: World) -> None:
        rng = world.rng.fork("nemesis")
        cluster = MemoryCluster(world, bookies=4)
        await cluster.start()
        async with cluster.client(SMALL) as client:
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
                await world.clock.sleep(rng.random() * 4)
                victim.restart()
                await world.clock.sleep(rng.random())
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            ledger.abandon()
            found = await read_all(client, ledger.id)
            assert len(found) > acked
            assert found == lines(600)[: len(found)]
        await cluster.stop()

    run_seed(seed, play, deadline_seconds=3600)


@scenario()
async def test_a_bookie_that_hangs_is_dropped_and_holds_no_memory(cluster: MemoryCluster, client: Client) -> None:
    """It accepts and never acks: the writer goes on, and what it queued for it is given up with the connection."""
    ledger = await client.create_ledger()
    await ledger.append_many(lines(10))
    victim = cluster.bookies[ledger.metadata.last_fragment.bookies[1]]
    victim.hold_commits()
    for start in range(10, 2010, 100):
        await ledger.append_many(lines(100, start))
        await cluster.world.clock.sleep(0.3)
    victim.release_commits()
    await ledger.close()
    assert [missed.bookie_id for missed in ledger.metadata.missed] == [victim.bookie_id]
    assert await read_all(client, ledger.id) == lines(2010)

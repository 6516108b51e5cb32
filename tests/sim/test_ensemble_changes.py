"""Writers replace bookies, through real clients: acked entries are where the metadata say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import (
    InvalidArgument,
    LedgerClosed,
    LedgerFenced,
    MetadataOutcomeUnknown,
    NotEnoughBookies,
    Outcome,
)
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, begin_recovery, close
from tallybook.metadata.store import MetadataStore, WriteResult

from ..simulated import scenario
from ..support.fault_script import FaultScript
from ..support.faulty_metadata import FaultyMetadataStore, MetadataFault
from ..support.ledger_scenario import SMALL, eventually, lines, read_all
from ..support.memory_cluster import MemoryCluster
from ..support.metadata_faults import AnswersLost, Gated, WritesRefused
from .parts import written_ledger

QUICK = SMALL.model_copy(update={"away_timeout_ms": 300, "reconnect_ms": 50, "metadata_timeout_ms": 1000})


def members(ledger: LedgerWriter) -> tuple[str, ...]:
    return ledger.metadata.last_fragment.bookies


@scenario(bookies=4)
async def test_c10_a_bookie_that_dies_is_replaced_and_the_next_fragment_starts_after_the_lac(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await written_ledger(writer, 20)
        before = members(ledger)
        dead = cluster.die(before[1])
        pending = [ledger.append_nowait(line) for line in lines(40, start=20)]
        await eventually(lambda: len(ledger.metadata.fragments) == 2, cluster)
        assert [await append for append in pending] == list(range(20, 60))
        closed = await ledger.close()
        told = writer.stats()
        assert (told["client_ensemble_changes"], told["client_quarantined"]) == (1, 1)
    first, second = closed.fragments
    assert (first.first_entry_id, first.bookies) == (0, before)
    assert second.first_entry_id >= 20
    assert dead.bookie_id not in second.bookies
    assert cluster.under_replicated(closed) == []
    assert await read_all(client, ledger.id) == lines(60)


@scenario(bookies=4)
async def test_c02_entries_acked_during_a_change_are_on_the_bookies_of_their_fragment(
    cluster: MemoryCluster, client: Client
) -> None:
    """The two remaining members ack everything during the change; callers get confirmations only afterwards."""
    slow = Gated()
    async with cluster.client(QUICK, seen_through=slow) as writer:
        ledger = await written_ledger(writer, 10)
        slow.hold()
        dead = cluster.die(members(ledger)[2])
        await ledger.append(b"it is missed")
        await eventually(lambda: slow.waiting > 0, cluster)
        lac = ledger.last_add_confirmed
        pending = [ledger.append_nowait(line) for line in lines(30, start=11)]
        await cluster.world.clock.sleep(0.5)
        assert ledger.last_add_confirmed == lac, "nothing may be confirmed while the change is written"
        slow.release()
        assert [await append for append in pending] == list(range(11, 41))
        closed = await ledger.close()
    assert closed.last_fragment.first_entry_id == lac + 1
    assert dead.bookie_id not in closed.last_fragment.bookies
    assert cluster.under_replicated(closed) == []


@pytest.mark.parametrize(
    "fault", [MetadataFault.UNKNOWN_APPLIED, MetadataFault.UNKNOWN_LOST, MetadataFault.UNKNOWN_LATE]
)
@scenario(bookies=4)
async def test_c07_a_change_whose_answer_is_lost_is_read_back(
    cluster: MemoryCluster, client: Client, *, fault: MetadataFault
) -> None:
    script = FaultScript([("update_ledger", fault)])
    through: Callable[[MetadataStore], MetadataStore] = lambda store: FaultyMetadataStore(  # noqa: E731
        store, script, cluster.world.clock
    )
    async with cluster.client(QUICK, seen_through=through) as writer:
        ledger = await writer.create_ledger()
        dead = cluster.die(members(ledger)[1])
        pending = [ledger.append_nowait(line) for line in lines(20)]
        await eventually(lambda: dead.bookie_id not in members(ledger), cluster)
        assert [await append for append in pending] == list(range(20))
        assert script.finished
        closed = await ledger.close()
    assert len(closed.fragments) <= 2
    assert cluster.under_replicated(closed) == []
    assert await read_all(client, ledger.id) == lines(20)


@scenario(bookies=4)
async def test_c07_a_writer_that_cannot_learn_whether_its_change_landed_confirms_nothing_more(
    cluster: MemoryCluster, client: Client
) -> None:
    lost = AnswersLost()
    async with cluster.client(QUICK, seen_through=lost) as writer:
        ledger = await written_ledger(writer, 10)
        lost.losing = True
        cluster.die(members(ledger)[1])
        pending = ledger.append_nowait(b"after the change was sent")
        await eventually(lambda: lost.lost > 0, cluster)
        late = ledger.append_nowait(b"later")
        with pytest.raises(MetadataOutcomeUnknown) as caught:
            await late
        assert caught.value.outcome is Outcome.UNKNOWN
        assert pending.done
        lost.losing = False
    assert (await read_all(client, ledger.id))[:10] == lines(10)


@scenario(bookies=4)
async def test_c07_a_change_in_doubt_is_asked_for_until_the_store_answers(
    cluster: MemoryCluster, client: Client
) -> None:
    lost = AnswersLost()
    async with cluster.client(QUICK, seen_through=lost) as writer:
        ledger = await written_ledger(writer, 10)
        lost.losing = True
        dead = cluster.die(members(ledger)[1])
        pending = ledger.append_nowait(b"after the change was sent")
        await eventually(lambda: lost.lost > 0, cluster)
        late = ledger.append_nowait(b"later")
        await cluster.world.clock.sleep(QUICK.add_timeout_ms / 1000 + 2)
        assert not late.done
        lost.losing = False
        assert [await pending, await late] == [10, 11]
        assert dead.bookie_id not in members(ledger)
        assert cluster.under_replicated(await ledger.close()) == []


@scenario(bookies=4)
async def test_c07_a_refusal_of_the_next_attempt_does_not_settle_the_one_before(
    cluster: MemoryCluster, client: Client
) -> None:
    """For example, the metadata became too large for a second attempt; the first one may still land."""

    class Refusing(AnswersLost):
        changes = 0

        async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
            changing = len(metadata.fragments) > 1
            self.changes += changing
            if changing and self.changes > 1:
                raise InvalidArgument("too large by now")
            return await super().update_ledger(metadata, expected_version)

    lost = Refusing()
    async with cluster.client(QUICK, seen_through=lost) as writer:
        ledger = await written_ledger(writer, 10)
        lost.losing = True
        cluster.die(members(ledger)[1])
        pending = ledger.append_nowait(b"after the change was sent")
        await eventually(lambda: lost.changes > 0, cluster)
        late = ledger.append_nowait(b"later")
        with pytest.raises(MetadataOutcomeUnknown):
            await late
        assert pending.done
        lost.losing = False


async def refused_a_change(cluster: MemoryCluster, writer: Client, store: WritesRefused) -> LedgerWriter:
    """A ledger of ten entries that lost a member while the metadata store takes no writes."""
    ledger = await written_ledger(writer, 10)
    store.refuses = True
    cluster.die(members(ledger)[1])
    return ledger


@scenario(bookies=4)
async def test_c14_a_store_that_takes_no_writes_stalls_a_writer_with_a_quorum_less_and_less(
    cluster: MemoryCluster, client: Client
) -> None:
    """Nothing is confirmed during a change. If changes keep failing, attempts must become rare."""
    refusing = WritesRefused(cluster.world.clock)
    async with cluster.client(QUICK, seen_through=refusing) as writer:
        ledger = await refused_a_change(cluster, writer, refusing)
        stalled_s = 0.0
        for _ in range(240):
            began = cluster.world.clock.monotonic()
            await ledger.append(b"goes on")
            stalled_s += cluster.world.clock.monotonic() - began
            await cluster.world.clock.sleep(1)
        assert refusing.refused >= 4
        assert stalled_s < 240 / 10
        refusing.refuses = False
        await ledger.close()


@scenario(bookies=6)
async def test_c14_a_writer_that_paused_with_a_quorum_hurries_once_it_has_lost_it(
    cluster: MemoryCluster, client: Client
) -> None:
    """By then the pauses between attempts are longer than the timeout of any append."""
    refusing = WritesRefused(cluster.world.clock)
    async with cluster.client(QUICK, seen_through=refusing) as writer:
        ledger = await refused_a_change(cluster, writer, refusing)
        await ledger.append(b"starts the search")
        await eventually(lambda: refusing.refused >= 5, cluster)
        await cluster.world.clock.sleep(3)
        refusing.refuses = False
        cluster.die(members(ledger)[2])
        began = cluster.world.clock.monotonic()
        await ledger.append(b"needs another member")
        assert cluster.world.clock.monotonic() - began < 5
        await ledger.close()


@pytest.mark.parametrize("state", ["the same end", "another end", "in recovery"])
@scenario(bookies=4)
async def test_c12_a_change_that_finds_the_ledger_taken_ends_the_writer_which_closes_at_the_same_end_only(
    cluster: MemoryCluster, client: Client, *, state: str
) -> None:
    def taken(metadata: LedgerMetadata) -> LedgerMetadata:
        last = 9 if state == "the same end" else 4
        length = sum(map(len, lines(last + 1)))
        return begin_recovery(metadata) if state == "in recovery" else close(metadata, last, length)

    async with cluster.client(QUICK) as writer:
        ledger = await written_ledger(writer, 10)
        await cluster.edit(ledger.id, taken)
        cluster.die(members(ledger)[1])
        await eventually(lambda: ledger.ended, cluster)
        with pytest.raises(LedgerFenced if state == "in recovery" else LedgerClosed):
            await ledger.append(b"late")
        assert len((await client.ledger_metadata(ledger.id)).fragments) == 1
        if state == "the same end":
            closed = await ledger.close()
            assert (closed.last_entry_id, closed.length) == (9, sum(map(len, lines(10))))
            assert await ledger.close() == closed
        else:
            with pytest.raises(LedgerFenced) as caught:
                await ledger.close()
            assert caught.value.outcome is Outcome.NOT_DONE


@scenario(bookies=4)
async def test_a_delayed_change_still_replaces_a_member_that_refuses(cluster: MemoryCluster, client: Client) -> None:
    async with cluster.client(QUICK.model_copy(update={"delay_ensemble_change": True})) as writer:
        ledger = await written_ledger(writer, 10)
        away, read_only, _ = members(ledger)
        cluster.bookies[read_only].read_only = True
        await ledger.append(b"one more")
        await eventually(lambda: read_only not in members(ledger), cluster)
        cluster.die(away)
        await ledger.append(b"and another")
        await cluster.world.clock.sleep(5)
        assert away in members(ledger)
        await ledger.close()


@scenario(bookies=5)
async def test_c08_a_repair_of_an_older_fragment_and_a_change_both_survive(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await written_ledger(writer, 10)
        first = cluster.die(members(ledger)[0])
        pending = [ledger.append_nowait(line) for line in lines(10, start=10)]
        await eventually(lambda: len(ledger.metadata.fragments) == 2, cluster)
        for append in pending:
            await append
        older = ledger.metadata.fragments[0]
        spare = next(name for name in cluster.bookies if name not in {*older.bookies, *members(ledger)})
        cluster.copy_ledger(ledger.id, older.bookies[1], spare)
        repaired = tuple(spare if name == first.bookie_id else name for name in older.bookies)
        await cluster.edit(ledger.id, lambda m: replace(m, fragments=(Fragment(0, repaired), *m.fragments[1:])))
        first.restart()
        await cluster.register(first.bookie_id)
        second = cluster.die(members(ledger)[1])
        more = [ledger.append_nowait(line) for line in lines(10, start=20)]
        await eventually(lambda: second.bookie_id not in members(ledger), cluster)
        for append in more:
            await append
        closed = await ledger.close()
    assert closed.fragments[0] == Fragment(0, repaired), "the repair's edit was lost"
    assert [f.first_entry_id for f in closed.fragments] == sorted({f.first_entry_id for f in closed.fragments})
    assert await read_all(client, ledger.id) == lines(30)


@scenario(bookies=4)
async def test_c01_a_failure_handled_late_works_on_the_metadata_as_they_are_then(
    cluster: MemoryCluster, client: Client
) -> None:
    """A member fails after its batches were confirmed without it, and another client edits the metadata meanwhile."""
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        slow = cluster.bookies[members(ledger)[2]]
        slow.hold_commits()
        await ledger.append_many(lines(10))
        await cluster.edit(ledger.id, lambda m: replace(m, custom={"owner": b"somebody"}))
        cluster.die(slow.bookie_id)
        await eventually(lambda: slow.bookie_id not in members(ledger), cluster)
        await ledger.append_many(lines(10, start=10))
        closed = await ledger.close()
    assert closed.custom == {"owner": b"somebody"}
    assert cluster.under_replicated(closed) == []
    assert [gap.bookie_id for gap in closed.missed] == [slow.bookie_id]
    assert await read_all(client, ledger.id) == lines(20)


@scenario(bookies=4)
async def test_c11_a_handle_that_is_abandoned_during_a_change_leaves_no_new_fragment(
    cluster: MemoryCluster, client: Client
) -> None:
    slow = Gated()
    async with cluster.client(QUICK, seen_through=slow) as writer:
        ledger = await written_ledger(writer, 10)
        slow.hold(reads=True)
        cluster.bookies[members(ledger)[0]].hold_commits()
        cluster.die(members(ledger)[1])
        pending = ledger.append_nowait(b"pending")
        await eventually(lambda: slow.waiting > 0, cluster)
        ledger.abandon()
        slow.release()
        with pytest.raises(LedgerClosed):
            await pending
        await cluster.world.clock.sleep(1)
        assert len((await client.ledger_metadata(ledger.id)).fragments) == 1


@scenario(bookies=3)
async def test_without_a_replacement_the_ledger_continues_and_takes_one_as_soon_as_it_appears(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.add("late-comer")
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        dead = cluster.die(members(ledger)[1])
        assert await ledger.append_many(lines(20)) == range(20)
        await cluster.world.clock.sleep(3)
        assert dead.bookie_id in members(ledger), "there was no replacement"
        await cluster.register("late-comer")
        await eventually(lambda: "late-comer" in members(ledger), cluster, seconds=1)
        assert await ledger.append(b"last") == 20
        closed = await ledger.close()
    assert closed.last_fragment.first_entry_id == 20
    assert (closed.missed[0].bookie_id, closed.missed[0].last_entry_id) == (dead.bookie_id, 19)
    assert cluster.under_replicated(closed) == []


@scenario(bookies=3)
async def test_too_few_bookies_and_no_replacement_fail_the_appends(cluster: MemoryCluster, client: Client) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await written_ledger(writer, 5)
        for name in members(ledger)[1:]:
            cluster.die(name)
        with pytest.raises(NotEnoughBookies):
            await ledger.append(b"never confirmed")
        assert (await ledger.close()).last_entry_id == 4


@scenario(bookies=4)
async def test_a_bookie_that_all_others_outpace_with_busy_is_replaced(cluster: MemoryCluster, client: Client) -> None:
    """BUSY alone causes a replacement only if the other members form every ack quorum."""
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        busy = [cluster.bookies[name] for name in members(ledger)]
        for bookie in busy:
            bookie.busy_retry_ms = 20
        pending = ledger.append_nowait(b"all are busy")
        await cluster.world.clock.sleep(6)
        assert not pending.done
        assert len(ledger.metadata.fragments) == 1
        assert members(ledger) == tuple(bookie.bookie_id for bookie in busy), "overload of all is back-pressure"
        for bookie in busy[:2]:
            bookie.busy_retry_ms = None
        assert await pending == 0
        await eventually(lambda: busy[2].bookie_id not in members(ledger), cluster)


@scenario(bookies=6)
async def test_two_members_that_hang_are_replaced_by_bookies_that_answer(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await written_ledger(writer, 3)
        hanging = [cluster.bookies[name] for name in members(ledger)[:2]]
        hanging.append(next(bookie for name, bookie in cluster.bookies.items() if name not in members(ledger)))
        for bookie in hanging:
            bookie.pause()
        assert await ledger.append(b"waits for others") == 3
        assert not {bookie.bookie_id for bookie in hanging} & set(members(ledger)), "a spare that hangs is no spare"
        closed = await ledger.close()
        for bookie in hanging:
            bookie.resume()
    assert cluster.under_replicated(closed) == []


@scenario(bookies=4)
async def test_a_member_that_hangs_and_lets_us_in_is_replaced(cluster: MemoryCluster, client: Client) -> None:
    """Its process accepts connections, but its journal is stuck."""
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        stuck = cluster.bookies[members(ledger)[1]]
        stuck.hold_commits()
        for _ in range(100):
            await ledger.append(b"one more")
            await cluster.world.clock.sleep(0.1)
            if stuck.bookie_id not in members(ledger):
                break
        assert stuck.bookie_id not in members(ledger)
        assert len(ledger.metadata.fragments) == 2
        await ledger.close()


@scenario(bookies=6)
async def test_bookies_that_are_slow_but_ack_in_time_keep_the_writer_going(
    cluster: MemoryCluster, client: Client
) -> None:
    async def slowly(method: str, _ledger_id: int) -> None:
        if method == "add":
            await cluster.world.clock.sleep(1.0)

    async with cluster.client(QUICK) as writer:
        ledger = await written_ledger(writer, 3)
        for bookie in cluster.bookies.values():
            bookie.gate = slowly
        for name in members(ledger)[:2]:
            cluster.die(name)
        assert await ledger.append(b"late, and confirmed") == 3
        assert len(ledger.metadata.fragments) <= 3
        await ledger.close()


@scenario(bookies=4)
async def test_an_unreadable_membership_replaces_no_member_and_ends_no_writer(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await written_ledger(writer, 3)
        spare = next(name for name in cluster.bookies if name not in members(ledger))
        cluster.metadata.bookies[spare].value = b"of a newer version"
        cluster.die(members(ledger)[0])
        assert await ledger.append_many(lines(20, start=3)) == range(3, 23)
        await cluster.world.clock.sleep(5)
        assert await ledger.append(b"goes on with two") == 23
        ledger.abandon()
        assert (await writer.recover_ledger(ledger.id)).last_entry_id == 23

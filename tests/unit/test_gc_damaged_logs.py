"""Garbage collection of damaged entry logs: the index decides what is still needed of them."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tallybook.bookie.directories.limbo import load_limbo, store_limbo
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.recovery.store_check import NeverBehind
from tallybook.bookie.storage.entry_log.format import LOG_HEADER_BYTES, LogFile, encode_log_header
from tallybook.bookie.storage.index.survey import RangeSurvey, RowKey, UnreadableRange
from tallybook.core.errors import MetadataUnavailable
from tallybook.core.limits import BLOCK_BYTES, SECTOR_BYTES
from tallybook.metadata.records.restored_store import RestoreRecord
from tallybook.runtime.concurrency.rate_limit import RateLimiter
from tallybook.sim.deterministic import World
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie

from .test_gc_collector import DROPPED, KEPT, collecting, fill, is_gone, logs_of


def path_of(log_id: int) -> str:
    return f"{ROOT}/ledgers/entrylog-{log_id:016d}.log"


def damage_footer(node: DiskBookie, log_id: int) -> None:
    """Lose the end mark of a finished log."""
    path = path_of(log_id)
    node.disk.rot.zero_sector(path, len(node.disk.peek(path)) // SECTOR_BYTES - 1)


async def damaged_log(node: DiskBookie) -> int:
    """The log of a ledger, with a damaged footer; another ledger follows it."""
    await fill(node, DROPPED, *range(8))
    await fill(node, KEPT, 0)
    damaged, *_ = logs_of(node)
    damage_footer(node, damaged)
    return damaged


async def note_limbo(node: DiskBookie) -> None:
    marker = await load_limbo(node.disk, f"{ROOT}/limbo")
    await store_limbo(node.disk, f"{ROOT}/limbo", replace(marker, events=1, below=100))


@pytest.mark.parametrize("table", [False, True])
@collecting()
async def test_a_log_whose_footer_is_damaged_is_removed_once_nothing_in_it_counts(
    node: DiskBookie, *, table: bool
) -> None:
    damaged = await damaged_log(node)
    if table:
        # The header and the table of the first range.
        node.disk.rot.zero_sector(path_of(damaged), BLOCK_BYTES // SECTOR_BYTES)
    await node.bookie.collect()
    await node.bookie.collect()
    assert damaged in logs_of(node), "what is in it counts"
    node.metadata.dispositions[DROPPED] = LedgerDisposition.RELEASED
    await node.bookie.collect()
    assert damaged not in logs_of(node)
    await node.stop()
    await node.boot()
    await is_gone(node)
    assert (await node.bookie.read_batches(KEPT, 0, 0, 1)).batches


@collecting()
async def test_a_log_whose_footer_the_disk_does_not_read_keeps_no_other_from_going_and_ends_no_bookie(
    node: DiskBookie,
) -> None:
    await fill(node, DROPPED, *range(8))
    await fill(node, KEPT, 0)
    unreadable, other, *_ = logs_of(node)
    node.metadata.dispositions[DROPPED] = LedgerDisposition.RELEASED
    node.disk.fail("read", path_of(unreadable))
    await node.bookie.collect()
    assert unreadable in logs_of(node)
    assert other not in logs_of(node)
    node.disk.faults.clear()
    await node.bookie.collect()
    assert unreadable not in logs_of(node)


@collecting()
async def test_a_log_of_another_data_directory_stays(node: DiskBookie) -> None:
    await fill(node, DROPPED, *range(8))
    await fill(node, KEPT, 0)
    other, *_ = logs_of(node)
    path = path_of(other)
    content = encode_log_header(LogFile(path, bytes(16), other)) + node.disk.peek(path)[LOG_HEADER_BYTES:]
    await node.disk.replace_file(path, content)
    damage_footer(node, other)
    node.metadata.dispositions[DROPPED] = LedgerDisposition.RELEASED
    await node.stop()
    await node.boot()
    for _ in range(3):
        await node.bookie.collect()
    assert other in logs_of(node)


@pytest.mark.parametrize("why", ["limbo", "limbo of a ledger that the metadata does not name", "index"])
@collecting()
async def test_a_damaged_log_stays_while_the_index_may_lack_rows(node: DiskBookie, *, why: str) -> None:
    damaged = await damaged_log(node)
    await node.stop()
    if why != "index":
        await note_limbo(node)
    if why.endswith("name"):
        node.named = nothing
    await node.boot()
    if why == "index":
        index = node.parts.index
        survey = index.survey_from

        async def partly(start: RowKey, limit: int) -> RangeSurvey:
            found = await survey(start, limit)
            return found._replace(unreadable=[UnreadableRange(RowKey(5, 0), RowKey(6, 0), is_row=False)])

        index.survey_from = partly  # type: ignore[method-assign]
    node.metadata.dispositions[DROPPED] = LedgerDisposition.RELEASED
    for _ in range(4):
        await node.bookie.collect()
    assert damaged in logs_of(node)


@pytest.mark.parametrize("why", ["the metadata do not say which ledgers are in limbo", "the store is behind"])
@collecting()
async def test_a_damaged_log_stays_while_it_is_not_known_of_which_ledgers_the_index_lacks_rows(
    node: DiskBookie, *, why: str
) -> None:
    damaged = await damaged_log(node)
    await node.parts.index.apply((), {}, drop_ledgers=[DROPPED, KEPT])
    await node.stop()
    if why == "the store is behind":
        node.behind = FoundBehind()
    else:
        await note_limbo(node)
        node.named = away
    await node.boot()
    for _ in range(4):
        await node.bookie.collect()
    assert damaged in logs_of(node)


@pytest.mark.parametrize("counted_before", [False, True])
@pytest.mark.parametrize("by_itself", [False, True])
def test_a_damaged_log_stays_when_the_right_store_is_back_after_an_older_copy_that_knew_no_ledger_in_limbo(
    counted_before: bool, by_itself: bool
) -> None:
    notes = FoundBehind()
    notes.is_behind = not counted_before

    async def named(_bookie_id: str, _below: int, _pace: RateLimiter) -> AsyncIterator[int]:
        if not notes.is_behind:
            yield DROPPED

    async def scenario(node: DiskBookie, world: World) -> None:
        async def rounds() -> None:
            for _ in range(3):
                await (world.clock.sleep(10) if by_itself else node.bookie.collect())

        damaged = await damaged_log(node)
        await node.parts.index.apply((), {}, drop_ledgers=[DROPPED, KEPT])
        await node.stop()
        await note_limbo(node)
        node.behind, node.named = notes, named
        await node.boot()
        await rounds()
        notes.is_behind = True
        await rounds()
        notes.is_behind = False
        await rounds()
        assert damaged in logs_of(node)
        assert node.bookie.stats()["ledgers_in_limbo"] == 1

    collecting(collect_interval_ms=1_000 if by_itself else 0)(scenario)()


class FoundBehind(NeverBehind):
    """A note that no operator has approved."""

    is_behind = True

    async def read(self) -> RestoreRecord | None:
        return RestoreRecord(1, 99, "b7", 1) if self.is_behind else None


async def nothing(_bookie_id: str, _below: int, _pace: RateLimiter) -> AsyncIterator[int]:
    for ledger_id in ():
        yield ledger_id


async def away(bookie_id: str, below: int, pace: RateLimiter) -> AsyncIterator[int]:
    async for ledger_id in nothing(bookie_id, below, pace):
        yield ledger_id
    raise MetadataUnavailable("the metadata are away")

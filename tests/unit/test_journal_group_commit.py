"""Group commit: when records are copied into the next block, so that the device never waits for it."""

import asyncio
from collections import deque

from tallybook.bookie.journal.format import BatchRecord, JournalMark, encode_record
from tallybook.bookie.journal.group_commit import Commit, GroupCommit, ReadySegment
from tallybook.core.limits import KIB
from tallybook.sim.deterministic import SimDisk


def failed(error: Exception) -> None:
    raise error


async def journal(commits: list[Commit]) -> GroupCommit:
    """Group commit over one ready segment; a block holds two of the records of ``put``."""
    disk = SimDisk()
    file = await disk.open("/segment", create=True, durable=True)
    return GroupCommit(
        instance=bytes(16),
        begin=JournalMark(1, 1),
        segment_bytes=64 * KIB,
        buffers=(disk.buffer(8 * KIB), disk.buffer(8 * KIB)),
        ready=deque([ReadySegment(1, file)]),
        on_commit=commits.append,
        on_failure=failed,
        monotonic=lambda: 0.0,
    )


def put(source: GroupCommit, *numbers: int) -> None:
    for number in numbers:
        header, body = encode_record(BatchRecord(bytes([number]) * 3000))
        source.put((header, body, 4 * KIB, lambda: None, float(number)))


async def test_what_waits_comes_in_when_a_write_is_done_and_when_more_is_put() -> None:
    commits: list[Commit] = []
    source = await journal(commits)
    put(source, 1, 2, 3, 4, 5)
    source.done(source.take())
    second = source.take()
    put(source, 6)
    source.done(second)
    source.done(source.take())
    assert source.take() is None
    assert [len(commit.on_durable) for commit in commits] == [2, 2, 2]
    assert [commit.since_seconds for commit in commits] == [1.0, 3.0, 5.0]


async def test_the_device_never_finds_an_empty_block_while_records_wait() -> None:
    source = await journal([])
    put(source, 1, 2, 3)
    source.take()
    assert source.take().data[128 + 8 + 10] == 3
    assert source.oldest_since() == 1.0


async def test_once_stopped_it_hands_out_nothing_and_reports_nothing() -> None:
    commits: list[Commit] = []
    source = await journal(commits)
    put(source, 1, 2, 3)
    write = source.take()
    source.stop()
    assert source.take() is None
    source.done(write)
    await asyncio.sleep(0)
    assert commits == []

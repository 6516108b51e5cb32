"""Entry logs that are missing, unreadable or foreign: UNKNOWN, reported, and repaired; never ABSENT."""

import os
import uuid
from pathlib import Path

import pytest
from crc32c import crc32c

from tallybook.bookie.storage.entry_log.format import log_name
from tallybook.bookie.storage.entry_log.logs import EntryLogs
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import DamagedBatch
from tallybook.core.errors import DiskFailed, EntryUnknown
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import BLOCK_BYTES, KIB
from tallybook.core.settings import StorageSettings
from tallybook.runtime.clock import RealClock
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, batch_of, tiny_settings

from ..simulated import simulated
from ..support.log_lines import line_of

LOGS = f"{ROOT}/ledgers"
ENTRIES = 4
UUID = str(uuid.UUID(int=7))


async def filled(world: World) -> DiskBookie:
    """A bookie with an entry log for each entry, that has stopped."""
    node = DiskBookie(SimDisk(world.rng), world.clock, None, tiny_settings(entry_log_bytes=8 * KIB))
    for entry_id in range(ENTRIES):
        await node.boot()
        assert (await node.add(batch_of(entry_id))).code == 0
        await node.stop()
    return node


async def log_of(disk: SimDisk, entry_id: int) -> str:
    return f"{LOGS}/" + sorted(name for name in await disk.list(LOGS) if name.startswith("entrylog"))[entry_id]


async def check_all_held(node: DiskBookie) -> None:
    for entry_id in range(ENTRIES):
        assert (await node.bookie.read_batches(1, entry_id, entry_id, 1)).batches == (batch_of(entry_id),)


@simulated
async def test_a_batch_of_a_lost_log_is_unknown_listed_once_it_was_read_and_mended_by_a_repair(world: World) -> None:
    node = await filled(world)
    await node.disk.unlink(await log_of(node.disk, 1))
    await node.boot()
    with pytest.raises(EntryUnknown, match="missing"):
        await node.bookie.read_batches(1, 1, 1, 1)
    assert await node.bookie.damaged((-1, -1), 10) == (DamagedBatch(1, 1, 1),)
    assert (await node.add(batch_of(1))).code == EntryUnknown.wire_code, "only a repair brings it back"
    assert (await node.add(batch_of(1), kind=AddKind.RECOVERY)).code == 0
    await check_all_held(node)
    await node.bookie.flush()
    assert await node.bookie.damaged((-1, -1), 10) == ()
    await node.lose_power()
    await node.boot()
    await check_all_held(node)
    await node.stop()


@simulated
async def test_a_batch_that_the_device_refuses_is_mended_by_a_repair_but_not_after_one_bad_moment(world: World) -> None:
    node = await filled(world)
    path = await log_of(node.disk, 1)
    await node.boot()
    node.disk.fail("read", path, times=1, error=DiskFailed)
    assert (await node.add(batch_of(1), kind=AddKind.RECOVERY)).code == 0
    await node.bookie.flush()
    row = await node.parts.index.find(1, 1)
    assert row is not None
    assert row.location.log_id == 2, "it is held, as could be read then"
    node.parts.read_cache.forget(1)
    node.disk.fail("read", path, times=2, error=DiskFailed)
    assert (await node.add(batch_of(1), kind=AddKind.RECOVERY)).code == 0
    await node.bookie.flush()
    row = await node.parts.index.find(1, 1)
    assert row is not None
    assert row.location.log_id > ENTRIES, "it was stored again"
    await node.stop()


@simulated
async def test_an_index_that_cannot_be_read_is_no_reason_to_take_a_batch_for_lost(world: World) -> None:
    node = await filled(world)
    await node.boot()
    await node.bookie.read_batches(1, 0, 0, 1)
    node.disk.fail("read", "changes.log", nth=2, times=2, error=DiskFailed)
    node.disk.fail("read", await log_of(node.disk, 1), times=1, error=DiskFailed)
    assert (await node.add(batch_of(1), kind=AddKind.RECOVERY)).code == EntryUnknown.wire_code
    await node.stop()


def on_a_real_disk(path: Path, what: str) -> None:
    match what:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link that leads nowhere":
            path.symlink_to("/nowhere/at/all")
        case "link to a pipe":
            os.mkfifo(path.with_suffix(".pipe"))
            path.symlink_to(path.with_suffix(".pipe"))


@pytest.mark.parametrize("what", ["directory", "pipe", "link that leads nowhere", "link to a pipe"])
async def test_what_is_named_like_a_log_and_is_no_file_is_reported_and_left_alone(tmp_path: Path, what: str) -> None:
    home = tmp_path / "ledgers"
    home.mkdir()
    strange = home / log_name(1)
    on_a_real_disk(strange, what)
    (home / "notes.txt").write_text("mine")
    disk = RealDisk()
    logs = await EntryLogs.open(disk, [str(home)], UUID, StorageSettings(), RealClock())
    assert logs.log_ids == []
    assert {str(strange), str(home / "notes.txt")} <= set(logs.strays)
    assert await logs.damaged() == []
    (location,) = await logs.append([batch_of(0)])
    assert location.log_id == 2, "the name of log 1 is taken"
    await logs.close()
    assert strange.is_symlink() or strange.exists()
    again = await EntryLogs.open(disk, [str(home)], UUID, StorageSettings(), RealClock())
    assert again.log_ids == [2]
    await again.close()
    await disk.close()


@simulated
async def test_the_log_of_another_bookie_and_one_under_a_wrong_name_are_reported_once_and_never_used(
    world: World, *, caplog: pytest.LogCaptureFixture
) -> None:
    node, other = await filled(world), await filled(world)
    ours, theirs = node.disk.peek(await log_of(node.disk, 2)), other.disk.peek(await log_of(other.disk, 2))
    head = theirs[:8] + bytes(range(16)) + theirs[24 : BLOCK_BYTES - 4]  # the uuid of another directory
    strange = [f"{LOGS}/{log_name(MAX_ID)}", f"{LOGS}/{log_name(0x1234)}"]
    contents = [head + crc32c(head).to_bytes(4, "little") + theirs[BLOCK_BYTES:], ours]
    for path, data in zip(strange, contents, strict=True):
        await node.disk.replace_file(path, data)
    caplog.clear()
    await node.boot()
    told = [line_of(record) for record in caplog.records if log_name(MAX_ID) in line_of(record)]
    assert len(told) == 1
    assert log_name(0x1234) in told[0]
    assert (await node.add(batch_of(ENTRIES))).code == 0
    await node.bookie.flush()
    await node.bookie.collect()
    await check_all_held(node)
    for path, data in zip(strange, contents, strict=True):
        assert node.disk.peek(path) == data
    row = await node.parts.index.find(1, ENTRIES)
    assert row is not None
    assert row.location.log_id == ENTRIES + 1
    await node.stop()

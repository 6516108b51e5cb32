"""Disks left by a stopped bookie, and checks of what a boot finds on them; for crash enumeration tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tallybook.bookie.bookie import Bookie
from tallybook.core.errors import DamagedFile
from tallybook.core.ids import MAX_ID, NO_ENTRY
from tallybook.core.limits import KIB
from tallybook.core.settings import BookieSettings

from ..deterministic import SimClock, SimDisk, World, run_seed
from .disk_bookie import ROOT, DiskBookie, KnownMetadata

_MAX_LEDGERS = 100
_MAX_ROWS = 1000


def disk_after(settings: BookieSettings, groups: Iterable[Iterable[bytes]]) -> SimDisk:
    """Disk of a bookie that was stopped cleanly; each group of batches was flushed to entry logs separately."""

    async def scenario(world: World) -> SimDisk:
        node = DiskBookie(SimDisk(world.rng), world.clock, None, settings)
        await node.boot()
        for group in groups:
            for batch in group:
                answer = await node.add(batch)
                if answer.code:
                    raise RuntimeError(f"the bookie does not take a batch: {answer}")
            await node.bookie.flush()
            await world.clock.sleep(0.1)
        await node.stop()
        return node.disk

    return run_seed(1, scenario).value


async def bookie_on(disk: SimDisk, settings: BookieSettings, **known: Any) -> DiskBookie:
    """The bookie of a disk, not started yet.

    Args:
        known: fields of ``KnownMetadata`` besides its cookie.

    Raises:
        DamagedFile: the disk has no cookie.
    """
    cookie = await disk.read_file(f"{ROOT}/cookie", 4 * KIB)
    if cookie is None:
        raise DamagedFile(f"{ROOT}/cookie is missing")
    return DiskBookie(disk, SimClock(), KnownMetadata(cookies={"b1": cookie}, **known), settings)


def truncated_logs(disk: SimDisk, bookie: Bookie) -> list[int]:
    """Entry logs that are shorter than their noted length; a boot must never find one, not even during a removal."""
    directories = bookie._parts.logs._directories  # noqa: SLF001 - no public way to get it
    found = []
    for log_id, size in directories.noted.items():
        inode = disk.state.inode(directories.path_of(log_id))
        if inode is None or disk.state.files[inode].current.size < size:
            found.append(log_id)
    return found


def pieces_cut(disk: SimDisk) -> int:
    """Number of truncations of removed entry logs."""
    return sum(operation.name == "truncate" and "/entrylog-" in operation.path for operation in disk.trace)


async def rows_without_logs(node: DiskBookie) -> list[int]:
    """Ledgers with an index row that points into a missing entry log."""
    parts, found = node.parts, []
    for ledger_id in await parts.index.ledgers_with_rows(NO_ENTRY, _MAX_LEDGERS):
        rows = await parts.index.find_range(ledger_id, 0, MAX_ID, _MAX_ROWS)
        if not {row.location.log_id for row in rows} <= set(parts.logs.log_ids):
            found.append(ledger_id)
    return found

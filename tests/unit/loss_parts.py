"""Losses of a bookie on a simulated disk, the acceptance of them, and what the bookie answers afterwards."""

from __future__ import annotations

from tallybook.bookie.recovery.accepted_loss import accept_loss
from tallybook.sim.deterministic import SimDisk
from tallybook.sim.stage.disk_bookie import DiskBookie


async def empty(disk: SimDisk, directory: str) -> None:
    """Lose every file of a directory."""
    for name in await disk.list(directory):
        await disk.unlink(f"{directory}/{name}")


async def accept(node: DiskBookie) -> list[str]:
    """Accept what is lost; returns what that is."""
    _, lost = await accept_loss(node.settings, node.disk, node.metadata, node.metadata.read_id_counter)
    return lost


def everything_in(disk: SimDisk) -> dict[str, bytes]:
    """Every file and its content."""
    return {
        f"{directory}/{name}": disk.peek(f"{directory}/{name}")
        for directory in disk.state.directories
        for name in disk.state.names(directory)
        if disk.state.inode(f"{directory}/{name}") is not None
    }

"""Puts a bookie on a simulated disk into limbo, as a loss of records does."""

from __future__ import annotations

from tallybook.bookie.directories.limbo import load_limbo, store_limbo
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie


async def reboot_in_limbo(node: DiskBookie, *, below: int, registered: bool = True) -> None:
    """Boot the bookie again after a loss: ledgers with ids below ``below`` are in limbo.

    Args:
        registered: if not, the bookie that this one replaces may still ack.
    """
    await node.stop()
    limbo = (await load_limbo(node.disk, f"{ROOT}/limbo")).again(below)
    if not registered:
        limbo = limbo.reaching(below, awaits_registration=True)
    await store_limbo(node.disk, f"{ROOT}/limbo", limbo)
    await node.boot(registers=registered)

"""Damage to bytes, and what a bookie says of an entry afterwards."""

from collections.abc import Iterator

from tallybook.core.errors import TallybookError
from tallybook.sim.deterministic import SimDisk
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, batch_of


def flipped(data: bytes | bytearray, bit: int) -> bytes:
    """``data`` with one bit flipped."""
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def flips(data: bytes | bytearray) -> Iterator[bytes]:
    """``data`` with each of its bits flipped in turn."""
    return (flipped(data, bit) for bit in range(8 * len(data)))


async def zero_block(disk: SimDisk) -> None:
    """Zero the header of a block of a journal with records, behind which there are others."""
    for name in sorted(await disk.list(f"{ROOT}/journal")):
        path = f"{ROOT}/journal/{name}"
        data = disk.peek(path)
        starts = [at for at in range(4096, len(data), 4096) if data[at : at + 4] == b"TJBK"]
        blocks = [at for at in starts if any(data[at + 44 : at + 48])]  # seals have no records
        if len(blocks) > 4:
            disk.rot.zero_sector(path, blocks[-3] // 512)
            return
    raise AssertionError("no segment with enough blocks")


async def said_of(node: DiskBookie, ledger_id: int, entry_id: int, held: bytes | None = None) -> str:
    """The answer to a read of an entry: an error's name, or "held" if it is in the batch ``held``."""
    try:
        answer = await node.bookie.read_batches(ledger_id, entry_id, entry_id, 1)
    except TallybookError as error:
        return type(error).__name__
    assert answer.batches == (held or batch_of(entry_id, ledger_id=ledger_id),)
    return "held"

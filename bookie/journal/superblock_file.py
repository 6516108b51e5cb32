"""Reads and writes the superblock file."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.runtime.disk.port import Disk, DiskFile

from .superblock import (
    SLOT_BYTES,
    SLOT_COUNT,
    SUPERBLOCK_BYTES,
    Superblock,
    decode_slot,
    encode_slot,
    newest,
    next_versions,
    slot_offset,
)

FILE_NAME: Final = "superblock"


class SuperblockRead(NamedTuple):
    """Contents of the file."""

    facts: Superblock
    slots: tuple[Superblock | None, ...]
    """Slot by slot; ``None`` if it fails its checks, as after a crash in the middle of a write."""


async def read_superblock(disk: Disk, directory: str) -> SuperblockRead | None:
    """The facts in force, or ``None`` if no journal was ever created.

    Raises:
        DamagedFile: neither slot passes its checks. Without the facts, the segments cannot be interpreted.
        NewerFormat: one of them has a later version; then the other one does not count.
    """
    path = f"{directory}/{FILE_NAME}"
    try:
        file = await disk.open(path, writable=False)
    except FileNotFoundError:
        return None
    try:
        data = await file.read(0, SUPERBLOCK_BYTES)
    finally:
        await file.close()
    try:
        slots = tuple(decode_slot(data[at * SLOT_BYTES :][:SLOT_BYTES]) for at in range(SLOT_COUNT))
    except NewerFormat as error:
        raise NewerFormat(f"{path}: {error.message}") from None
    facts = newest(slots)
    if facts is None:
        raise DamagedFile(f"{path}: neither of its two slots passes its checks, at offsets 0 and {SLOT_BYTES}")
    return SuperblockRead(facts, slots)


class SuperblockFile:
    """The superblock of a running journal. The owner serialises calls of ``write``."""

    def __init__(self, file: DiskFile, facts: Superblock) -> None:
        self._file = file
        self.facts = facts
        """The durable contents of both slots."""

    @classmethod
    async def create(cls, disk: Disk, directory: str, facts: Superblock) -> SuperblockFile:
        """Create the file atomically, with ``facts`` in both slots."""
        versions = next_versions(facts)
        slots = sorted(versions, key=lambda version: slot_offset(version.sequence))
        await disk.replace_file(f"{directory}/{FILE_NAME}", b"".join(map(encode_slot, slots)))
        return await cls.open(disk, directory, versions[-1])

    @classmethod
    async def open(cls, disk: Disk, directory: str, facts: Superblock) -> SuperblockFile:
        """Open the file, which was read before and holds ``facts``."""
        return cls(await disk.open(f"{directory}/{FILE_NAME}", durable=True), facts)

    async def write(self, facts: Superblock) -> None:
        """Make ``facts`` durable in both slots, with the next sequence numbers.

        Raises:
            DiskFull, DiskFailed: the facts may or may not hold after a restart.
        """
        versions = next_versions(replace(facts, sequence=self.facts.sequence))
        for version in versions:
            await self._file.write(slot_offset(version.sequence), [encode_slot(version)])
        self.facts = versions[-1]

    async def close(self) -> None:
        """Close the file."""
        await self._file.close()

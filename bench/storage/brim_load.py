"""Fills a small disk completely, several times; prints one line of JSON.

python -m tallybook.bench.storage.brim_load DIRECTORY --mib 256 --turns 3

It mounts a tmpfs below DIRECTORY, so it needs a mount namespace of its own (``unshare``). The only bookie of a cluster
has its data there. In each turn, ledgers are written until the bookie is read-only, then a filler file takes all
remaining bytes; all confirmed entries are read back; and half of the ledgers are deleted.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from tallybook.client.client import Client
from tallybook.core.errors import PeerError, TallybookError
from tallybook.core.limits import KIB, MIB
from tallybook.core.settings import ClientSettings
from tallybook.runtime.tuning import tune_process

from ..equipment.bookies import RestartableBookie, metadata_in
from ..equipment.programs import ProgramFailed, print_json_line
from ..gates import Figures
from ..loads.payloads import payload_of

ENTRY_BYTES: Final = 64 * KIB
ENTRIES_PER_LEDGER: Final = 64
TIMEOUT_SECONDS: Final = 120.0
SETTINGS: Final = (
    "journal.segment_bytes=4MiB",
    "journal.segment_count=4",
    "storage.write_cache_bytes=8MiB",
    "storage.entry_log_bytes=8MiB",
    "storage.flush_interval_ms=500",
    "storage.min_free_bytes=1MiB",
    "collection.interval_ms=1000",
    "collection.deleted_delay_s=0",
)
_POLL_SECONDS: Final = 0.1
_READ_ONLY: Final = "tallybook_bookie_read_only"
_FILLER_PIECES: Final = (MIB, 4 * KIB)


class _Brim:
    """The bookie, with the entries that it must have."""

    def __init__(self, bookie: RestartableBookie, client: Client) -> None:
        self._bookie = bookie
        self._client = client
        self._confirmed: dict[int, int] = {}
        """Number of entries of each existing ledger."""
        self.figures: Figures = dict.fromkeys(("brim_full", "brim_back", "brim_lost", "brim_back_seconds"), 0)

    async def turn(self, filler: Path) -> None:
        """Fill the disk, check all entries, and free space."""
        await self._write_until_full()
        _fill_disk(filler)
        self.figures["brim_full"] += 1
        await self.check_entries()
        _give_it_back(filler)
        await self._delete_half()
        began = time.monotonic()
        await self._until(lambda: not self._read_only, "the bookie has space again")
        self.figures["brim_back"] += 1
        self.figures["brim_back_seconds"] = round(max(self.figures["brim_back_seconds"], time.monotonic() - began), 1)

    async def check_entries(self) -> None:
        """Read all entries, and count the wrong ones."""
        for ledger_id, count in self._confirmed.items():
            reader = await self._client.open_ledger(ledger_id)
            good = 0
            try:
                async for entry in reader.read(0, count - 1):
                    good += entry.payload == payload_of(ledger_id, entry.entry_id, ENTRY_BYTES)
            except TallybookError as error:
                print_json_line({"ledger": ledger_id, "error": repr(error)})
            self.figures["brim_lost"] += count - good

    @property
    def _read_only(self) -> bool:
        return self._bookie.metrics()[_READ_ONLY] == 1

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise ProgramFailed(f"timeout: not {what} within {TIMEOUT_SECONDS:.0f} s")
            await asyncio.sleep(_POLL_SECONDS)

    async def _write_until_full(self) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self._read_only:
            if time.monotonic() > deadline:
                raise ProgramFailed(f"the disk was not full within {TIMEOUT_SECONDS:.0f} s")
            try:
                writer = await self._client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1)
            except PeerError:
                # The bookie's mode has just changed, and the client does not know it yet.
                await asyncio.sleep(_POLL_SECONDS)
                continue
            try:
                for number in range(ENTRIES_PER_LEDGER):
                    await writer.append(payload_of(writer.id, number, ENTRY_BYTES))
                    self._confirmed[writer.id] = number + 1
                await writer.close()
            except PeerError:
                writer.abandon()

    async def _delete_half(self) -> None:
        for ledger_id in list(self._confirmed)[::2]:
            await self._client.delete_ledger(ledger_id)
            del self._confirmed[ledger_id]


def _fill_disk(filler: Path) -> None:
    """Write until the disk is full."""
    with filler.open("wb", buffering=0) as file:
        for size in _FILLER_PIECES:
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                # Full for pieces of this size.
                continue


def _give_it_back(filler: Path) -> None:
    filler.unlink()


@asynccontextmanager
async def _client_of(directory: Path) -> AsyncIterator[Client]:
    settings = ClientSettings(add_timeout_ms=3_000, away_timeout_ms=500, quarantine_ms=0)
    async with Client(metadata_in(directory), settings) as client:
        yield client


async def _play(directory: Path, bookie: RestartableBookie, turns: int) -> Figures:
    async with _client_of(directory) as client:
        brim = _Brim(bookie, client)
        for _ in range(turns):
            await brim.turn(bookie.directory.parent / "filler")
        # Entries must survive a restart.
        bookie.kill()
        bookie.start()
        bookie.ready()
        await brim.check_entries()
        return brim.figures


def main(
    directory: Annotated[Path, typer.Argument(help="Where the small disk is mounted, and its cluster's metadata lie.")],
    mib: Annotated[int, typer.Option(help="Size of the disk.")] = 256,
    turns: Annotated[int, typer.Option(help="How often it is filled.")] = 3,
) -> None:
    """Fill a disk, and print the figures."""
    tune_process()
    disk = directory / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", disk], check=True)
    bookie = RestartableBookie("b0", disk / "b0", metadata_in(directory), SETTINGS, logs=directory)
    try:
        bookie.start()
        bookie.ready()
        figures = asyncio.run(_play(directory, bookie, turns))
    finally:
        bookie.stop()
    print_json_line(figures)


if __name__ == "__main__":
    typer.run(main)

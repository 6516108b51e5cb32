"""Entry logs on a simulated disk, batches for them, and the operations that the disk saw."""

import uuid
from typing import Any

from tallybook.bookie.storage.entry_log.format import log_name
from tallybook.bookie.storage.entry_log.logs import EntryLogs
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.batch import encode_batch
from tallybook.core.limits import KIB
from tallybook.core.settings import StorageSettings
from tallybook.runtime.clock import RealClock
from tallybook.sim.deterministic import SimDisk

HOME = "/b/ledgers"
UUID = str(uuid.UUID(int=77))


def batch(ledger_id: int, first: int, payload_bytes: int = 100, count: int = 2) -> bytes:
    payloads = [bytes([first % 251]) * payload_bytes] * count
    return encode_batch(
        ledger_id, first, payloads, lac=first - 1, ledger_length=payload_bytes * (first + count), written_at_us=1
    )


def row_of(data: bytes, location: Location) -> IndexRow:
    return IndexRow(int.from_bytes(data[16:24], "little"), int.from_bytes(data[24:32], "little"), location)


async def open_logs(disk: SimDisk, *, clock: Any = None, directory_uuid: str = UUID, **settings: Any) -> EntryLogs:
    await disk.make_directory(HOME)
    chosen = StorageSettings(**{"entry_log_bytes": 64 * KIB} | settings)
    return await EntryLogs.open(disk, [HOME], directory_uuid, chosen, clock or RealClock())


async def append(logs: EntryLogs, batches: list[bytes]) -> list[IndexRow]:
    return [row_of(*each) for each in zip(batches, await logs.append(batches), strict=True)]


async def written(disk: SimDisk, batches: list[bytes], **settings: Any) -> tuple[EntryLogs, list[IndexRow]]:
    """Logs that hold ``batches``, synced, and a row for each."""
    logs = await open_logs(disk, **settings)
    rows = await append(logs, batches)
    await logs.sync()
    return logs, rows


def path_of(log_id: int) -> str:
    return f"{HOME}/{log_name(log_id)}"


def operations(disk: SimDisk, name: str) -> list[tuple[str, int, int]]:
    return [(op.path, op.offset, op.size) for op in disk.trace if op.name == name]

"""An index in memory, with a log of its changes on disk, for simulation and tests.

It answers from memory and appends each write batch as one record to a file (``_Record``). So crashes of a simulated
disk (lost, torn or reordered writes) affect the index like everything else. Opening reads the file and keeps the
records before the first incomplete one. The file never shrinks.
"""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Self

from crc32c import crc32c

from tallybook.bookie.storage.index.format import (
    ROW_KEY_BYTES,
    STATE_KEY_BYTES,
    decode_row,
    decode_state,
    encode_row,
    encode_state,
    row_key,
    split_row_key,
    split_state_key,
    state_key,
)
from tallybook.bookie.storage.index.port import MAX_FIND_ROWS, CacheBytes, WriteBatch, write_batches
from tallybook.bookie.storage.index.rocksdb_stats import TableFigures
from tallybook.bookie.storage.index.survey import (
    END,
    LedgerSurvey,
    RangeSurvey,
    RowKey,
    SurveyStep,
    UnreadableRange,
    collect_survey,
    next_key,
    undamaged,
)
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.errors import DamagedFile, DiskFailed, DiskFull, EntryUnknown
from tallybook.core.ids import NO_ENTRY
from tallybook.runtime.disk.port import Disk, DiskFile

FILE_NAME: Final = "changes.log"

_MAGIC: Final = b"TMIX"
_RECORD: Final = struct.Struct("<4sIqqI")
_CRC: Final = struct.Struct("<I")
_HEAD_BYTES: Final = 32
_CHANGE: Final = struct.Struct("<BI")
_DROP, _ROW, _STATE, _DROP_ROWS, _DROP_KEY = range(5)
_KEY_BYTES: Final = {
    _DROP: STATE_KEY_BYTES,
    _ROW: ROW_KEY_BYTES,
    _STATE: STATE_KEY_BYTES,
    _DROP_ROWS: STATE_KEY_BYTES,
    _DROP_KEY: ROW_KEY_BYTES,
}


class _Record(NamedTuple):
    """A record of the file, little-endian::

     0  4  magic "TMIX"
     4  4  bytes of the body
     8  8  number of this record, from 0
    16  8  vouched: everything below this offset was durable when the record was written
    24  4  reserved, zero
    28  4  CRC-32C of the 28 bytes before it and of the body
    32     body: for each change 1 byte, 4 bytes value length, key, value

    Kinds of changes: 0 drop a ledger, 1 put a row, 2 put a state, 3 drop the rows of a ledger, 4 drop one row.
    """

    number: int
    vouched: int
    body: memoryview
    end: int


class MemoryIndex:
    """An ``Index`` with all rows in memory. Created by ``open``."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._firsts: dict[int, list[int]] = {}
        self._locations: dict[tuple[int, int], Location] = {}
        self._states: dict[int, bytes] = {}
        self._size = 0
        self._durable_bytes = 0
        self._records = 0
        self._failed = ""
        self._changing = asyncio.Lock()
        self.damaged: set[RowKey] = set()
        """Keys of damaged rows; a new row under the key replaces one."""
        self.unreadable: UnreadableRange | None = None
        """A key range that cannot be read, also after writes."""
        self.compacted: list[tuple[int, int]] = []
        """Ranges for which ``compact`` was called; there is nothing to do in memory."""

    @property
    def cache_bytes(self) -> CacheBytes:
        """See the port: it has no caches."""
        return CacheBytes(0, 0)

    @property
    def figures(self) -> TableFigures:
        """See the port: it has no tables."""
        return TableFigures()

    @classmethod
    async def open(cls, disk: Disk, directory: str, *, create: bool) -> Self:
        """Open the index in ``directory``.

        Args:
            create: whether to create a missing index.

        Raises:
            DamagedFile: it is missing, or durable changes are damaged; the message names the directory.
            DiskFailed: it cannot be read.
        """
        path = f"{directory}/{FILE_NAME}"
        if create:
            await disk.make_directory(directory)
        try:
            file = await disk.open(path, create=create)
        except FileNotFoundError as error:
            raise DamagedFile(f"there is no index in {directory}") from error
        index = cls(file)
        await index._load()
        await disk.sync_directory(directory)
        return index

    # -- reading -----------------------------------------------------------------------------

    async def find(self, ledger_id: int, entry_id: int) -> IndexRow | None:
        """The row of the batch with this entry."""
        rows = await self.find_range(ledger_id, entry_id, entry_id, 1)
        return rows[0] if rows else None

    async def find_range(self, ledger_id: int, first: int, last: int, limit: int) -> list[IndexRow]:
        """Rows that overlap ``first .. last``."""
        await self._touch()
        firsts = self._firsts.get(ledger_id, [])
        start = max(0, bisect_right(firsts, first) - 1)
        self._check_readable(RowKey(ledger_id, min([first, *firsts[start : start + 1]])), next_key(ledger_id, last))
        rows = [self._row(ledger_id, each) for each in firsts[start : bisect_right(firsts, last)]]
        return [row for row in rows if row.last_entry_id >= first][: min(limit, MAX_FIND_ROWS)]

    async def known_among(self, rows: Sequence[IndexRow]) -> list[IndexRow]:
        """The rows among ``rows`` that it has, with the same location."""
        await self._touch()
        for row in rows:
            self._check_readable(RowKey(*row[:2]), next_key(*row[:2]))
        return [row for row in rows if row[:2] in self._locations and self._row(*row[:2]) == row]

    async def rows_after(self, ledger_id: int, first_entry_id: int, limit: int) -> list[IndexRow]:
        """Rows of all ledgers."""
        await self._touch()
        behind = sorted(key for key in self._locations if key > (ledger_id, first_entry_id))
        start = RowKey(0, 0) if ledger_id < 0 else next_key(ledger_id, first_entry_id)
        self._check_readable(start, RowKey(*behind[limit]) if limit < len(behind) else END)
        return [self._row(*key) for key in behind[:limit]]

    async def last_entry(self, ledger_id: int) -> int:
        """The highest entry id, ``NO_ENTRY`` without rows."""
        await self._touch()
        self._check_readable(RowKey(ledger_id, 0), RowKey(ledger_id + 1, 0))
        firsts = self._firsts.get(ledger_id)
        return self._row(ledger_id, firsts[-1]).last_entry_id if firsts else NO_ENTRY

    async def load_state(self, ledger_id: int) -> bytes | None:
        """The state of the ledger."""
        await self._touch()
        return self._states.get(ledger_id)

    async def ledger_ids(self, after: int, limit: int) -> list[int]:
        """Ledgers with a row or a state."""
        await self._touch()
        known = {*self._firsts, *self._states}
        return sorted(each for each in known if each > after)[:limit]

    async def ledgers_with_rows(self, after: int, limit: int) -> list[int]:
        """Ledgers with a row."""
        await self._touch()
        self._check_readable(RowKey(after + 1, 0), END)
        return sorted(each for each in self._firsts if each > after)[:limit]

    async def survey(self, ledger_id: int, first: int, last: int, limit: int) -> RangeSurvey:
        """Rows that overlap ``first .. last``."""
        limit = min(limit, MAX_FIND_ROWS)
        if not self.damaged and self.unreadable is None:
            return undamaged(await self.find_range(ledger_id, first, last, limit), limit, RowKey(ledger_id, last))
        await self._touch()
        before = bisect_right(self._firsts.get(ledger_id, []), first) - 1
        start = first if before < 0 else self._firsts[ledger_id][before]
        end = next_key(ledger_id, last)
        found = collect_survey(self._walk(RowKey(ledger_id, start), end), end, limit)
        return found._replace(rows=[row for row in found.rows if row.last_entry_id >= first])

    async def survey_from(self, start: RowKey, limit: int) -> RangeSurvey:
        """Rows of all ledgers."""
        if not self.damaged and self.unreadable is None:
            return undamaged(await self.rows_after(start.ledger_id, start.first_entry_id - 1, limit), limit, END)
        await self._touch()
        return collect_survey(self._walk(start, END), END, limit)

    async def survey_ledgers(self, after: int, limit: int) -> LedgerSurvey:
        """Ledgers with a row; those in the unreadable range are reported as unknown."""
        await self._touch()
        steps = self._walk(RowKey(after + 1, 0), END)
        seen = {step.key.ledger_id for step in steps if step.behind is None}
        found = sorted(seen)[:limit]
        lost = self.unreadable
        unknown = [] if lost is None or lost.end <= RowKey(after + 1, 0) else [lost.ledgers()]
        return LedgerSurvey(found, unknown, found[-1] if len(found) == limit else None)

    def _walk(self, at: RowKey, end: RowKey) -> list[SurveyStep]:
        lost = self.unreadable
        steps = [
            SurveyStep(RowKey(*key), None if key in self.damaged else self._row(*key))
            for key in self._locations
            if at <= key < end and not (lost is not None and lost.begin <= key < lost.end)
        ]
        if lost is not None and at < lost.end and lost.begin < end:
            steps.append(SurveyStep(max(at, lost.begin), behind=lost.end, refused=lost.refused))
        return sorted(steps, key=lambda step: step.key)

    def _check_readable(self, begin: RowKey, end: RowKey) -> None:
        lost = self.unreadable
        if lost is not None and begin < lost.end and lost.begin < end:
            raise EntryUnknown(f"the index {self._file.path} cannot tell") from DamagedFile("a part cannot be read")

    # -- writing -----------------------------------------------------------------------------

    async def apply(
        self,
        rows: Sequence[IndexRow],
        states: Mapping[int, bytes],
        *,
        drop_ledgers: Sequence[int] = (),
        drop_rows: Sequence[int] = (),
        drop_keys: Sequence[RowKey] = (),
        frees_space: bool = False,
    ) -> None:
        """Append and apply one write batch after the other."""
        async with self._changing:
            for batch in write_batches(rows, states, drop_ledgers, drop_rows, drop_keys):
                await self._record(b"".join(_encode_changes(batch)))

    async def sync(self) -> None:
        """Sync the file."""
        async with self._changing:
            self._check_usable()
            try:
                await self._file.sync()
            except BaseException as error:
                self._failed = repr(error)
                raise
            self._durable_bytes = self._size

    async def compact(self, first_ledger: int, last_ledger: int) -> None:
        """Only record the call."""
        self._check_usable()
        await self._touch()
        self.compacted.append((first_ledger, last_ledger))

    async def close(self) -> None:
        """Close the file."""
        self._failed = "it was closed"
        await self._file.close()

    async def _record(self, body: bytes) -> None:
        self._check_usable()
        head = _RECORD.pack(_MAGIC, len(body), self._records, self._durable_bytes, 0)
        try:
            await self._file.write(self._size, [head, _CRC.pack(crc32c(body, crc32c(head))), body])
        except DiskFull:
            await self._file.truncate(self._size)
            raise
        except BaseException as error:
            self._failed = repr(error)
            raise
        self._show(memoryview(body))
        self._records += 1
        self._size += _HEAD_BYTES + len(body)

    def _check_usable(self) -> None:
        if self._failed:
            raise DiskFailed(f"the index {self._file.path} accepts no more changes: {self._failed}")

    def _show(self, body: memoryview) -> None:
        """Make the changes of one record visible."""
        for kind, key, value in _decode_changes(body):
            if kind == _ROW:
                self._put_row(decode_row(key, value))
            elif kind == _STATE:
                self._states[split_state_key(key)] = decode_state(key, value)
            elif kind == _DROP_KEY:
                self._drop_row(RowKey(*split_row_key(key)))
            else:
                ledger_id = split_state_key(key)
                if kind == _DROP:
                    self._states.pop(ledger_id, None)
                for first in self._firsts.pop(ledger_id, ()):
                    del self._locations[ledger_id, first]

    def _put_row(self, row: IndexRow) -> None:
        if (row.ledger_id, row.first_entry_id) not in self._locations:
            insort(self._firsts.setdefault(row.ledger_id, []), row.first_entry_id)
        self._locations[row.ledger_id, row.first_entry_id] = row.location
        self.damaged.discard(RowKey(row.ledger_id, row.first_entry_id))

    def _drop_row(self, key: RowKey) -> None:
        if self._locations.pop(key, None) is None:
            return
        firsts = self._firsts[key.ledger_id]
        firsts.remove(key.first_entry_id)
        if not firsts:
            del self._firsts[key.ledger_id]

    def _row(self, ledger_id: int, first_entry_id: int) -> IndexRow:
        if (ledger_id, first_entry_id) in self.damaged:
            what = f"the row of ledger {ledger_id} from entry {first_entry_id} on is damaged"
            raise EntryUnknown(f"the index {self._file.path} cannot tell: {what}") from DamagedFile(what)
        return IndexRow(ledger_id, first_entry_id, self._locations[ledger_id, first_entry_id])

    async def _touch(self) -> None:
        """Do a read of the file, to take its time and to fail if the disk fails."""
        try:
            await self._file.read(0, 1)
        except DiskFailed as error:
            raise EntryUnknown(f"the index {self._file.path} cannot be read: {error}") from error

    # -- opening -----------------------------------------------------------------------------

    async def _load(self) -> None:
        data = memoryview(await self._file.read(0, await self._file.size()))
        while (record := _decode_record(data, self._size)) is not None and record.number == self._records:
            self._show(record.body)
            self._records += 1
            self._size = record.end
        if self._size < len(data):
            self._check_torn(data)
            await self._file.truncate(self._size)
        await self._file.sync()
        self._durable_bytes = self._size

    def _check_torn(self, data: memoryview) -> None:
        """Refuse to cut an incomplete record off if a later record vouches for it."""
        for at in range(self._size, len(data) - _HEAD_BYTES + 1):
            record = _decode_record(data, at) if bytes(data[at : at + 4]) == _MAGIC else None
            if record is not None and record.vouched > self._size:
                raise DamagedFile(f"the index {self._file.path} is damaged at offset {self._size}")


def _encode_changes(batch: WriteBatch) -> Iterator[bytes]:
    for ledger_id in batch.drop_ledgers:
        yield _CHANGE.pack(_DROP, 0) + state_key(ledger_id)
    for ledger_id in batch.drop_rows:
        yield _CHANGE.pack(_DROP_ROWS, 0) + state_key(ledger_id)
    for each in batch.drop_keys:
        yield _CHANGE.pack(_DROP_KEY, 0) + row_key(*each)
    for row in batch.rows:
        key, value = encode_row(row)
        yield _CHANGE.pack(_ROW, len(value)) + key + value
    for ledger_id, state in batch.states.items():
        key, value = encode_state(ledger_id, state)
        yield _CHANGE.pack(_STATE, len(value)) + key + value


def _decode_changes(body: memoryview) -> Iterator[tuple[int, bytes, bytes]]:
    at = 0
    while at < len(body):
        kind, size = _CHANGE.unpack_from(body, at)
        key_at = at + _CHANGE.size
        value_at = key_at + _KEY_BYTES[kind]
        at = value_at + size
        yield kind, bytes(body[key_at:value_at]), bytes(body[value_at:at])


def _decode_record(data: memoryview, at: int) -> _Record | None:
    """The record at ``at``; ``None`` if it is incomplete or damaged."""
    if at + _HEAD_BYTES > len(data):
        return None
    magic, size, number, vouched, _ = _RECORD.unpack_from(data, at)
    end = at + _HEAD_BYTES + size
    if magic != _MAGIC or end > len(data):
        return None
    body = data[at + _HEAD_BYTES : end]
    crc = _CRC.unpack_from(data, at + _RECORD.size)[0]
    return _Record(number, vouched, body, end) if crc == crc32c(body, crc32c(data[at : at + _RECORD.size])) else None

"""Reads ledgers from archive objects: the same batches, byte for byte, as from bookies.

An entry is found by the directory, which has the runs of its ledger: a run is adjacent rows in one row group. Entry id
and run give the row, and the page table of the row group the page with this row (``PageTable.at_row`` in
``format/index_tables``).

With the index of an object in the cache, one entry costs one ranged read of its page (64 KiB before compression, for
small entries). Longer reads fetch adjacent pages in one request.

Everything is verified: the directory against the ledger's metadata, its tables against the directory, a page against
its table, a batch against its writer's checksum.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
from cachetools import LRUCache
from crc32c import crc32c

from tallybook.core.batch import BatchHeader, Entry, decode_header
from tallybook.core.errors import DamagedFile, EntryAbsent, InvalidBatch, ObjectDamaged, ObjectMissing
from tallybook.core.limits import KIB, MIB
from tallybook.metadata.ledger.archived import IndexPart, Receipt
from tallybook.runtime.metrics.usage import MetricValue
from tallybook.runtime.tasks import Tasks, Workers

from .format.batch_rows import plain_values, rebuild_batch
from .format.index_codec import IndexRoot, RowGroup, Run, read_batches, read_directory, read_pages
from .format.index_tables import BatchTable, PageTable
from .metrics import ARCHIVE_READER_METRICS, CacheLoad
from .objects.port import ObjectStore
from .trace_location import ArchiveLocation

T = TypeVar("T")

_FIRST_READ_BYTES: Final = 64 * KIB
"""Read together with the directory: for most objects this contains the rest of the index."""

_WINDOW: Final = -1
"""Cache key offset of the bytes read together with the directory."""


@dataclass(frozen=True, slots=True)
class ArchiveReaderSettings:
    """Limits of one reader, shared by all ledgers of a client."""

    index_cache_bytes: int = 64 * MIB
    page_cache_bytes: int = 32 * MIB
    max_read_bytes: int = 4 * MIB
    """Largest ranged read, except for a single larger page."""


class ArchiveReader:
    """Reads archived ledgers from one object store.

    Args:
        workers: decompress pages and rebuild batches.
        tasks: run reads that several callers wait for.
    """

    def __init__(
        self, store: ObjectStore, workers: Workers, tasks: Tasks, settings: ArchiveReaderSettings | None = None
    ) -> None:
        self._store = store
        self._workers = workers
        self._tasks = tasks
        self._settings = settings or ArchiveReaderSettings()
        self._index: LRUCache[tuple[str, int], Any] = LRUCache(self._settings.index_cache_bytes, getsizeof=_cost)
        self._pages: LRUCache[tuple[str, int], list[bytes]] = LRUCache(self._settings.page_cache_bytes, getsizeof=_held)
        self._load = CacheLoad({"index": self._index, "pages": self._pages})
        self._loading: dict[tuple[str, int], asyncio.Task[Any]] = {}

    def readings(self) -> dict[str, MetricValue]:
        """Values of ``ARCHIVE_READER_METRICS``."""
        return ARCHIVE_READER_METRICS.readings(self._load)

    async def batches(
        self, receipt: Receipt, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> list[tuple[BatchHeader, bytes]]:
        """Batches from the one with ``first``, up to ``last`` or ``max_bytes`` of payload; at least one.

        Raises:
            EntryAbsent: the ledger ends before ``first``.
            ObjectMissing: the object does not exist, or no longer: the metadata may name another one.
            ObjectDamaged: it does not match the receipt.
            ArchiveUnavailable, ArchiveDenied: the store does not return it.
        """
        with self._checked(receipt):
            directory = await self.directory(receipt)
            run = _run_of(directory, ledger_id, first)
            table = await self._batch_table(receipt, run)
            wanted = _wanted(table, first, last, max_bytes)
            group = directory.row_groups[run.row_group]
            low, high = int(table.first_ids[wanted.start]), int(table.first_ids[wanted.stop])
            row = run.first_row + low - run.first_entry_id
            # The caller will read on after this range, or has reached the end.
            passes_by = high <= last or last >= run.last_entry_id
            payloads = await self._payloads(receipt, group, row, row + high - low, passes_by=passes_by)
            return await self._workers.run(_rebuilt, ledger_id, table, wanted, payloads)

    async def entry(self, receipt: Receipt, ledger_id: int, entry_id: int) -> Entry:
        """Read one entry, verified by its page checksum only: the batch checksum would need the whole batch.

        Raises:
            As ``batches``.
        """
        with self._checked(receipt):
            directory = await self.directory(receipt)
            run = _run_of(directory, ledger_id, entry_id)
            table = await self._batch_table(receipt, run)
            row = run.first_row + entry_id - run.first_entry_id
            payloads = await self._payloads(receipt, directory.row_groups[run.row_group], row, row + 1)
            written_at_us = int(table.written_at_us[table.holding(entry_id)])
            return Entry(ledger_id, entry_id, payloads[0], written_at_us)

    async def place(self, receipt: Receipt, ledger_id: int, entry_id: int) -> ArchiveLocation:
        """Location of an entry by the index; does not read the entry.

        Raises:
            As ``batches``.
        """
        with self._checked(receipt):
            directory = await self.directory(receipt)
            run = _run_of(directory, ledger_id, entry_id)
            batches = await self._batch_table(receipt, run)
            pages = await self._page_table(receipt, directory.row_groups[run.row_group])
            row = run.first_row + entry_id - run.first_entry_id
            number, batch = pages.at_row(row), batches.holding(entry_id)
            page = pages.page(number)
            first, last = int(batches.first_ids[batch]), int(batches.first_ids[batch + 1]) - 1
            return ArchiveLocation(
                receipt.key, run.row_group, row, number, page.offset, page.stored_bytes, first, last,
                int(batches.crcs[batch]),
            )  # fmt: skip

    async def directory(self, receipt: Receipt) -> IndexRoot:
        """The directory of an object, verified against the receipt.

        Raises:
            ObjectMissing, ObjectDamaged, ArchiveUnavailable, ArchiveDenied: as ``batches``.
        """

        async def load() -> IndexRoot:
            stored = await self._stored(receipt, receipt.index)
            directory = await self._workers.run(
                read_directory, stored, receipt.index, receipt.key, receipt.object_bytes
            )
            if directory.object_id != receipt.object_id:
                raise DamagedFile(f"{receipt.key} contains object {directory.object_id}, not {receipt.object_id}")
            return directory

        with self._checked(receipt):
            return await self._once((receipt.key, receipt.index.offset), load)

    async def close(self) -> None:
        """No-op: store and tasks belong to the caller."""

    def forget(self, key: str) -> None:
        """Drop the cached parts of an object that is damaged or missing."""
        for cache in (self._index, self._pages):
            for known in [known for known in cache if known[0] == key]:
                cache.pop(known, None)

    @contextmanager
    def _checked(self, receipt: Receipt) -> Iterator[None]:
        """Turn failed checks into damage of the object, and drop its cached parts."""
        try:
            yield
        except (DamagedFile, InvalidBatch) as error:
            self.forget(receipt.key)
            raise ObjectDamaged(f"{self._store.url}: {error.message}") from error
        except (ObjectMissing, ObjectDamaged):
            self.forget(receipt.key)
            raise

    async def _page_table(self, receipt: Receipt, group: RowGroup) -> PageTable:
        async def load() -> PageTable:
            stored = await self._stored(receipt, group.pages)
            return await self._workers.run(read_pages, stored, group, receipt.key, receipt.object_bytes)

        return await self._once((receipt.key, group.pages.offset), load)

    async def _batch_table(self, receipt: Receipt, run: Run) -> BatchTable:
        async def load() -> BatchTable:
            return await self._workers.run(read_batches, await self._stored(receipt, run.batches), run, receipt.key)

        return await self._once((receipt.key, run.batches.offset), load)

    async def _stored(self, receipt: Receipt, part: IndexPart) -> bytes | memoryview:
        """Bytes of one part of the index; usually in the window read with the directory."""
        end = receipt.index.end
        begin = max(0, min(receipt.index.offset, end - _FIRST_READ_BYTES))
        if not begin <= part.offset <= part.end <= end:
            return await self._store.read(receipt.key, part.offset, part.stored_bytes)

        async def load() -> bytes:
            return await self._store.read(receipt.key, begin, end - begin)

        window = await self._once((receipt.key, _WINDOW), load)
        return memoryview(window)[part.offset - begin : part.end - begin]

    async def _once(self, key: tuple[str, int], load: Callable[[], Awaitable[T]]) -> T:
        """The value cached under ``key``, or loaded by ``load``: once for all concurrent callers."""
        if key in self._index:
            self._load.hits["index"] += 1
            found: T = self._index[key]
            return found
        self._load.misses["index"] += 1
        loading = self._loading.get(key)
        if loading is None:

            async def keep() -> T:
                try:
                    loaded = await load()
                finally:
                    del self._loading[key]
                if _cost(loaded) <= self._index.maxsize:
                    self._index[key] = loaded
                return loaded

            loading = self._loading[key] = self._tasks.spawn(keep(), name=f"archive-index-{key[0]}")
        # A cancelled caller must not cancel the load of the others.
        loaded: T = await asyncio.shield(loading)
        return loaded

    async def _payloads(
        self, receipt: Receipt, group: RowGroup, row: int, end: int, *, passes_by: bool = False
    ) -> list[bytes]:
        """The payloads of rows ``row .. end - 1`` of a row group.

        Args:
            passes_by: whether the caller reads on after them and will not read them again.
        """
        table = await self._page_table(receipt, group)
        numbers = range(table.at_row(row), table.at_row(end - 1) + 1)
        pages = {number: self._pages.get((receipt.key, int(table.offsets[number]))) for number in numbers}
        absent = [number for number in numbers if pages[number] is None]
        self._load.misses["pages"] += len(absent)
        self._load.hits["pages"] += len(numbers) - len(absent)
        for missing in _ranges(table, absent, self._settings.max_read_bytes):
            offset = int(table.offsets[missing.start])
            data = await self._store.read(receipt.key, offset, int(table.offsets[missing.stop]) - offset)
            decoded = await self._workers.run(_decoded, memoryview(data), table, missing, receipt.key)
            pages.update(zip(missing, decoded, strict=True))
        # Pages behind a scan are not cached, including the last page if the scan ends with it: then no small ledger
        # follows in that page.
        *_, last = numbers
        kept = pages[last]
        ends = passes_by and end >= int(table.first_rows[last + 1])
        if not ends and kept is not None and _held(kept) <= self._pages.maxsize:
            self._pages[receipt.key, int(table.offsets[last])] = kept
        if passes_by:
            for number in numbers if ends else numbers[:-1]:
                self._pages.pop((receipt.key, int(table.offsets[number])), None)
        base = int(table.first_rows[numbers.start])
        payloads = [payload for number in numbers for payload in pages[number] or ()]
        return payloads[row - base : end - base]


def _cost(kept: Any) -> int:
    if isinstance(kept, PageTable | BatchTable):
        return kept.cost_bytes
    if isinstance(kept, IndexRoot):
        runs = sum(len(ledger.runs) for ledger in kept.ledgers)
        return (
            1000 + 300 * len(kept.row_groups) + 500 * runs + sum(500 + len(ledger.metadata) for ledger in kept.ledgers)
        )
    return len(kept)


def _held(payloads: list[bytes]) -> int:
    return sum(map(len, payloads)) + 41 * len(payloads)


def _run_of(directory: IndexRoot, ledger_id: int, entry_id: int) -> Run:
    at = bisect_right(directory.ledgers, ledger_id, key=lambda ledger: ledger.ledger_id) - 1
    ledger = directory.ledgers[at] if at >= 0 else None
    if ledger is None or ledger.ledger_id != ledger_id:
        raise DamagedFile(f"object {directory.object_id} does not contain ledger {ledger_id}")
    if entry_id >= ledger.entries:
        raise EntryAbsent(f"ledger {ledger_id} ends at entry {ledger.entries - 1}, before {entry_id}")
    return ledger.runs[bisect_right(ledger.runs, entry_id, key=lambda run: run.first_entry_id) - 1]


def _wanted(table: BatchTable, first: int, last: int, max_bytes: int) -> range:
    """Numbers of the batches to read: the one with ``first``, and following ones that fit."""
    begin = end = table.holding(first)
    size = 0
    while end < len(table) and table.first_ids[end] <= last:
        size += int(table.payload_bytes[end])
        if end > begin and size > max_bytes:
            break
        end += 1
    return range(begin, end)


def _ranges(table: PageTable, numbers: list[int], max_bytes: int) -> list[range]:
    """Group adjacent pages into reads of at most ``max_bytes``."""
    found: list[range] = []
    for number in numbers:
        last = found[-1] if found else None
        if last is not None and last.stop == number:
            size = int(table.offsets[number + 1] - table.offsets[last.start])
            if size <= max_bytes:
                found[-1] = range(last.start, number + 1)
                continue
        found.append(range(number, number + 1))
    return found


def _decoded(data: memoryview, table: PageTable, numbers: range, place: str) -> list[list[bytes]]:
    """Decompress adjacent pages in ``data``."""
    codec, base, decoded = pa.Codec("zstd"), int(table.offsets[numbers.start]), []
    for number in numbers:
        page = table.page(number)
        stored = data[page.offset - base : page.offset - base + page.stored_bytes]
        if crc32c(stored) != page.crc:
            raise DamagedFile(f"{place}: the page at byte {page.offset} fails its checksum")
        try:
            raw = codec.decompress(stored[page.header_bytes :], page.raw_bytes)
        except OSError as error:
            raise DamagedFile(f"{place}: the page at byte {page.offset} cannot be decompressed: {error}") from error
        decoded.append(plain_values(memoryview(raw), table.rows_of(number)))
    return decoded


def _rebuilt(
    ledger_id: int, table: BatchTable, wanted: range, payloads: list[bytes]
) -> list[tuple[BatchHeader, bytes]]:
    found, at = [], 0
    for number in wanted:
        facts = table.facts(number)
        batch = rebuild_batch(ledger_id, facts, payloads[at : at + facts.entries])
        found.append((decode_header(batch), batch))
        at += facts.entries
    return found

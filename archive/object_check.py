"""Reads a whole object once, from its first byte to its last, and tells whether it is what its receipt says.

Fed with the bytes as they come back from the store, it takes the pages out of them, puts every batch together
as it was written, and compares: each page and each batch with its checksum, each ledger with its number of
entries, its length and the checksum over all of its batches, and the object with its SHA-256. Only an object
that passes may ever become the only copy of a ledger.

Pure computation, in memory for a batch and a chunk. The tables of the index, which lie behind the pages, have
to be read first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from crc32c import crc32c

from tallybook.core.errors import DamagedFile

from .batch_rows import plain_values, rebuild_batch
from .index_codec import Directory
from .page_walk import Page
from .tables import BatchTable, PageTable


@dataclass(frozen=True, slots=True)
class Found:
    """What an object holds of a ledger, as read."""

    entries: int
    payload_bytes: int
    rolling_crc: int


@dataclass(slots=True)
class _Progress:
    """One ledger, as far as it has been read."""

    entries: int = 0
    payload_bytes: int = 0
    rolling_crc: int = 0
    pending: list[bytes] = field(default_factory=list)
    """Payloads of a batch whose end has not come yet."""


class ObjectCheck:
    """Checks one object.

    Args:
        directory: its directory.
        page_tables: one for each row group.
        batch_tables: by ledger, one for each of its runs.
        place: names the object in messages.
    """

    def __init__(
        self,
        directory: Directory,
        page_tables: Sequence[PageTable],
        batch_tables: Sequence[Sequence[BatchTable]],
        place: str,
    ) -> None:
        self._directory = directory
        self._place = place
        self._sha256 = hashlib.sha256()
        self._codec = pa.Codec("zstd")
        self._pages = _in_order(page_tables)
        self._page = next(self._pages, None)
        self._rows = _batches_in_order(directory, batch_tables)
        self._batch = next(self._rows, None)
        self._progress = {ledger.ledger_id: _Progress() for ledger in directory.ledgers}
        self._at = 0
        self._kept = bytearray()
        """The beginning of a page whose end has not come by yet."""

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the object.

        Raises:
            DamagedFile, InvalidBatch: they are not what was archived.
        """
        self._sha256.update(chunk)
        view, base = memoryview(chunk), self._at
        self._at += len(chunk)
        while self._page is not None and self._page[0].offset < self._at:
            page, group, rows = self._page
            begin, end = page.offset - base, page.offset + page.stored_bytes - base
            self._kept += view[max(begin, 0) : end]
            if end > len(view):
                return
            stored, self._kept = self._kept, bytearray()
            self._take(group, self._values(page, stored, rows))
            self._page = next(self._pages, None)

    def end(self) -> tuple[bytes, dict[int, Found]]:
        """The SHA-256 of all bytes, and what was found of each ledger.

        Raises:
            DamagedFile: the object ended before its last page, or a ledger is not what the directory says.
        """
        if self._page is not None or self._batch is not None:
            raise DamagedFile(f"{self._place}: it ends at byte {self._at}, before its last entry")
        found = {}
        for ledger in self._directory.ledgers:
            progress = self._progress[ledger.ledger_id]
            found[ledger.ledger_id] = Found(progress.entries, progress.payload_bytes, progress.rolling_crc)
            if found[ledger.ledger_id] != Found(ledger.entries, ledger.payload_bytes, ledger.rolling_crc):
                raise DamagedFile(f"{self._place}: ledger {ledger.ledger_id} is not what its directory says")
        return self._sha256.digest(), found

    def _values(self, page: Page, stored: bytearray, rows: int) -> list[bytes]:
        if crc32c(stored) != page.crc:
            raise DamagedFile(f"{self._place}: the page at byte {page.offset} fails its checksum")
        try:
            raw = self._codec.decompress(memoryview(stored)[page.header_bytes :], page.raw_bytes)
        except OSError as error:
            raise DamagedFile(f"{self._place}: the page at byte {page.offset} cannot be read: {error}") from error
        return plain_values(memoryview(raw), rows)

    def _take(self, group: int, values: list[bytes]) -> None:
        """Rows, in the order of the object: the batches whose last entry is among them are complete."""
        at = 0
        while at < len(values):
            if self._batch is None or self._batch.group != group:
                raise DamagedFile(f"{self._place}: row group {group} has more rows than its ledgers have entries")
            progress, facts = self._progress[self._batch.ledger_id], self._batch.table.facts(self._batch.number)
            missing = facts.entries - len(progress.pending)
            progress.pending += values[at : at + missing]
            at += missing
            if len(progress.pending) < facts.entries:
                return
            batch = rebuild_batch(self._batch.ledger_id, facts, progress.pending)
            progress.rolling_crc = crc32c(batch, progress.rolling_crc)
            progress.entries += facts.entries
            progress.payload_bytes += facts.payload_bytes
            progress.pending = []
            self._batch = next(self._rows, None)


@dataclass(frozen=True, slots=True)
class _Batch:
    ledger_id: int
    group: int
    table: BatchTable
    number: int


def _in_order(tables: Sequence[PageTable]) -> Iterator[tuple[Page, int, int]]:
    """Every page with its row group and its number of rows."""
    for group, table in enumerate(tables):
        for number in range(len(table)):
            yield table.page(number), group, table.rows_of(number)


def _batches_in_order(directory: Directory, tables: Sequence[Sequence[BatchTable]]) -> Iterator[_Batch]:
    for ledger, of_ledger in zip(directory.ledgers, tables, strict=True):
        for run, table in zip(ledger.runs, of_ledger, strict=True):
            for number in range(len(table)):
                yield _Batch(ledger.ledger_id, run.row_group, table, number)

"""The entry logs of a bookie: where batches are stored after the journal.

Files ``entrylog-<id>.log`` of about ``entry_log_bytes`` each, with batches of many ledgers in the order in which
checkpoints and compaction appended them. Ids only grow. ``format`` has the format, ``writer`` the log being written,
``reader`` reads, ``directories`` knows which log is where, and ``lengths`` how long each is at least. This module is
the interface for the rest of the bookie.

The caller is responsible for the order that keeps data safe: ``append``, ``sync``, then the rows into the index and its
``sync``, and only then may the journal be trimmed. A batch in a log without a row does not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from enum import Enum
from typing import Final

from tallybook.core.buffers import Buffer
from tallybook.core.errors import DiskFailed, DiskFull, InvalidBatch, NewerFormat, OutOfFiles, StorageError, check
from tallybook.core.settings import StorageSettings
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk.port import Disk, DiskFile
from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.runtime.metrics.usage import Meter

from ..location import IndexRow, Location
from .directories import LogDirectories
from .format import LedgerShare, TableRow, uuid_bytes
from .reader import EntryLogReader
from .truncation import UnlinkedFile, wait_until_unread
from .writer import LogWriter, Paced, unpaced

FULL_LEDGERS: Final = 50_000
"""A log with batches of this many ledgers is full, however small it is: its ledger map is in memory while it is
written, and again when it is read."""

MAX_OPEN_FILES: Final = 128
"""Entry logs kept open for reading."""


class Appender(Enum):
    """The part of a bookie that appends: each writes to a log of its own."""

    CHECKPOINT = "checkpoint"
    COMPACTION = "compaction"


class EntryLogs:
    """All entry logs of one bookie, in one or more directories. Created by ``open``.

    Appends and syncs wait for one another; reads wait for neither.
    """

    def __init__(
        self,
        disk: Disk,
        directories: LogDirectories,
        directory_uuid: bytes,
        settings: StorageSettings,
        clock: Clock,
        *,
        log_ids: Sequence[int],
        next_id: int,
    ) -> None:
        self._disk = disk
        self._directories = directories
        self._reader = EntryLogReader(disk, directories.path_of, directory_uuid, MAX_OPEN_FILES)
        self._full_bytes = settings.entry_log_bytes
        self._piece_bytes = settings.give_back_bytes
        self._changing = asyncio.Lock()
        self._writers: dict[Appender, LogWriter] = {}
        """The logs being written."""
        self._finished: list[LogWriter] = []
        self._log_ids = list(log_ids)
        self._next_id = next_id
        self._lengths = directories.noted
        self._unlinked: list[UnlinkedFile] = []
        self._clock = clock
        self.reads = Meter(clock)
        """Meter of reads from the disk, including read-ahead."""
        self.open_files = self._reader.files
        """Files open for reading."""
        self._stopped = ""
        self._awaits_rows: set[int] = set()
        """Logs with batches of a checkpoint whose rows are not in the index yet."""
        self.avoid = directories.avoid
        """Called with the directories that are short of space: new logs avoid them if possible."""

    @staticmethod
    async def open(
        disk: Disk,
        directories: Sequence[str],
        directory_uuid: str,
        settings: StorageSettings,
        clock: Clock,
        *,
        above: int = 0,
    ) -> EntryLogs:
        """Find the logs in ``directories``. Writes nothing: the first append begins a new log.

        Args:
            above: ids of new logs are higher.

        Raises:
            DamagedFile: a directory is missing, or two hold a log with the same id.
            DiskFailed: a directory cannot be read.
        """
        uuid = uuid_bytes(directory_uuid)
        found = LogDirectories(disk, directories, uuid)
        log_ids = await found.find()
        # Also above a lost log: rows of the index may point into it.
        next_id = max((above, *log_ids, *found.noted, *found.buried)) + 1
        return EntryLogs(disk, found, uuid, settings, clock, log_ids=log_ids, next_id=next_id)

    @property
    def strays(self) -> Sequence[str]:
        """Files in the directories that do not belong to the bookie."""
        return self._directories.strays

    @property
    def log_ids(self) -> list[int]:
        """Ids of all logs, ascending."""
        return list(self._log_ids)

    @property
    def settled_log_ids(self) -> list[int]:
        """Logs that may be removed once no row points into them, ascending: complete, and durable to their ends.

        The last one is not among them, because the ids of logs only grow, also across restarts. Nor is one whose rows
        are not in the index yet, which may take long on a full disk: until then all its batches seem dead.
        """
        unsettled = {writer.log.log_id for writer in (*self._finished, *self._writers.values())} | self._awaits_rows
        return [log_id for log_id in self._log_ids[:-1] if log_id not in unsettled]

    @property
    def growing_log_ids(self) -> list[int]:
        """Logs being written."""
        return sorted(writer.log.log_id for writer in self._writers.values())

    def size_of(self, log_id: int) -> int:
        """Bytes of a log: all of one being written, the durable ones of another."""
        sizes = {writer.log.log_id: writer.size for writer in self._writers.values()}
        return sizes.get(log_id, self._lengths.get(log_id, 0))

    @property
    def durable_bytes(self) -> int:
        """Size of all logs, as of the last sync."""
        return sum(self._lengths.values())

    # -- writing -----------------------------------------------------------------------------

    async def append(
        self, batches: Sequence[Buffer], *, paced: Paced = unpaced, appender: Appender = Appender.CHECKPOINT
    ) -> list[Location]:
        """Write ``batches`` to one log, in this order, and return their locations.

        Nothing is durable before ``sync``. All of them go to one log, so a log may exceed ``entry_log_bytes`` and
        ``FULL_LEDGERS`` by one append.

        Args:
            paced: called between writes.
            appender: decides the log. Compaction copies long-lived batches, which have a log of their own; the log of
                checkpoints is not settled before ``rows_are_in``.

        Raises:
            InvalidBatch: one of them is not well-formed. None is kept.
            DiskFull: none is kept; may be retried when there is space.
            DiskFailed: nothing can be appended any more; the bookie must stop.
        """
        async with self._exclusively():
            writer = await self._writer(appender)
            try:
                locations = await writer.append(batches, paced)
            except DiskFull:
                self._directories.met_full(writer.log.log_id)
                raise
            if appender is Appender.CHECKPOINT:
                self._awaits_rows.add(writer.log.log_id)
            return locations

    def rows_are_in(self) -> None:
        """Note that everything appended by checkpoints has its rows in the index."""
        self._awaits_rows.clear()

    async def sync(self) -> None:
        """Make everything appended durable, the names of the logs included.

        Raises:
            DiskFull: the logs are durable, but their length note is not; the sync may be retried when there is space.
            DiskFailed: the state of what was appended is unknown; the bookie must stop.
        """
        async with self._exclusively():
            await self._sync()

    async def remove(self, log_id: int) -> int:
        """Delete a log, durably. The caller has made sure that no row points into it. Returns its size in bytes.

        The space of a large log is freed by ``free_removed``. Current readers continue; a later open finds the file
        missing, and the reader asks the index again.

        Raises:
            DiskFull: it still exists; may be retried.
            DiskFailed: it may or may not exist after a crash.
        """
        async with self._exclusively(), AsyncExitStack() as undo:
            check(log_id in self.settled_log_ids, f"entry log {log_id} was removed while it is needed")
            file = await self._opened_to_cut(log_id, undo)
            size = self._lengths.pop(log_id, 0)
            try:
                await self._directories.note(self._lengths)
            except DiskFull:
                await self._bury(log_id, size)
                return size
            await self._disk.unlink(self._directories.path_of(log_id))
            # Only after the removal: a reader that opened it in between would keep its space in use.
            unread = await self._reader.forget(log_id)
            await self._disk.sync_directory(self._directories.home_of(log_id))
            self._forget(log_id)
            if file is not None:
                self._unlinked.append(UnlinkedFile(file, size, self._piece_bytes, unread, self._clock))
                undo.pop_all()
            return size

    async def _opened_to_cut(self, log_id: int, undo: AsyncExitStack) -> DiskFile | None:
        """Open a log that is too large to be freed at once."""
        if self._lengths.get(log_id, 0) <= self._piece_bytes:
            return None
        try:
            file = await self._disk.open(self._directories.path_of(log_id))
        except FileNotFoundError:
            return None
        undo.push_async_callback(file.close)
        return file

    async def free_removed(self) -> None:
        """Free the space of removed logs, incrementally for large ones. Other operations do not wait for it.

        Raises:
            DiskFailed: the device refused.
        """
        while self._unlinked:
            await self._unlinked.pop().truncate_in_steps()

    async def finish_removals(self) -> None:
        """Free the space of logs that were renamed for lack of space for a note, and that a crash left behind.

        Raises:
            DiskFailed: as for ``remove``.
        """
        if self._directories.buried:
            async with self._exclusively():
                with suppress(DiskFull):  # their space is free by now; the next sync updates the note
                    await self._directories.note(self._lengths)

    async def _bury(self, log_id: int, size: int) -> None:
        """Remove a log from a disk that has no space for a new length note."""
        try:
            await self._directories.bury(log_id)
        except DiskFull:
            self._lengths[log_id] = size
            raise
        unread = await self._reader.forget(log_id)
        self._forget(log_id)
        with suppress(TimeoutError):  # space is short: a reader this slow asks the index again
            await wait_until_unread(unread)
        with suppress(DiskFull):  # as in ``finish_removals``: the space may be in use again already
            await self._directories.note(self._lengths)

    def _forget(self, log_id: int) -> None:
        self._log_ids.remove(log_id)
        self._directories.forget(log_id)

    async def close(self) -> None:
        """Finish the current log, durably, and close all files.

        Raises:
            DiskFailed: the current log is not finished.
        """
        async with self._changing:
            stopped, self._stopped = self._stopped, self._stopped or "they were closed"
            try:
                if not stopped:
                    await self._finish_last()
            finally:
                for writer in (*self._finished, *self._writers.values()):
                    await writer.close()
                self._writers, self._finished = {}, []
                while self._unlinked:
                    await self._unlinked.pop().close()
                await self._reader.close()

    async def _writer(self, appender: Appender) -> LogWriter:
        """The log to append to; a new one if there is none, it is full, or its disk is short and another one is not."""
        writer = self._writers.get(appender)
        if writer is not None and self._directories.should_leave(writer.log.log_id):
            await self._leave(appender)
            writer = None
        elif writer is not None and (writer.size >= self._full_bytes or len(writer.ledgers) >= FULL_LEDGERS):
            await self._finish(appender)
            writer = None
        return await self._begin(appender) if writer is None else writer

    async def _begin(self, appender: Appender) -> LogWriter:
        while self._next_id in self._directories.taken_ids:
            self._next_id += 1
        log_id, self._next_id = self._next_id, self._next_id + 1
        directory = await self._directories.place(log_id)
        try:
            writer = await LogWriter.create(self._disk, directory, self._reader.log(log_id))
        except DiskFull:
            self._directories.met_full(log_id)
            self._directories.forget(log_id)
            raise
        self._writers[appender] = writer
        self._log_ids.append(log_id)
        return writer

    async def _leave(self, appender: Appender) -> None:
        """Finish a log that has no space to grow. If there is none for its footer, it stays without one."""
        try:
            await self._finish(appender)
        except DiskFull:
            self._finished.append(self._writers.pop(appender))

    async def _finish(self, appender: Appender) -> None:
        await self._writers[appender].finish()
        self._finished.append(self._writers.pop(appender))

    async def _sync(self) -> None:
        while self._finished:
            await self._sync_writer(self._finished[0])
            await self._finished.pop(0).close()
        for writer in self._writers.values():
            await self._sync_writer(writer)
        await self._directories.note(self._lengths)

    async def _sync_writer(self, writer: LogWriter) -> None:
        await writer.sync()
        self._lengths[writer.log.log_id] = writer.durable_bytes

    async def _finish_last(self) -> None:
        try:
            for writer in self._writers.values():
                await writer.finish()
            await self._sync()
        except DiskFull:
            # It stays without a footer, or with its old length in the note, as after a crash. Synced data is safe.
            return

    @asynccontextmanager
    async def _exclusively(self) -> AsyncIterator[None]:
        """Serialise changes, and refuse any after one whose outcome is unknown."""
        async with self._changing:
            if self._stopped:
                where = ", ".join(self._directories.paths)
                raise DiskFailed(f"the entry logs in {where} accept no more changes: {self._stopped}")
            try:
                yield
            except (DiskFull, InvalidBatch):
                raise
            except BaseException as error:
                # Also when cancelled: a write that no task waits for may still reach the file.
                self._stopped = repr(error)
                raise

    async def finish(self, log_id: int) -> None:
        """Finish a log that is being written, so that it may be removed; the next append begins another one.

        An empty log follows it at once, because the ids of logs only grow, and the last one is never removed.

        Raises:
            DiskFull, DiskFailed: as for ``append`` and ``sync``.
        """
        async with self._exclusively():
            for appender, writer in [*self._writers.items()]:
                if writer.log.log_id == log_id:
                    await self._finish(appender)
                    await self._writer(appender)
                    await self._sync()

    # -- reading -----------------------------------------------------------------------------

    async def read(self, ledger_id: int, first_entry_id: int, location: Location) -> bytes:
        """Read the batch at ``location``; checks that it is intact and begins with this entry.

        Raises:
            EntryCorrupt: the bytes are damaged, belong to another batch, or are cut off.
            EntryUnknown: the file is missing, or the disk cannot read the bytes.
        """
        return await self._reader.read(ledger_id, first_entry_id, location)

    async def read_many(self, rows: Sequence[IndexRow]) -> list[bytes]:
        """Read the batches of ``rows``, adjacent ones by one large read, up to the first unreadable one.

        Raises:
            EntryCorrupt, EntryUnknown: the first batch cannot be read, as for ``read``.
        """
        with self.reads.timing():
            return await self._reader.read_many(rows)

    def read_cached(self, location: Location) -> bytes | None:
        """Bytes of a log, unchecked, if it is open and the system has them in memory; ``None`` otherwise."""
        return self._reader.read_cached(location)

    async def read_range(self, location: Location) -> bytes:
        """Read bytes of a log, unchecked.

        Raises:
            EntryUnknown: the log is missing, or the device returned an error.
        """
        with self.reads.timing():
            return await self._reader.read_range(location)

    def scan(self, log_id: int) -> AsyncGenerator[tuple[TableRow, Location], None]:
        """Every batch of a log, in order, from the tables of its stretches, without reading the batches.

        It may list a batch that no row ever pointed at (a crash before the sync), and a batch twice (the later one
        counts). A caller that stops early must close the generator (``aclosing``).

        Raises:
            DamagedFile: at the end, if part of the log is damaged, or it is missing. Then batches are missing in the
                result, and nothing may be deleted because of it.
            DiskFailed: it cannot be read.
        """
        return self._reader.scan(log_id)

    async def damaged(self) -> list[StorageError]:
        """Damage at the ends of every log; each error has file and offset.

        A missing footer is no damage: a crash leaves one. Damage in between is found by reading.

        Raises:
            NewerFormat: a log has a later version.
        """
        noted = self._directories.noted
        found: list[StorageError] = list(self._directories.unreadable_notes)
        for log_id in sorted({*self._log_ids, *noted}):
            try:
                await self._reader.check_ends(log_id, noted.get(log_id, 0))
            except OutOfFiles:
                return found  # says nothing about the logs
            except NewerFormat:
                raise
            except StorageError as error:
                found.append(error)
        return found

    async def ledger_map(self, log_id: int) -> dict[int, LedgerShare]:
        """Bytes and batches of each ledger in a log.

        Raises:
            DamagedFile, DiskFailed: as for ``scan``.
        """
        for writer in self._writers.values():
            if writer.log.log_id == log_id:
                return dict(writer.ledgers)
        return await self._reader.ledger_map(log_id)

    async def complete_map(self, log_id: int) -> dict[int, LedgerShare]:
        """``ledger_map`` of a settled log, only if it is certainly complete, so that the log may be removed because of
        it.

        ``scan`` attributes damage at the end of a log without a footer to a crash; this compares with the length note.

        Raises:
            DamagedFile: durable bytes are damaged, or it is unknown how many were durable.
            DiskFailed: it cannot be read.
        """
        return await self._reader.complete_map(log_id, self._directories.durable_of(log_id))

    async def is_finished(self, log_id: int) -> bool:
        """Whether a settled log has a footer; after a crash it has none.

        Raises:
            DamagedFile, DiskFailed: it is missing, or cannot be read.
        """
        return await self._reader.footer(log_id) is not None

    async def is_foreign(self, log_id: int) -> bool:
        """Whether the header of a log is that of another log, or of another data directory.

        Raises:
            DiskFailed: it cannot be read.
        """
        return await self._reader.is_foreign(log_id)

    def durable_batches(self, log_id: int) -> AsyncGenerator[tuple[TableRow, Location], None]:
        """Like ``scan`` for a settled log; if it ends without an error, no batch is missing.

        Raises:
            DamagedFile, DiskFailed: as for ``complete_map``, at the end.
        """
        return self._reader.scan_whole(log_id, self._directories.durable_of(log_id))

    async def certain_bytes(self, log_id: int) -> int:
        """Offset of a settled log below which everything was durable; what follows may be torn.

        Raises:
            DamagedFile, DiskFailed: the log is missing, or cannot be read.
        """
        footer = await self._reader.footer(log_id)
        return self._directories.durable_of(log_id) if footer is None else footer.offset


METRICS: Final = (
    PartMetrics[EntryLogs]()
    .gauge(
        "open_entry_logs",
        "tallybook_bookie_open_entry_logs",
        "Entry logs that are open for reading.",
        lambda logs: len(logs.open_files),
    )
    .gauge(
        "max_open_entry_logs",
        "tallybook_bookie_max_open_entry_logs",
        "Maximum number of idle entry logs that stay open; those being read come on top.",
        lambda logs: logs.open_files.max_open,
    )
    .meter(
        "log_reads",
        "tallybook_bookie_entry_log_read",
        "Reads from entry logs, read-ahead included",
        lambda logs: logs.reads,
    )
    .gauge(
        "entry_log_bytes",
        "tallybook_bookie_entry_log_bytes",
        "Size of all entry logs.",
        lambda logs: logs.durable_bytes,
    )
)

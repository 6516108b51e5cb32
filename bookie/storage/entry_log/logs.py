"""The entry logs of a bookie: where batches live once they left the journal.

Files ``entrylog-<id>.log`` of about ``entry_log_bytes`` each, every one holding batches of many
ledgers in the order in which checkpoints and compaction appended them. Ids only grow. The
format is in entry_log_format.py, the log being written in entry_log_writer.py, reading in
entry_log_reader.py, in which of several directories each one lies in log_directories.py, how
long it is at least in entry_log_lengths.py; this is what the rest of the bookie uses.

The order that keeps data safe is the caller's: ``append``, ``sync``, then the rows into the
index and its ``sync``, and only then may the journal let go of the batches. A batch in a log
that no row points at does not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

from tallybook.core.batch import Buffer
from tallybook.core.config import StorageSettings
from tallybook.core.errors import DiskFailed, DiskFull, InvalidBatch, NewerFormat, OutOfFiles, StorageError, check
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk import Disk, DiskFile
from tallybook.runtime.meter import Meter
from tallybook.runtime.pace import Pace

from .entry_log_format import LedgerShare, TableRow, uuid_bytes
from .entry_log_reader import EntryLogReader
from .entry_log_writer import LogWriter
from .location import IndexRow, Location
from .log_directories import LogDirectories
from .remains import Remains, read_out

FULL_LEDGERS: Final = 50_000
"""A log with batches of so many ledgers is full, however small it is: what it says of each is held in memory while it
is written, and again by whoever asks what is in it."""

MAX_OPEN_FILES: Final = 128
"""Entry logs kept open for reading."""


class EntryLogs:
    """All entry logs of one bookie, in one or more directories. Made by ``open``.

    Appends and syncs wait for one another; reads wait for neither.
    """

    def __init__(
        self, disk: Disk, directories: Sequence[str], directory_uuid: bytes, settings: StorageSettings, clock: Clock
    ) -> None:
        self._disk = disk
        self._directories = LogDirectories(disk, directories, directory_uuid)
        self._reader = EntryLogReader(disk, self._directories.path_of, directory_uuid, MAX_OPEN_FILES)
        self._full_bytes = settings.entry_log_bytes
        self._piece_bytes = settings.give_back_bytes
        self._pace = Pace(clock, settings.flush_bytes_per_second)
        self._changing = asyncio.Lock()
        self._writers: dict[bool, LogWriter] = {}
        """What is written: by checkpoints, and, where the key is true, by compaction."""
        self._finished: list[LogWriter] = []
        self._log_ids: list[int] = []
        self._next_id = 1
        self._lengths: dict[int, int] = {}
        self._remains: list[Remains] = []
        self._clock = clock
        self.reads = Meter(clock)
        """Of reads from the disk, those ahead of readers among them."""
        self.open_files = self._reader.files
        """Of those that are read."""
        self._stopped = ""
        self._awaits_rows: set[int] = set()
        """Logs that hold batches of a checkpoint whose rows are not in the index yet."""
        self.avoid = self._directories.avoid
        """Called with the directories that are short of room: new logs go to others, as long as there are any."""

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
            DamagedFile: one of them is missing, or two hold a log of one id.
            DiskFailed: one of them cannot be read.
        """
        logs = EntryLogs(disk, directories, uuid_bytes(directory_uuid), settings, clock)
        logs._log_ids = await logs._directories.find()
        logs._lengths = logs._directories.noted
        # Above a lost log, too: rows of the index may point into it.
        logs._next_id = max((above, *logs._log_ids, *logs._lengths, *logs._directories.buried)) + 1
        return logs

    @property
    def strays(self) -> Sequence[str]:
        """Files in the directories that are not ours."""
        return self._directories.strays

    @property
    def log_ids(self) -> list[int]:
        """Ids of all logs, ascending."""
        return list(self._log_ids)

    @property
    def current_log_id(self) -> int | None:
        """The log that checkpoints append to, if one has been begun."""
        return self._writers[False].log.log_id if False in self._writers else None

    @property
    def settled_log_ids(self) -> list[int]:
        """Logs that may be removed, once no row points into them, ascending: complete, and durable to their ends.

        The last one is not among them, because the ids of logs only grow, also across restarts. Nor is one for which
        rows are on their way: they may take long where the disk is full, and until then nothing in it seems to count.
        """
        unsettled = {writer.log.log_id for writer in (*self._finished, *self._writers.values())} | self._awaits_rows
        return [log_id for log_id in self._log_ids[:-1] if log_id not in unsettled]

    @property
    def growing_log_ids(self) -> list[int]:
        """Logs that are written."""
        return sorted(writer.log.log_id for writer in self._writers.values())

    def size_of(self, log_id: int) -> int:
        """Bytes of a log: of one that is written all, of another what is durable."""
        sizes = {writer.log.log_id: writer.size for writer in self._writers.values()}
        return sizes.get(log_id, self._lengths.get(log_id, 0))

    @property
    def durable_bytes(self) -> int:
        """Size of all logs, as of the last sync."""
        return sum(self._lengths.values())

    # -- writing -----------------------------------------------------------------------------

    async def append(self, batches: Sequence[Buffer], *, paced: bool = True, aside: bool = False) -> list[Location]:
        """Write ``batches`` to one log, in this order, and return where each one lies.

        Nothing is durable before ``sync``. All of them go to one log, so a log may exceed
        ``entry_log_bytes`` and the most ledgers by one append.

        Args:
            paced: keep to ``flush_bytes_per_second``, so that the journal keeps its share of the disk.
            aside: write to a log of their own, for what is copied because it lasts. Without it the log is not settled
                before ``rows_are_in``.

        Raises:
            InvalidBatch: one of them is not well-formed. None of them is kept.
            DiskFull: none of them is kept; it may be tried again when there is room.
            DiskFailed: no more can be appended; the bookie must stop.
        """
        async with self._exclusively():
            writer = await self._with_room(aside)
            try:
                locations = await writer.append(batches, self._pace.spend if paced else _unpaced)
            except DiskFull:
                self._directories.met_full(writer.log.log_id)
                raise
            if not aside:
                self._awaits_rows.add(writer.log.log_id)
            return locations

    def rows_are_in(self) -> None:
        """All that was appended by checkpoints has its rows in the index."""
        self._awaits_rows.clear()

    async def sync(self) -> None:
        """Make everything appended durable, the names of the logs included.

        Raises:
            DiskFull: it is durable, but not noted that it is; the sync may be tried again when there is room.
            DiskFailed: nothing may be concluded about what was appended; the bookie must stop.
        """
        async with self._exclusively():
            await self._sync()

    async def remove(self, log_id: int) -> int:
        """Delete a log, durably. The caller has seen to it that no row points into it. Returns its size in bytes.

        The room of a large one comes back by ``give_back``.

        Who is reading it goes on; whoever opens it from now on finds it missing, and looks into the index again.

        Raises:
            DiskFull: it is still there; it may be tried again.
            DiskFailed: it may or may not be there after a crash.
        """
        async with self._exclusively(), AsyncExitStack() as undo:
            check(log_id in self.settled_log_ids, f"entry log {log_id} was to be removed while it is needed")
            file = await self._opened_to_cut(log_id, undo)
            size = self._lengths.pop(log_id, 0)
            try:
                await self._directories.note(self._lengths)
            except DiskFull:
                await self._bury(log_id, size)
                return size
            await self._disk.unlink(self._directories.path_of(log_id))
            # After that: a reader that opened it in between would keep its space in use.
            unread = await self._reader.forget(log_id)
            await self._disk.sync_directory(self._directories.home_of(log_id))
            self._forget(log_id)
            if file is not None:
                self._remains.append(Remains(file, size, self._piece_bytes, unread, self._clock))
                undo.pop_all()
            return size

    async def _opened_to_cut(self, log_id: int, undo: AsyncExitStack) -> DiskFile | None:
        """The file of a log that is too large to go at once."""
        if self._lengths.get(log_id, 0) <= self._piece_bytes:
            return None
        try:
            file = await self._disk.open(self._directories.path_of(log_id))
        except FileNotFoundError:
            return None
        undo.push_async_callback(file.close)
        return file

    async def give_back(self) -> None:
        """Give back the room of the logs that were removed, which takes a while where they were large.

        Nothing waits for it but whoever calls: adds, reads and other logs go on.

        Raises:
            DiskFailed: the device refused.
        """
        while self._remains:
            await self._remains.pop().give_back()

    async def finish_removals(self) -> None:
        """Give back the room of logs that were removed while their note had none, and that a crash left.

        Raises:
            DiskFailed: as for ``remove``.
        """
        if self._directories.buried:
            async with self._exclusively():
                with suppress(DiskFull):  # their room is back by now; the note is brought up to date by the next sync
                    await self._directories.note(self._lengths)

    async def _bury(self, log_id: int, size: int) -> None:
        """Remove a log from a disk that has no room for a note that it is gone."""
        try:
            await self._directories.bury(log_id)
        except DiskFull:
            self._lengths[log_id] = size
            raise
        unread = await self._reader.forget(log_id)
        self._forget(log_id)
        with suppress(TimeoutError):  # room is short: who reads for so long looks into the index again
            await read_out(unread)
        with suppress(DiskFull):  # as in ``finish_removals``: others may have taken the room at once
            await self._directories.note(self._lengths)

    def _forget(self, log_id: int) -> None:
        self._log_ids.remove(log_id)
        self._directories.forget(log_id)

    async def close(self) -> None:
        """Finish the current log, durably, and let go of all files.

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
                while self._remains:
                    await self._remains.pop().let_go()
                await self._reader.close()

    async def _with_room(self, aside: bool) -> LogWriter:
        """The log to append to; a new one where there is none, it is full, or its disk is and another one is not."""
        writer = self._writers.get(aside)
        if writer is not None and self._directories.should_leave(writer.log.log_id):
            await self._leave(aside)
            writer = None
        elif writer is not None and (writer.size >= self._full_bytes or len(writer.ledgers) >= FULL_LEDGERS):
            await self._finish(aside)
            writer = None
        return await self._begin(aside) if writer is None else writer

    async def _begin(self, aside: bool) -> LogWriter:
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
        self._writers[aside] = writer
        self._log_ids.append(log_id)
        return writer

    async def _leave(self, aside: bool) -> None:
        """Finish a log that has no room to grow. There may be none for its footer: then it stays without one."""
        try:
            await self._finish(aside)
        except DiskFull:
            self._finished.append(self._writers.pop(aside))

    async def _finish(self, aside: bool) -> None:
        await self._writers[aside].finish()
        self._finished.append(self._writers.pop(aside))

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
            # It stays without a footer, or with its old length noted, as after a crash. What was synced is safe.
            return

    @asynccontextmanager
    async def _exclusively(self) -> AsyncIterator[None]:
        """One change at a time, and none after one whose outcome is unknown."""
        async with self._changing:
            if self._stopped:
                where = ", ".join(self._directories.paths)
                raise DiskFailed(f"the entry logs in {where} take no more changes: {self._stopped}")
            try:
                yield
            except (DiskFull, InvalidBatch):
                raise
            except BaseException as error:
                # Also when cancelled: a write that nobody waits for may still reach the file.
                self._stopped = repr(error)
                raise

    async def settle(self, log_id: int) -> None:
        """Finish a log that is written, so that it may be removed; the next append begins another one.

        One without batches follows it at once, because the ids of logs only grow, and the last one is never removed.

        Raises:
            DiskFull, DiskFailed: as for ``append`` and ``sync``.
        """
        async with self._exclusively():
            for aside, writer in [*self._writers.items()]:
                if writer.log.log_id == log_id:
                    await self._finish(aside)
                    await self._with_room(aside)
                    await self._sync()

    # -- reading -----------------------------------------------------------------------------

    async def read(self, ledger_id: int, first_entry_id: int, location: Location) -> bytes:
        """The batch at ``location``, which must be intact and the one that begins with this entry.

        Raises:
            EntryCorrupt: the bytes there are damaged, or another batch's, or cut off.
            EntryUnknown: the file is missing, or the disk does not give the bytes.
        """
        return await self._reader.read(ledger_id, first_entry_id, location)

    async def read_many(self, rows: Sequence[IndexRow]) -> list[bytes]:
        """The batches of ``rows``, adjacent ones by one large read, up to the first that cannot be had.

        Raises:
            EntryCorrupt, EntryUnknown: the first batch cannot be had, as for ``read``.
        """
        with self.reads.timing():
            return await self._reader.read_many(rows)

    def scan(self, log_id: int) -> AsyncGenerator[tuple[TableRow, Location], None]:
        """Every batch of a log, in order, from the tables of its stretches: the batches are not looked at.

        A batch may be listed that no row ever pointed at (a crash before the sync), and one
        may be listed twice (the later one counts). Who stops early closes the generator (``aclosing``).

        Raises:
            DamagedFile: at the end, if part of the log is damaged. Then batches are missing, and
                the log is no ground for deleting anything. It may also be missing as a whole.
            DiskFailed: it cannot be read.
        """
        return self._reader.scan(log_id)

    async def damaged(self) -> list[StorageError]:
        """What a look at the ends of every log finds wrong; each error names the file and the place.

        A log without a footer is not wrong: a crash leaves one. Damage in between shows when it is read.

        Raises:
            NewerFormat: a log is of a later version.
        """
        noted = self._directories.noted
        found: list[StorageError] = list(self._directories.unreadable_notes)
        for log_id in sorted({*self._log_ids, *noted}):
            try:
                await self._reader.check_ends(log_id, noted.get(log_id, 0))
            except OutOfFiles:
                return found  # that says nothing about the logs
            except NewerFormat:
                raise
            except StorageError as error:
                found.append(error)
        return found

    async def ledger_map(self, log_id: int) -> dict[int, LedgerShare]:
        """How many bytes and batches of a log belong to which ledger.

        Raises:
            DamagedFile, DiskFailed: as for ``scan``.
        """
        for writer in self._writers.values():
            if writer.log.log_id == log_id:
                return dict(writer.ledgers)
        return await self._reader.ledger_map(log_id)

    async def complete_map(self, log_id: int) -> dict[int, LedgerShare]:
        """The same for a settled log, where it is certain that no batch is missing: so it may be removed on its ground.

        ``scan`` takes what is damaged at the end of a log without a footer for what a crash left; here the noted
        length says what was durable.

        Raises:
            DamagedFile: any of what was durable is damaged, or it is not known how much was.
            DiskFailed: it cannot be read.
        """
        return await self._reader.complete_map(log_id, self._directories.durable_of(log_id))

    async def is_finished(self, log_id: int) -> bool:
        """Whether a settled log has a footer, which a crash would have kept from it.

        Raises:
            DamagedFile, DiskFailed: it is missing, or cannot be read.
        """
        return await self._reader.footer(log_id) is not None

    async def is_foreign(self, log_id: int) -> bool:
        """Whether a log says that it is another one, or of another data directory.

        Raises:
            DiskFailed: it cannot be read.
        """
        return await self._reader.is_foreign(log_id)

    def durable_batches(self, log_id: int) -> AsyncGenerator[tuple[TableRow, Location], None]:
        """Like ``scan``, of a settled log, and where it ends without an error no batch is missing.

        Raises:
            DamagedFile, DiskFailed: as for ``complete_map``, at the end.
        """
        return self._reader.scan_whole(log_id, self._directories.durable_of(log_id))

    async def certain_bytes(self, log_id: int) -> int:
        """Below this offset of a settled log everything was durable; what lies behind may be torn.

        Raises:
            DamagedFile, DiskFailed: the log is missing, or cannot be read.
        """
        footer = await self._reader.footer(log_id)
        return self._directories.durable_of(log_id) if footer is None else footer.offset


async def _unpaced(_size: int) -> None:
    """No limit."""

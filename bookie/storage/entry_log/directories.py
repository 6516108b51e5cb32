"""The directories of the entry logs: which log is in which, and where the next one goes.

Log ids come from one counter over all directories, so an id identifies a log, and this table its directory. It is
rebuilt at boot by listing the directories, and not stored. The length note of the logs (lengths.py) is stored beside
them, one in each directory, so a lost log is missed in its own directory.

A new log goes to the directory with most free space, with equal space to the one with fewest logs, and never to a disk
that is short of space while another one is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tallybook.core.errors import DamagedFile
from tallybook.runtime.disk.port import Disk

from .foreign_files import is_foreign, stray_names
from .format import LOG_HEADER_BYTES, LogFile, log_name, parse_log_name, parse_removed_name, removed_name
from .lengths import read_lengths, write_lengths


class LogDirectories:
    """All directories of one bookie's entry logs. Call ``find`` first.

    Args:
        paths: at least one; unknown logs count as those of the first.
        directory_uuid: 16 bytes; notes of another bookie are rejected.
    """

    def __init__(self, disk: Disk, paths: Sequence[str], directory_uuid: bytes) -> None:
        self.paths = tuple(paths)
        self._disk = disk
        self._directory_uuid = directory_uuid
        self._homes: dict[int, str] = {}
        self._noted: dict[str, dict[int, int]] = {path: {} for path in self.paths}
        self._short: frozenset[str] = frozenset()
        self._full: set[str] = set()
        self._buried: dict[int, str] = {}
        """Removed logs whose file still exists under its removed name, with their directories."""
        self.unreadable_notes: list[DamagedFile] = []
        self.strays: list[str] = []
        """Files in these directories that do not belong to the bookie."""
        self.taken_ids: set[int] = set()
        """Ids that no new log may get, because something else has the name."""

    async def find(self) -> list[int]:
        """List every directory. Returns the ids of all logs, ascending.

        Raises:
            DamagedFile: a directory is missing, or two of them have a log with the same id.
            DiskFailed: a directory cannot be read.
        """
        for path in self.paths:
            for log_id in await self._logs_in(path):
                other = self._homes.setdefault(log_id, path)
                if other != path:
                    raise DamagedFile(f"{other} and {path} both hold {log_name(log_id)}: it is unknown which is valid")
        found = sorted(self._homes)
        for log_id, path in self.noted_homes().items():
            self._homes.setdefault(log_id, path)
        return found

    async def _logs_in(self, path: str) -> list[int]:
        """The logs of this bookie among the files of a directory. Those in its note need no check."""
        try:
            names = await self._disk.list(path)
        except FileNotFoundError as error:
            raise DamagedFile(f"{path}, a directory of entry logs, is missing") from error
        all_known = False
        try:
            self._noted[path] = await read_lengths(self._disk, path, self._directory_uuid)
        except DamagedFile as error:
            self.unreadable_notes.append(error)
            all_known = True
        self.strays += [f"{path}/{name}" for name in stray_names(names)]
        self._buried |= {log_id: path for name in names if (log_id := parse_removed_name(name)) is not None}
        found = []
        for name in names:
            log_id = parse_log_name(name)
            if log_id is None:
                continue
            log = LogFile(f"{path}/{name}", self._directory_uuid, log_id)
            if all_known or log_id in self._noted[path] or not await is_foreign(self._disk, log):
                found.append(log_id)
            else:
                self.strays.append(log.path)
                self.taken_ids.add(log_id)
        return found

    # -- where a log is ----------------------------------------------------------------------

    def home_of(self, log_id: int) -> str:
        """The directory of a log, or where it would be expected."""
        return self._homes.get(log_id, self.paths[0])

    def path_of(self, log_id: int) -> str:
        """The file of a log."""
        return f"{self.home_of(log_id)}/{log_name(log_id)}"

    def forget(self, log_id: int) -> None:
        """Remove a log from the table."""
        self._homes.pop(log_id, None)

    # -- placement of the next log ------------------------------------------------------------

    async def place(self, log_id: int) -> str:
        """Choose the directory of a new log: the one with most free space, of those that are not short of it.

        Raises:
            DiskFailed: the free space of a directory cannot be determined.
        """
        candidates = [path for path in self.paths if not self._is_short(path)] or list(self.paths)
        if len(candidates) > 1:
            logs = Counter(self._homes.values())
            free = {path: (await self._disk.space(path)).free_bytes for path in candidates}
            candidates.sort(key=lambda path: (-free[path], logs[path]))
        self._homes[log_id] = candidates[0]
        return candidates[0]

    def should_leave(self, log_id: int) -> bool:
        """Whether a log should be finished, because its disk is short of space and another one is not."""
        return self._is_short(self.home_of(log_id)) and not all(map(self._is_short, self.paths))

    def avoid(self, short: frozenset[str]) -> None:
        """Set the directories that are short of space from now on."""
        self._short = short
        self._full.clear()

    def met_full(self, log_id: int) -> None:
        """Note that there was no space for this log: its directory counts as short until the next ``avoid``."""
        self._full.add(self.home_of(log_id))

    def _is_short(self, path: str) -> bool:
        return path in self._short or path in self._full

    # -- length notes -------------------------------------------------------------------------

    @property
    def noted(self) -> dict[int, int]:
        """Durable bytes of each log according to the notes."""
        return {log_id: self._noted[path][log_id] for log_id, path in self.noted_homes().items()}

    def noted_homes(self) -> dict[int, str]:
        """Directories of the logs that their notes list as existing."""
        return {
            log_id: path
            for path, lengths in self._noted.items()
            for log_id in lengths
            if self._buried.get(log_id) != path
        }

    def durable_of(self, log_id: int) -> int:
        """Durable bytes of a log; 0 if unknown.

        A log that is not in the note had none: the note is written before any row points into the log.
        """
        noted = self._noted[self.home_of(log_id)]
        return noted.get(log_id, LOG_HEADER_BYTES if noted else 0)

    async def note(self, lengths: Mapping[int, int]) -> None:
        """Update the note of every directory, durably; then unlink the files of removed logs.

        Raises:
            DiskFull, DiskFailed: each note is unchanged or updated. Removed logs take no space in either case.
        """
        for log_id in self._buried:
            await self._empty(log_id)
        wanted: dict[str, dict[int, int]] = {path: {} for path in self.paths}
        for log_id, size in lengths.items():
            wanted[self.home_of(log_id)][log_id] = size
        for path, those in wanted.items():
            if those != self._noted[path]:
                await write_lengths(self._disk, path, self._directory_uuid, those)
                self._noted[path] = those
        while self._buried:
            log_id, path = next(iter(self._buried.items()))
            await self._disk.unlink(f"{path}/{removed_name(log_id)}")
            await self._disk.sync_directory(path)
            del self._buried[log_id]

    # -- without space for a note ---------------------------------------------------------------

    @property
    def buried(self) -> list[int]:
        """Removed logs that a note may still list."""
        return list(self._buried)

    async def bury(self, log_id: int) -> None:
        """Make the removal of a log durable by renaming its file, for a full disk that has no space for a new note.

        A note is a new file, which needs space, and on a full disk none becomes free before a log is removed. The log
        cannot just be unlinked: after a crash the old note would report it as lost. Cutting it would look like damage.
        A rename needs no space and is atomic: before it the log is unchanged, after it the log is removed, and its
        bytes and its line in the note may go later.

        Raises:
            DiskFull: the log is unchanged.
            DiskFailed: after a crash the log may or may not be removed.
        """
        home = self.home_of(log_id)
        await self._disk.rename(self.path_of(log_id), f"{home}/{removed_name(log_id)}")
        await self._disk.sync_directory(home)
        self._buried[log_id] = home

    async def _empty(self, log_id: int) -> None:
        """Free the space of a renamed log, so that there is some for the note once this is synced."""
        file = await self._disk.open(f"{self._buried[log_id]}/{removed_name(log_id)}")
        try:
            await file.truncate(0)
            await file.sync()
        finally:
            await file.close()

"""The directories that entry logs lie in: which log is where, and where the next one goes.

The ids of logs come from one counter over all directories, so an id says which log is meant, and
this table where its file is. It is found out at boot by looking, and nothing is written down about
it; the note of the logs' lengths (entry_log_lengths.py) lies beside them, one in each directory,
so a log that is lost is missed by the directory that it was lost from.

A new log goes where there is most room, on equal terms where there are fewest logs, and never to a
disk that is short of room as long as another one is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tallybook.core.errors import DamagedFile
from tallybook.runtime.disk import Disk

from .entry_log_format import LOG_HEADER_BYTES, LogFile, log_name, parse_log_name, parse_removed_name, removed_name
from .entry_log_lengths import read_lengths, write_lengths
from .foreign_files import is_foreign, stray_names


class LogDirectories:
    """All directories of one bookie's entry logs. ``find`` comes first.

    Args:
        paths: at least one; logs that nobody knows count as those of the first.
        directory_uuid: 16 bytes; notes of another bookie are not taken for ours.
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
        """Logs that are gone, of which a file under its last name is left, and its directory."""
        self.unreadable_notes: list[DamagedFile] = []
        self.strays: list[str] = []
        """Files in these directories that are not ours."""
        self.taken_ids: set[int] = set()
        """Ids that no log should get, because something else has the name."""

    async def find(self) -> list[int]:
        """Look into every directory. Ids of the logs that there are, ascending.

        Raises:
            DamagedFile: a directory is missing, or two of them hold a log of one id.
            DiskFailed: one cannot be read.
        """
        for path in self.paths:
            for log_id in await self._logs_in(path):
                other = self._homes.setdefault(log_id, path)
                if other != path:
                    raise DamagedFile(f"{other} and {path} both hold {log_name(log_id)}: which one counts is not known")
        found = sorted(self._homes)
        for log_id, path in self.noted_homes().items():
            self._homes.setdefault(log_id, path)
        return found

    async def _logs_in(self, path: str) -> list[int]:
        """Which of the files in a directory are logs of ours. Those that its note names need no look."""
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
        """The directory that a log lies in, or would be looked for."""
        return self._homes.get(log_id, self.paths[0])

    def path_of(self, log_id: int) -> str:
        """The file of a log."""
        return f"{self.home_of(log_id)}/{log_name(log_id)}"

    def forget(self, log_id: int) -> None:
        """A log is gone."""
        self._homes.pop(log_id, None)

    # -- where the next one goes -------------------------------------------------------------

    async def place(self, log_id: int) -> str:
        """Choose the directory of a new log: the one with most room, of those that are not short of it.

        Raises:
            DiskFailed: a directory does not say how much room it has.
        """
        candidates = [path for path in self.paths if not self._is_short(path)] or list(self.paths)
        if len(candidates) > 1:
            logs = Counter(self._homes.values())
            free = {path: (await self._disk.space(path)).free_bytes for path in candidates}
            candidates.sort(key=lambda path: (-free[path], logs[path]))
        self._homes[log_id] = candidates[0]
        return candidates[0]

    def should_leave(self, log_id: int) -> bool:
        """Whether a log had better be finished, because its disk is short of room and another one is not."""
        return self._is_short(self.home_of(log_id)) and not all(map(self._is_short, self.paths))

    def avoid(self, short: frozenset[str]) -> None:
        """From now on these directories are short of room, and no others."""
        self._short = short
        self._full.clear()

    def met_full(self, log_id: int) -> None:
        """There was no room for this log: its directory counts as short until the next ``avoid``."""
        self._full.add(self.home_of(log_id))

    def _is_short(self, path: str) -> bool:
        return path in self._short or path in self._full

    # -- the notes of lengths ----------------------------------------------------------------

    @property
    def noted(self) -> dict[int, int]:
        """How many bytes of each log were durable as of the last notes."""
        return {log_id: self._noted[path][log_id] for log_id, path in self.noted_homes().items()}

    def noted_homes(self) -> dict[int, str]:
        """In which directory the note names a log that should be there."""
        return {
            log_id: path
            for path, lengths in self._noted.items()
            for log_id in lengths
            if self._buried.get(log_id) != path
        }

    def durable_of(self, log_id: int) -> int:
        """How much of a log was durable; 0 where that is not known.

        Of a log that the note does not name nothing was: it is written before any row points into the log.
        """
        noted = self._noted[self.home_of(log_id)]
        return noted.get(log_id, LOG_HEADER_BYTES if noted else 0)

    async def note(self, lengths: Mapping[int, int]) -> None:
        """Bring the note of every directory up to date, durably; then nothing is left of the logs that were buried.

        Raises:
            DiskFull, DiskFailed: each note says what it did, or what it should. What was buried takes no room.
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

    # -- where there is no room for a note ---------------------------------------------------

    @property
    def buried(self) -> list[int]:
        """Logs that are gone, and that a note may still name."""
        return list(self._buried)

    async def bury(self, log_id: int) -> None:
        """Make it durable that a log is gone, whatever its note says: its file gets another name.

        A note is a new file, which takes room, and on a full disk none comes back before a log goes. Without a note
        the log cannot just be unlinked: a crash would leave one that is missed. To cut it comes to the same, and a
        mark in it would have to be told from damage. A name that the directory has room for takes none of the disk's,
        and is there after a crash as a whole or not at all: before it, the log is as it was; behind it, it is gone, and
        it does not matter when its bytes and its line in the note go.

        Raises:
            DiskFull: it is as it was.
            DiskFailed: it may or may not be gone after a crash.
        """
        home = self.home_of(log_id)
        await self._disk.rename(self.path_of(log_id), f"{home}/{removed_name(log_id)}")
        await self._disk.sync_directory(home)
        self._buried[log_id] = home

    async def _empty(self, log_id: int) -> None:
        """Give back the room of a log that was buried, so that there is some for the note: once synced, it is free."""
        file = await self._disk.open(f"{self._buried[log_id]}/{removed_name(log_id)}")
        try:
            await file.truncate(0)
            await file.sync()
        finally:
            await file.close()

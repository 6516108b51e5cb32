"""Storage directories: where journals and entry logs are, and whether each directory is the expected one.

By default they are DIR/journal and DIR/ledgers of the data directory. Each one that the settings name elsewhere has a
random name that never changes, and a cookie with that name and the bookie's; the format file of the data directory
lists them all with their paths (docs/reference/formats/cookie.md).

Every start compares list, settings and cookies, and refuses any directory that might lack its data: not mounted, come
back empty, of another bookie, swapped, or no longer configured. One that was moved is recognised by its cookie.

A new directory gets its cookie first and is listed second; only then is it used. After a crash in between, the next
start finds it empty with our cookie, and uses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, fields
from typing import Final

from tallybook.core.errors import DamagedFile, ForeignDirectory
from tallybook.runtime.disk.port import Disk
from tallybook.runtime.rng import Rng

from ..journal.format import SEGMENT_PREFIX
from ..journal.superblock_file import FILE_NAME as SUPERBLOCK_FILE
from ..storage.entry_log.format import parse_log_name, uuid_bytes
from ..storage.entry_log.lengths import FILE_NAME as LENGTHS_FILE
from ..storage.entry_log.lengths import read_lengths
from ..storage.text_record import MAX_RECORD_BYTES, decode_record, encode_record
from .cookie import KIND as COOKIE_KIND
from .cookie import Cookie, decode_cookie

JOURNAL: Final = "journal"
LEDGERS: Final = "ledgers"
KINDS: Final = (JOURNAL, LEDGERS)
"""Parts of a data directory that may be elsewhere. The first word of a storage directory's title."""

HOW_TO_ACCEPT: Final = "accept that what cannot be found is lost with 'tallybook bookie init --accept-loss'"

OWN: Final = "own"
"""Name of the storage directory that is a part of the data directory itself."""

DIRECTORY_KIND: Final = "place"
DIRECTORY_VERSION: Final = 1

_COOKIE_FILE: Final = "cookie"
NAME_LENGTH: Final = 8
_HARMLESS: Final = frozenset({"LOCK", _COOKIE_FILE, LENGTHS_FILE, "lost+found"})
"""Files that may be in a directory without data."""


def check_own_file(path: str, directory_uuid: str, cookie: Cookie) -> None:
    """Refuse a file that belongs to another data directory. A file of an older version does not say.

    Raises:
        ForeignDirectory: it does.
    """
    if directory_uuid not in ("", cookie.directory_uuid):
        raise ForeignDirectory(
            f"{path} belongs to data directory {directory_uuid}, not to that of bookie {cookie.bookie_id} "
            f"({cookie.directory_uuid}): bring back the file that was here, or move this one away and {HOW_TO_ACCEPT}"
        )


@dataclass(frozen=True, slots=True)
class StorageDirectory:
    """One directory of journals or of entry logs."""

    kind: str
    name: str
    path: str

    @property
    def title(self) -> str:
        """Its name in cookie and list."""
        return f"{self.kind}-{self.name}"


@dataclass(frozen=True, slots=True)
class StorageDirectories:
    """All storage directories of a bookie."""

    journal: tuple[StorageDirectory, ...]
    ledgers: tuple[StorageDirectory, ...]

    def __iter__(self) -> Iterator[StorageDirectory]:
        return iter((*self.journal, *self.ledgers))

    @property
    def journal_paths(self) -> tuple[str, ...]:
        """The directories of the journals, in the order of ``journal_of``."""
        return tuple(directory.path for directory in self.journal)

    @property
    def ledger_paths(self) -> tuple[str, ...]:
        """The directories of the entry logs."""
        return tuple(directory.path for directory in self.ledgers)


def directories_of(directories: Sequence[StorageDirectory]) -> StorageDirectories:
    """Group them by kind."""
    return StorageDirectories(**{kind: tuple(each for each in directories if each.kind == kind) for kind in KINDS})


def own_directories(root: str) -> StorageDirectories:
    """The defaults: parts of the data directory."""
    return directories_of([StorageDirectory(kind, OWN, f"{root}/{kind}") for kind in KINDS])


def listed_directories(values: Mapping[str, str], root: str) -> StorageDirectories:
    """The storage directories in a format file; the defaults if it lists none."""
    titles = [(title, path) for title, path in values.items() if _is_title(title)]
    if not titles:
        return own_directories(root)
    return directories_of([_listed(title, path, root) for title, path in titles])


def values_of(directories: StorageDirectories, root: str) -> dict[str, str]:
    """The fields of a format file for these directories; empty for the defaults."""
    if directories == own_directories(root):
        return {}
    return {directory.title: directory.kind if directory.name == OWN else directory.path for directory in directories}


def without_directories(values: Mapping[str, str]) -> dict[str, str]:
    """The other fields of a format file."""
    return {name: value for name, value in values.items() if not _is_title(name)}


def _is_title(name: str) -> bool:
    kind, dash, _ = name.partition("-")
    return kind in KINDS and bool(dash)


def _listed(title: str, path: str, root: str) -> StorageDirectory:
    kind, _, name = title.partition("-")
    # The data directory may be moved as a whole.
    return StorageDirectory(kind, name, f"{root}/{kind}" if name == OWN else path)


@dataclass(frozen=True, slots=True)
class DirectoryCookie:
    """The identity of one storage directory."""

    bookie_id: str
    directory_uuid: str
    cluster_id: str
    place: str

    def encode(self) -> bytes:
        """Encode it for the disk."""
        return encode_record(DIRECTORY_KIND, DIRECTORY_VERSION, asdict(self))


_FIELDS: Final = tuple(field.name for field in fields(DirectoryCookie))


class DirectoryClaim:
    """Identifies the storage directories, for a bookie whose data directory is locked and checked.

    Args:
        root: the data directory.
        cookie: its identity.
        locks: gets the lock of every storage directory outside of the data directory.
    """

    def __init__(self, disk: Disk, root: str, cookie: Cookie, rng: Rng, locks: AsyncExitStack) -> None:
        self._disk = disk
        self._root = root
        self._cookie = cookie
        self._rng = rng
        self._locks = locks

    async def settle(self, listed: StorageDirectories, wanted: Mapping[str, Sequence[str]]) -> StorageDirectories:
        """The directories to use from now on: those that are listed and configured in the order of the list, then new
        ones.

        Args:
            listed: from the format file.
            wanted: configured paths by kind.

        Raises:
            ForeignDirectory: one of them is not the expected one, or one with data is no longer configured.
            DirectoryInUse: another process holds one.
            DamagedFile: a cookie fails its checks.
            NewerFormat: a cookie has a later version.
            DiskFailed, DiskFull: one of them cannot be written.
        """
        paths = [(kind, path) for kind in KINDS for path in wanted[kind]]
        found = [await self._directory_at(kind, path, listed) for kind, path in paths]
        titles = [directory.title for directory in listed]
        paths_of = {directory.title: directory.path for directory in found}
        for directory in found:
            if paths_of[directory.title] != directory.path:
                raise ForeignDirectory(
                    f"{directory.path} and {paths_of[directory.title]} both carry the cookie of {directory.title}: "
                    "one is a copy"
                )
        for directory in listed:
            if directory.title not in paths_of:
                await self._check_given_up(directory)
        known = sorted((each for each in found if each.title in titles), key=lambda each: titles.index(each.title))
        return directories_of([*known, *(each for each in found if each.title not in titles)])

    async def _directory_at(self, kind: str, path: str, listed: StorageDirectories) -> StorageDirectory:
        """The directory at ``path``; created if there is none, and never was."""
        carried = await title_at(self._disk, self._root, self._cookie, path)
        expected = next((each for each in listed if each.path == path), None)
        if expected is not None:
            if carried is None:
                raise ForeignDirectory(f"{path} is missing or empty: it lost its cookie; mount it, or {HOW_TO_ACCEPT}")
            if carried != expected.title:
                raise ForeignDirectory(
                    f"{path} is listed as {expected.title}, and has the cookie of {carried}: were two disks swapped?"
                )
        elif carried is not None and not carried.startswith(f"{kind}-"):
            raise ForeignDirectory(f"{path} is configured for {kind}, and has the cookie of {carried}")
        if path != f"{self._root}/{kind}":
            await self._lock(path)
        if carried is not None and carried in {directory.title for directory in listed}:
            return _listed(carried, path, self._root)
        await self._check_empty(path, carried)
        directory = StorageDirectory(
            kind, carried.partition("-")[2] if carried else self._rng.uuid()[:NAME_LENGTH], path
        )
        if carried is None:
            data = directory_cookie(self._cookie, directory.title).encode()
            await self._disk.replace_file(f"{path}/{_COOKIE_FILE}", data)
        return directory

    async def _lock(self, path: str) -> None:
        await self._disk.make_directory(path)
        lock = await self._disk.lock(path)
        self._locks.push_async_callback(lock.release)

    async def _check_empty(self, path: str, carried: str | None) -> None:
        """Refuse a directory that is to be added and is not empty.

        One that was given up, or whose addition was interrupted, may have a journal: journal_changes.py checks that it
        is empty.
        """
        names = [name for name in await self._disk.list(path) if not name.endswith(".tmp")]
        foreign = [name for name in names if name not in _HARMLESS and not (carried and _is_of_journal(name))]
        if foreign or await self._noted_logs(path):
            what = ", ".join(foreign[:3]) or "the length note of entry logs that are gone"
            if carried:
                raise ForeignDirectory(
                    f"{path} is {carried} of this bookie, was given up, and holds {what}: empty it, or, to have it "
                    f"again, move {self._root}/FORMAT away, and {HOW_TO_ACCEPT}, naming every directory that there is"
                )
            raise ForeignDirectory(f"{path} is a new directory, and is not empty: it holds {what}")

    async def _check_given_up(self, directory: StorageDirectory) -> None:
        """Refuse to continue without a directory that may hold data."""
        if await title_at(self._disk, self._root, self._cookie, directory.path) != directory.title:
            raise ForeignDirectory(
                f"{directory.title} is no longer configured, and cannot be found at {directory.path}: mount it, "
                f"or {HOW_TO_ACCEPT}"
            )
        names = await self._disk.list(directory.path)
        if any(parse_log_name(name) is not None for name in names) or await self._noted_logs(directory.path):
            raise ForeignDirectory(
                f"{directory.path} holds entry logs, and is no longer configured: configure it again as one of the "
                f"{directory.kind} directories"
            )

    async def _noted_logs(self, path: str) -> bool:
        """Whether there must be entry logs in a directory, even if there are none."""
        return bool(await read_lengths(self._disk, path, uuid_bytes(self._cookie.directory_uuid)))


def directory_cookie(cookie: Cookie, title: str) -> DirectoryCookie:
    """The cookie of a storage directory outside of the data directory."""
    return DirectoryCookie(cookie.bookie_id, cookie.directory_uuid, cookie.cluster_id, title)


async def title_at(disk: Disk, root: str, cookie: Cookie, path: str) -> str | None:
    """The title of the storage directory at ``path``, from its cookie; ``None`` if there is no cookie.

    Args:
        root: the data directory.
        cookie: its identity.

    Raises:
        ForeignDirectory: it belongs to another bookie.
        DamagedFile: the cookie fails its checks.
        NewerFormat: it has a later version.
        DiskFailed: it cannot be read.
    """
    file = f"{path}/{_COOKIE_FILE}"
    data = await disk.read_file(file, MAX_RECORD_BYTES)
    if data is None:
        return None
    if data.startswith(f"tallybook {COOKIE_KIND} ".encode()):
        owner = decode_cookie(data, file)
        kind = path.removeprefix(f"{root}/")
        if owner == cookie and kind in KINDS:
            return f"{kind}-{OWN}"
        raise ForeignDirectory(f"{path} is, or belongs to, the data directory of bookie {owner.bookie_id}")
    carried = _decode(data, file)
    if carried != directory_cookie(cookie, carried.place):
        raise ForeignDirectory(
            f"{path} belongs to bookie {carried.bookie_id} ({carried.directory_uuid}) as {carried.place}, "
            f"not to {cookie.bookie_id} ({cookie.directory_uuid})"
        )
    return carried.place


def _is_of_journal(name: str) -> bool:
    return name == SUPERBLOCK_FILE or name.startswith(SEGMENT_PREFIX)


def _decode(data: bytes, path: str) -> DirectoryCookie:
    values = decode_record(DIRECTORY_KIND, DIRECTORY_VERSION, data, path)
    if tuple(values) != _FIELDS:
        raise DamagedFile(f"{path}: wrong fields for the cookie of a storage directory: {', '.join(values)}")
    return DirectoryCookie(**values)

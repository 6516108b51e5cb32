"""The data directory of a bookie: its layout, its lock, and the checks before it is used.

docs/reference/formats/cookie.md lists its files, and what a start does for each combination of them. Journals and entry
logs may lie in separate directories, on other disks (storage_directories.py).

``claim`` is the only entrance. It refuses any directory that might answer for data it does not have: an empty one of a
registered bookie, that of another bookie or cluster, and that of a bookie whose registration was removed.

A crash after any step of initialisation is completed by the next start: ``cookie.new`` is written first, the metadata
second, and renaming the file to ``cookie`` comes last. A directory that replaces another one gets its limbo marker
before all that: everything the old one acked counts as lost, also if a crash interrupts the replacement.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, Protocol

from tallybook.core.errors import DamagedFile, DiskFailed, DiskFull, ForeignDirectory, MetadataConflict
from tallybook.core.settings import BookieSettings
from tallybook.runtime.disk.port import DirectoryLock, Disk
from tallybook.runtime.rng import Rng

from ..journal.journal import PREPARED_AT_START
from ..storage.text_record import MAX_RECORD_BYTES, decode_record, encode_record
from .cookie import LAYOUT, Cookie, check_bookie_id, decode_cookie
from .journal_changes import change_journals, check_journal_space, journal_growths, titles
from .limbo import Limbo, load_limbo, store_limbo
from .loss_bound import lost_below
from .storage_directories import (
    HOW_TO_ACCEPT,
    JOURNAL,
    LEDGERS,
    DirectoryClaim,
    StorageDirectories,
    check_own_file,
    listed_directories,
    own_directories,
    values_of,
    without_directories,
)

FORMAT_KIND: Final = "bookie-directory"
FORMAT_VERSION: Final = 1
FORMAT_WITH_DIRECTORIES: Final = 2
"""Version of a format file that lists storage directories: older versions, which do not know them, must not start."""

JOURNAL_STATE: Final = "journal"
BEGUN: Final = "begun"
GIVEN_UP: Final = "given-up"
BOOTS: Final = "boots"
LOGS: Final = "logs"
DIRECTORY: Final = "directory"
IDS: Final = "ids"
"""Fields of the format file."""

COOKIE: Final = "cookie"
"""Name of the file, in the directory and in each part of it."""

_FORMAT = "FORMAT"
_INDEX = "index"
_DRAFT = "cookie.new"
_PROBE = "probe"
_OUR_PARTS = LAYOUT.split(",")
# Files that may be in a fresh directory: a lock, files left by a crashed start, a mount point's own.
_LIMBO = "limbo"
_HARMLESS = frozenset({"LOCK", _PROBE, _LIMBO, "lost+found"})


class CookieRegistry(Protocol):
    """The part of a ``MetadataStore`` that stores bookie identities."""

    async def cluster_id(self) -> str:
        """The identity of this cluster."""

    async def read_cookie(self, bookie_id: str) -> bytes | None:
        """The identity recorded for a bookie, or ``None``."""

    async def write_cookie(self, bookie_id: str, cookie: bytes, *, replace: bool = False) -> None:
        """Record an identity; ``MetadataConflict`` if there is another one and ``replace`` is false."""


@dataclass(frozen=True, slots=True)
class DirectoryLayout:
    """Paths within one data directory."""

    root: str

    @property
    def journal(self) -> str:
        """Directory of the journal."""
        return f"{self.root}/journal"

    @property
    def ledgers(self) -> str:
        """Directory of the entry logs."""
        return f"{self.root}/ledgers"

    def index(self, number: int) -> str:
        """Directory of an index; the first one has number 0."""
        return self.file(f"{_INDEX}.{number}" if number else _INDEX)

    @property
    def scrub(self) -> str:
        """File with the progress of the scrub."""
        return self.file("scrub")

    @property
    def limbo(self) -> str:
        """The limbo marker."""
        return self.file(_LIMBO)

    def file(self, name: str) -> str:
        """A file in the directory itself."""
        return f"{self.root}/{name}"


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """A directory that this process may use, until it releases it."""

    layout: DirectoryLayout
    cookie: Cookie
    directories: StorageDirectories
    locks: AsyncExitStack
    format: Mapping[str, str]
    """Contents of the format file."""

    @property
    def journal_begun(self) -> bool:
        """Whether records may have been acked here: a missing journal was lost."""
        return self.format.get(JOURNAL_STATE) == BEGUN

    @property
    def journal_given_up(self) -> bool:
        """Whether an operator has accepted the loss of a journal: a replacement may be created."""
        return self.format.get(JOURNAL_STATE) == GIVEN_UP

    @property
    def boots(self) -> int:
        """Boots after a journal was given up have higher numbers than this."""
        return int(self.format.get(BOOTS, "0"))

    @property
    def logs(self) -> int:
        """New entry logs have higher ids than this: earlier logs may have been lost."""
        return int(self.format.get(LOGS, "0"))

    @property
    def ids(self) -> int:
        """See ``seen_ids``."""
        return seen_ids(self.format)

    async def begin_journal(self, disk: Disk) -> None:
        """Record durably that the journal exists and must be found from now on. Called before anything is acked.

        Raises:
            DiskFull, DiskFailed: it could not be recorded.
        """
        if not self.journal_begun:
            await write_format(disk, self.layout, {**self.format, JOURNAL_STATE: BEGUN}, self.directories)

    async def release(self) -> None:
        """Release the directory, and all storage directories outside of it."""
        await self.locks.aclose()


async def claim(settings: BookieSettings, disk: Disk, registry: CookieRegistry, rng: Rng) -> DataDirectory:
    """Lock the data directory and check its identity; initialise it if it is fresh and its bookie is new.

    Raises:
        ForeignDirectory: its identity is missing, another's, or not the registered one.
        DirectoryInUse: another process holds it.
        DamagedFile: a file with its identity fails its checks.
        NewerFormat: a file has a later version.
        DiskFailed, DiskFull: it cannot be written, or has too little space.
        InvalidConfig: the configured bookie id is invalid.
    """
    directory = _DirectoryClaimer(DirectoryLayout(settings.data_directory.rstrip("/")), disk, registry)
    async with AsyncExitStack() as locks:
        locks.push_async_callback((await directory.lock()).release)
        await directory.check_space(settings)
        cookie = await directory.establish(settings.bookie_id, rng)
        claims = DirectoryClaim(disk, directory.layout.root, cookie, rng, locks)
        directories = await _storage_directories(settings, directory, disk, rng, claims, cookie)
        values = await directory.read_format()
        return DataDirectory(directory.layout, cookie, directories, locks.pop_all(), values)


async def _storage_directories(
    settings: BookieSettings, directory: _DirectoryClaimer, disk: Disk, rng: Rng, claims: DirectoryClaim, cookie: Cookie
) -> StorageDirectories:
    """Determine the directories of journals and entry logs, and list them durably before they are used."""
    layout, values = directory.layout, await directory.read_format()
    listed = listed_directories(values, layout.root)
    directories = await claims.settle(listed, wanted_paths(settings, layout))
    if titles(directories.journal) != titles(listed.journal):
        begun = values.get(JOURNAL_STATE) == BEGUN
        given_up = values.get(JOURNAL_STATE) == GIVEN_UP
        await change_journals(
            disk, listed.journal, directories.journal, settings.journal, rng, begun=begun, given_up=given_up
        )
    if directories != listed or DIRECTORY not in values:
        await write_format(disk, layout, {**values, DIRECTORY: cookie.directory_uuid}, directories)
    await check_journal_space(disk, directories.journal, settings)
    return directories


def seen_ids(values: Mapping[str, str]) -> int:
    """The highest id counter of the metadata that a bookie has seen, from its format file; see ``id_high_water.py``."""
    return int(values.get(IDS, "0"))


def wanted_paths(settings: BookieSettings, layout: DirectoryLayout) -> dict[str, tuple[str, ...]]:
    """Configured directories of journals and entry logs, by kind."""
    return {
        JOURNAL: settings.journal_directories or (layout.journal,),
        LEDGERS: settings.ledger_directories or (layout.ledgers,),
    }


async def replace_identity(
    settings: BookieSettings,
    disk: Disk,
    registry: CookieRegistry,
    rng: Rng,
    ids_below: Callable[[], Awaitable[int]],
    *,
    check: Callable[[str], Awaitable[None]] | None = None,
    note: Callable[[str, str], Awaitable[None]] | None = None,
) -> Cookie:
    """Give a registered bookie id a new, empty directory: ``bookie init --replace``.

    The contents of the old directory count as lost from now on: for every existing ledger, the new bookie answers
    UNKNOWN instead of ABSENT, because ledgers name their bookies by id.

    Args:
        ids_below: see ``lost_below``.
        check: called with the bookie id before any change, except after an interrupted earlier call that already gave
            up the old contents. It raises an error if they must not be given up.
        note: called with the bookie id and the uuid of the new directory before the old contents are given up, and
            once more afterwards, since an auditor may have attributed the first call to an interrupted command.

    Raises:
        ForeignDirectory: the directory is not empty.
        Exception: from ``check`` and ``note``.
        DirectoryInUse, DamagedFile, DiskFailed, InvalidConfig: as for ``claim``.
        MetadataUnavailable: the metadata store does not respond.
    """
    directory = _DirectoryClaimer(DirectoryLayout(settings.data_directory.rstrip("/")), disk, registry)
    lock = await directory.lock()
    try:
        if await directory.read_cookie(COOKIE) is not None:
            raise ForeignDirectory(
                f"{directory.layout.root} holds the data of a bookie: --replace needs an empty directory"
            )
        if check is not None:
            bookie_id = await directory.to_give_up(settings.bookie_id)
            if bookie_id:
                await check(bookie_id)
        await directory.doubt(await lost_below(ids_below, 0))
        draft = await directory.draft(settings.bookie_id, rng, replace=True)
        if note is not None:
            await note(draft.bookie_id, draft.directory_uuid)
        await registry.write_cookie(draft.bookie_id, draft.encode(), replace=True)
        if note is not None:
            await note(draft.bookie_id, draft.directory_uuid)
        await directory.finish(draft)
    finally:
        await lock.release()
    return draft


@asynccontextmanager
async def identified(
    settings: BookieSettings, disk: Disk, registry: CookieRegistry
) -> AsyncIterator[tuple[DirectoryLayout, Cookie]]:
    """Lock the directory of a registered bookie and return it with its identity, even if parts of it are lost.

    Creates nothing in it.

    Raises:
        ForeignDirectory: its identity is missing, another's, or not the registered one.
        DirectoryInUse: another process holds it.
        DamagedFile: its cookie fails its checks.
        NewerFormat: a file has a later version.
        DiskFailed, DiskFull: it cannot be read or locked.
    """
    directory = _DirectoryClaimer(DirectoryLayout(settings.data_directory.rstrip("/")), disk, registry)
    cookie = await directory.read_cookie(COOKIE)
    if cookie is None:
        raise ForeignDirectory(
            f"{directory.layout.root} has no cookie: it is not the directory of a bookie, or lost its identity"
        )
    lock = await disk.lock(directory.layout.root)
    try:
        await directory.check_identity(cookie, settings.bookie_id)
        yield directory.layout, cookie
    finally:
        await lock.release()


async def why_lost(disk: Disk, part: str, cookie: Cookie) -> str:
    """Why a part of a bookie's directory counts as lost; empty if it does not.

    Raises:
        ForeignDirectory: it exists, and belongs to another bookie.
    """
    path = f"{part}/{COOKIE}"
    try:
        data = await disk.read_file(path, MAX_RECORD_BYTES)
        if data is None:
            return f"{part} is missing or empty: it lost its cookie"
        found = decode_cookie(data, path)
    except DamagedFile as error:
        return error.message
    if found != cookie:
        raise ForeignDirectory(f"{part} belongs to bookie {found.bookie_id} ({found.directory_uuid})")
    return ""


class _DirectoryClaimer:
    """The steps of claiming one directory."""

    def __init__(self, layout: DirectoryLayout, disk: Disk, registry: CookieRegistry) -> None:
        self.layout = layout
        self._disk = disk
        self._registry = registry

    async def lock(self) -> DirectoryLock:
        """Create the directory if needed, lock it, and check that it is writable."""
        root = self.layout.root
        try:
            await self._disk.make_directory(root)
            lock = await self._disk.lock(root)
        except (DiskFailed, DiskFull) as error:
            raise type(error)(f"data directory {root} cannot be used: {error}") from error
        try:
            await self._disk.replace_file(self.layout.file(_PROBE), b"")
            await self._disk.unlink(self.layout.file(_PROBE))
        except (DiskFailed, DiskFull) as error:
            await lock.release()
            raise type(error)(f"data directory {root} cannot be written: {error}") from error
        return lock

    async def check_space(self, settings: BookieSettings) -> None:
        """Refuse to start if the first checkpoint might fail. Of the journal, only what it needs at once counts."""
        root, journal, min_free_bytes = self.layout.root, settings.journal, settings.storage.min_free_bytes
        free_bytes = (await self._disk.space(root)).free_bytes
        count = journal.segment_count
        if await self._has_begun_journal():
            count = min(count, PREPARED_AT_START)
        growth_bytes = sum(sorted(await self._own_journal_growths(settings), reverse=True)[:count])
        if free_bytes < min_free_bytes + growth_bytes:
            raise DiskFull(
                f"data directory {root} has {free_bytes} bytes free, {min_free_bytes + growth_bytes} are needed: "
                f"{min_free_bytes} to be left free (storage.min_free_bytes) and {growth_bytes} for the journal "
                f"({count} segments of {journal.segment_bytes})"
            )

    async def _has_begun_journal(self) -> bool:
        """Whether there must be a journal, as far as that is known before the identity is."""
        if await self._disk.read_file(self.layout.file(_FORMAT), MAX_RECORD_BYTES) is None:
            return False
        return (await self.read_format()).get(JOURNAL_STATE) == BEGUN

    async def _own_journal_growths(self, settings: BookieSettings) -> list[int]:
        """How much the journal will still grow, if it is a part of this directory."""
        if self.layout.journal not in (settings.journal_directories or (self.layout.journal,)):
            return []
        return await journal_growths(self._disk, self.layout.journal, settings.journal)

    async def establish(self, configured_id: str, rng: Rng) -> Cookie:
        """The identity of the directory; a fresh one is initialised first."""
        cookie = await self.read_cookie(COOKIE)
        if cookie is None:
            draft = await self.draft(configured_id, rng)
            await self._register(draft)
            await self.finish(draft)
            return draft
        await self.check_identity(cookie, configured_id)
        await read_format(self._disk, self.layout, cookie)
        await self._own_limbo(cookie)
        await self._check_parts(cookie)
        return cookie

    async def check_identity(self, cookie: Cookie, configured_id: str) -> None:
        """Refuse a directory that is not the registered one of its bookie."""
        await self._check_owner(cookie, configured_id)
        await self._check_registration(cookie)

    async def draft(self, configured_id: str, rng: Rng, *, replace: bool = False) -> Cookie:
        """The identity under which a fresh directory is being initialised, by this start or one that crashed.

        Nothing is begun for a registered bookie, unless it is to be replaced: its data is elsewhere.
        """
        draft = await self.read_cookie(_DRAFT)
        if draft is None:
            await self._check_fresh()
            directory_uuid = rng.uuid()
            bookie_id = check_bookie_id(configured_id or f"bookie-{directory_uuid[:8]}")
            if not replace and await self._registry.read_cookie(bookie_id) is not None:
                raise ForeignDirectory(
                    f"bookie {bookie_id} is registered, but {self.layout.root} is empty: mount its data directory, "
                    "or give up its data with 'bookie init --replace'"
                )
            draft = Cookie(bookie_id, directory_uuid, await self._registry.cluster_id())
            await self._disk.replace_file(self.layout.file(_DRAFT), draft.encode())
        await self._check_owner(draft, configured_id)
        # Written before the identity is registered, which may replace another one.
        if await self._limbo() is not None:
            await read_limbo(self._disk, self.layout, draft)
        return draft

    async def to_give_up(self, configured_id: str) -> str:
        """The bookie whose data a replacement would give up; empty if there is none, or if it was given up already."""
        draft = await self.read_cookie(_DRAFT)
        bookie_id = configured_id if draft is None else draft.bookie_id
        registered = await self._registry.read_cookie(bookie_id) if bookie_id else None
        is_given_up = registered is None or (draft is not None and registered == draft.encode())
        return "" if is_given_up else bookie_id

    async def doubt(self, below: int) -> None:
        """Mark everything held under this identity of ledgers below this id as lost."""
        limbo = await self._limbo() or Limbo()
        limbo = replace(limbo.reaching(below, awaits_registration=True), events=max(1, limbo.events))
        await store_limbo(self._disk, self.layout.limbo, limbo)

    async def finish(self, draft: Cookie) -> None:
        """Create the parts of the directory; the identity is complete when the draft is renamed to the cookie."""
        for part in _OUR_PARTS:
            await self._disk.make_directory(self.layout.file(part))
            await self._disk.replace_file(self.layout.file(f"{part}/{COOKIE}"), draft.encode())
        limbo = await self._limbo() or Limbo()
        await store_limbo(self._disk, self.layout.limbo, replace(limbo, directory=draft.directory_uuid))
        values = {DIRECTORY: draft.directory_uuid}
        await write_format(self._disk, self.layout, values, own_directories(self.layout.root))
        await self._disk.rename(self.layout.file(_DRAFT), self.layout.file(COOKIE))
        await self._disk.sync_directory(self.layout.root)

    async def read_cookie(self, name: str) -> Cookie | None:
        """The cookie in file ``name`` of the directory, or ``None``."""
        path = self.layout.file(name)
        data = await self._disk.read_file(path, MAX_RECORD_BYTES)
        return None if data is None else decode_cookie(data, path)

    async def _check_fresh(self) -> None:
        names = await self._disk.list(self.layout.root)
        foreign = [name for name in names if name not in _HARMLESS and not name.endswith(".tmp")]
        if foreign:
            raise ForeignDirectory(
                f"{self.layout.root} has no cookie and is not empty (it holds {', '.join(foreign[:3])}): "
                "it lost its identity, or is not a bookie's"
            )

    async def _register(self, draft: Cookie) -> None:
        """Record the identity in the metadata, unless a crashed start has done so."""
        registered = await self._registry.read_cookie(draft.bookie_id)
        if registered is None:
            try:
                await self._registry.write_cookie(draft.bookie_id, draft.encode())
            except MetadataConflict as error:
                raise self._other_registration(draft) from error
        elif registered != draft.encode():
            raise self._other_registration(draft)

    def _other_registration(self, cookie: Cookie) -> ForeignDirectory:
        return ForeignDirectory(
            f"bookie {cookie.bookie_id} is registered with another directory than {self.layout.root} "
            f"(uuid {cookie.directory_uuid})"
        )

    async def _check_owner(self, cookie: Cookie, configured_id: str) -> None:
        root = self.layout.root
        if configured_id and cookie.bookie_id != configured_id:
            raise ForeignDirectory(f"{root} belongs to bookie {cookie.bookie_id}, not to {configured_id}")
        cluster_id = await self._registry.cluster_id()
        if cookie.cluster_id != cluster_id:
            raise ForeignDirectory(f"{root} belongs to cluster {cookie.cluster_id}, the metadata is of {cluster_id}")

    async def _check_registration(self, cookie: Cookie) -> None:
        registered = await self._registry.read_cookie(cookie.bookie_id)
        if registered is None:
            raise ForeignDirectory(
                f"{self.layout.root} belongs to bookie {cookie.bookie_id}, "
                "whose registration was removed from the cluster"
            )
        if registered != cookie.encode():
            raise self._other_registration(cookie)

    async def _limbo(self) -> Limbo | None:
        """The limbo marker, if there is one yet."""
        if await self._disk.read_file(self.layout.limbo, MAX_RECORD_BYTES) is None:
            return None
        return await load_limbo(self._disk, self.layout.limbo)

    async def _own_limbo(self, cookie: Cookie) -> None:
        """Check the owner of the limbo marker, and add it to a marker of an older version. The boot finds a missing
        one."""
        if await self._limbo() is not None:
            limbo = await read_limbo(self._disk, self.layout, cookie)
            if not limbo.directory:
                await store_limbo(self._disk, self.layout.limbo, replace(limbo, directory=cookie.directory_uuid))

    async def read_format(self) -> dict[str, str]:
        """The fields of the format file; empty for an old one without fields."""
        return await read_format(self._disk, self.layout)

    async def _check_parts(self, cookie: Cookie) -> None:
        """Check that every part but the index has the cookie: a separate disk may have come back empty."""
        for part in _OUR_PARTS:
            if part == _INDEX:
                continue
            found = await self.read_cookie(f"{part}/{COOKIE}")
            if found is None:
                raise ForeignDirectory(
                    f"{self.layout.file(part)} is missing or empty: it lost its cookie; mount it, or {HOW_TO_ACCEPT}"
                )
            if found != cookie:
                owner = f"{found.bookie_id} ({found.directory_uuid})"
                raise ForeignDirectory(f"{self.layout.file(part)} belongs to bookie {owner}")


async def read_directories(disk: Disk, root: str) -> StorageDirectories:
    """The journal and entry log directories of a stopped bookie, from its format file, if there is one.

    Raises:
        DamagedFile: the format file fails its checks.
        NewerFormat: it has a later version.
        DiskFailed: it cannot be read.
    """
    path = DirectoryLayout(root).file(_FORMAT)
    data = await disk.read_file(path, MAX_RECORD_BYTES)
    return listed_directories({} if data is None else _decode_format(data, path), root)


async def read_limbo(disk: Disk, layout: DirectoryLayout, cookie: Cookie) -> Limbo:
    """Read the limbo marker of this data directory.

    Raises:
        ForeignDirectory: it belongs to another one.
        DamagedFile, NewerFormat: see ``load_limbo``.
    """
    limbo = await load_limbo(disk, layout.limbo)
    check_own_file(layout.limbo, limbo.directory, cookie)
    return limbo


async def read_format(disk: Disk, layout: DirectoryLayout, cookie: Cookie | None = None) -> dict[str, str]:
    """Read the fields of the format file.

    Args:
        cookie: of the directory, once it is known.

    Raises:
        ForeignDirectory: it belongs to another data directory.
        DamagedFile: it is missing, or fails its checks.
        NewerFormat: it has a later version.
    """
    path = layout.file(_FORMAT)
    data = await disk.read_file(path, MAX_RECORD_BYTES)
    if data is None:
        raise DamagedFile(f"{path} is missing")
    values = _decode_format(data, path)
    if cookie is not None:
        check_own_file(path, values.get(DIRECTORY, ""), cookie)
    return values


def _decode_format(data: bytes, path: str) -> dict[str, str]:
    plain = data.startswith(f"tallybook {FORMAT_KIND} {FORMAT_VERSION}\n".encode())
    values = decode_record(FORMAT_KIND, FORMAT_VERSION if plain else FORMAT_WITH_DIRECTORIES, data, path)
    for name in (BOOTS, LOGS, IDS):
        if not values.get(name, "0").isdecimal():
            raise DamagedFile(f"{path}: {values[name]!r} is not a number of {name}")
    return values


async def write_format(
    disk: Disk, layout: DirectoryLayout, values: Mapping[str, str], directories: StorageDirectories
) -> None:
    """Write ``values``, and the storage directories unless they are parts of the data directory."""
    listed = values_of(directories, layout.root)
    version = FORMAT_WITH_DIRECTORIES if listed else FORMAT_VERSION
    record = encode_record(FORMAT_KIND, version, {**without_directories(values), **listed})
    await disk.replace_file(layout.file(_FORMAT), record)

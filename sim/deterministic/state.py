"""Contents of a simulated disk: durable bytes, pending changes, and the results of a power loss.

Every change gets a number and is pending until it is made durable. A file has its durable bytes and the bytes that
readers see; a directory has its durable names and those that readers see. ``image`` builds the disk after a power loss,
given the *outcome* of every pending change. An outcome is a string:

- of a write, one letter per 512-byte sector that it touches: ``k`` kept, ``o`` old bytes (if the file grew, zeros),
  ``.`` lost, ``g`` garbage;
- of any other change ``k`` or ``.``.

Plain data without waiting and I/O; ``SimDisk`` adds these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Final, TypeAlias

from tallybook.core.limits import SECTOR_BYTES

from .content import Content

KEPT: Final = "k"
OLD: Final = "o"
LOST: Final = "."
GARBAGE: Final = "g"


def split(path: str) -> tuple[str, str]:
    """Directory and name of an absolute path."""
    directory, _, name = path.rpartition("/")
    return directory or "/", name


@dataclass(frozen=True, slots=True)
class FileWrite:
    """A write to a file."""

    number: int
    inode: int
    path: str
    offset: int
    data: bytes
    grew: bool

    @property
    def sectors(self) -> int:
        """Number of sectors that it touches."""
        return (self.offset + len(self.data) - 1) // SECTOR_BYTES - self.offset // SECTOR_BYTES + 1

    def __str__(self) -> str:
        return f"#{self.number} write {self.path} {self.offset}+{len(self.data)}"


@dataclass(frozen=True, slots=True)
class Resized:
    """A truncation or extension of a file."""

    number: int
    inode: int
    path: str
    size: int

    def __str__(self) -> str:
        return f"#{self.number} truncate {self.path} to {self.size}"


@dataclass(frozen=True, slots=True)
class Linked:
    """A new name of a file: created, or renamed if ``old_name`` is set."""

    number: int
    directory: str
    name: str
    inode: int
    old_name: str = ""

    def __str__(self) -> str:
        verb = f"rename {self.old_name} to" if self.old_name else "create"
        return f"#{self.number} {verb} {self.directory}/{self.name}"


@dataclass(frozen=True, slots=True)
class Unlinked:
    """A removed name."""

    number: int
    directory: str
    name: str

    def __str__(self) -> str:
        return f"#{self.number} unlink {self.directory}/{self.name}"


@dataclass(frozen=True, slots=True)
class DirectoryMade:
    """A created directory."""

    number: int
    path: str

    def __str__(self) -> str:
        return f"#{self.number} mkdir {self.path}"


DataChange: TypeAlias = FileWrite | Resized
NameChange: TypeAlias = Linked | Unlinked
DiskChange: TypeAlias = DataChange | NameChange | DirectoryMade


@dataclass(slots=True)
class FileState:
    """One file, independent of its names."""

    durable: Content
    current: Content
    pending: list[DataChange] = field(default_factory=list)
    handles: int = 0


@dataclass(slots=True)
class DirectoryState:
    """The names in one directory, as inode numbers."""

    durable: dict[str, int] = field(default_factory=dict)
    current: dict[str, int] = field(default_factory=dict)
    pending: list[NameChange] = field(default_factory=list)
    made: DirectoryMade | None = None


class DiskState:
    """Files and directories. Paths must exist unless a method says otherwise."""

    def __init__(self, *, power_safe_overwrite: bool = True) -> None:
        self.files: dict[int, FileState] = {}
        self.directories: dict[str, DirectoryState] = {"/": DirectoryState()}
        self.power_safe_overwrite = power_safe_overwrite
        self._next_change = 1
        self._next_inode = 1

    def number(self) -> int:
        """Take the number of the next change."""
        self._next_change += 1
        return self._next_change - 1

    # -- the view of a running process ----------------------------------------------------

    def inode(self, path: str) -> int | None:
        """Inode of the file ``path``; ``None`` if there is none."""
        directory, name = split(path)
        state = self.directories.get(directory)
        return None if state is None else state.current.get(name)

    def names(self, directory: str) -> list[str]:
        """Files and directories in ``directory``, sorted."""
        prefix = directory.rstrip("/") + "/"
        below = [path[len(prefix) :] for path in self.directories if path != "/" and split(path)[0] == directory]
        return sorted([*self.directories[directory].current, *below])

    def used_bytes(self) -> int:
        """Bytes of all files that have a name or an open handle."""
        named = self._named()
        return sum(file.current.size for inode, file in self.files.items() if file.handles or inode in named)

    def _named(self) -> set[int]:
        return {inode for state in self.directories.values() for inode in state.current.values()}

    def cuts_without_name(self) -> bool:
        """Whether a file without a name has a truncation that is not durable."""
        named = self._named()
        return any(
            isinstance(change, Resized) and inode not in named
            for inode, file in self.files.items()
            for change in file.pending
        )

    # -- changes --------------------------------------------------------------------------

    def make_directory(self, path: str) -> DirectoryMade:
        """Create one directory; its parent must exist."""
        change = DirectoryMade(self.number(), path)
        self.directories[path] = DirectoryState(made=change)
        return change

    def create(self, path: str) -> int:
        """Create an empty file and return its inode number."""
        directory, name = split(path)
        inode = self._next_inode
        self._next_inode += 1
        self.files[inode] = FileState(Content(), Content())
        self._link(self.directories[directory], Linked(self.number(), directory, name, inode))
        return inode

    def rename(self, directory: str, old: str, new: str) -> None:
        """Rename ``old`` to ``new``, which may exist."""
        state = self.directories[directory]
        self._link(state, Linked(self.number(), directory, new, state.current[old], old))

    def unlink(self, directory: str, name: str) -> None:
        """Remove a name."""
        change = Unlinked(self.number(), directory, name)
        state = self.directories[directory]
        state.pending.append(change)
        _apply_name(state.current, change)

    def write(self, inode: int, path: str, offset: int, data: bytes) -> FileWrite:
        """Write bytes to a file."""
        file = self.files[inode]
        change = FileWrite(self.number(), inode, path, offset, data, offset + len(data) > file.current.size)
        file.pending.append(change)
        file.current.write(offset, data)
        return change

    def resize(self, inode: int, path: str, size: int) -> None:
        """Truncate or extend a file."""
        file = self.files[inode]
        file.pending.append(Resized(self.number(), inode, path, size))
        file.current.resize(size)

    def _link(self, state: DirectoryState, change: Linked) -> None:
        state.pending.append(change)
        _apply_name(state.current, change)

    # -- durability -----------------------------------------------------------------------

    def settle_write(self, change: FileWrite) -> None:
        """Make a durable write and all earlier changes that it overlaps durable."""
        file = self.files[change.inode]
        before = [earlier for earlier in file.pending if earlier.number <= change.number and _touch(earlier, change)]
        self.settle(change.inode, {earlier.number for earlier in before})

    def settle(self, inode: int, numbers: set[int]) -> None:
        """Make these pending changes of a file durable."""
        file = self.files[inode]
        for change in file.pending:
            if change.number in numbers:
                _apply_data(file.durable, change)
        file.pending = [change for change in file.pending if change.number not in numbers]

    def forget(self, inode: int, numbers: set[int]) -> None:
        """Make these changes never durable; readers still see them."""
        file = self.files[inode]
        file.pending = [change for change in file.pending if change.number not in numbers]

    def settle_names(self, directory: str, numbers: set[int]) -> None:
        """Make these pending name changes of a directory durable."""
        state = self.directories[directory]
        for change in state.pending:
            if change.number in numbers:
                _apply_name(state.durable, change)
        state.pending = [change for change in state.pending if change.number not in numbers]

    def settle_creation(self, inode: int) -> None:
        """Make the names of a file durable, as some file systems do on its first sync."""
        for path, state in self.directories.items():
            numbers = {
                change.number for change in state.pending if isinstance(change, Linked) and change.inode == inode
            }
            if numbers:
                self.settle_names(path, numbers)

    def reclaim(self) -> None:
        """Drop files that no name, pending change or open handle refers to."""
        reachable: set[int] = set()
        for state in self.directories.values():
            reachable.update(state.current.values(), state.durable.values())
            reachable.update(change.inode for change in state.pending if isinstance(change, Linked))
        gone = [inode for inode, file in self.files.items() if inode not in reachable and not file.handles]
        for inode in gone:
            del self.files[inode]

    # -- power loss -----------------------------------------------------------------------

    def pending(self) -> list[DiskChange]:
        """All changes that are not durable, in order."""
        changes: list[DiskChange] = [change for file in self.files.values() for change in file.pending]
        for state in self.directories.values():
            changes.extend(state.pending)
            if state.made is not None:
                changes.append(state.made)
        return sorted(changes, key=lambda change: change.number)

    def fork(self) -> DiskState:
        """An independent copy, including pending changes."""
        twin = self._blank()
        for inode, file in self.files.items():
            twin.files[inode] = FileState(file.durable.fork(), file.current.fork(), list(file.pending))
        for path, state in self.directories.items():
            twin.directories[path] = DirectoryState(
                dict(state.durable), dict(state.current), list(state.pending), state.made
            )
        return twin

    def image(self, outcomes: Mapping[int, str]) -> DiskState:
        """The disk after a power loss with these outcomes; a change without an outcome is lost."""
        twin = self._blank()
        for path, state in self.directories.items():
            if state.made is not None and outcomes.get(state.made.number, LOST) != KEPT:
                continue
            names = dict(state.durable)
            for change in state.pending:
                if outcomes.get(change.number, LOST) == KEPT:
                    _apply_name(names, change)
            twin.directories[path] = DirectoryState(names, dict(names))
        for state in twin.directories.values():
            for inode in state.current.values():
                if inode not in twin.files:
                    content = self._surviving(self.files[inode], outcomes)
                    twin.files[inode] = FileState(content, content.fork())
        return twin

    def digest(self) -> bytes:
        """A hash of names and bytes as readers see them."""
        total = hashlib.blake2b(digest_size=16)
        for path in sorted(self.directories):
            total.update(f"{path}\0".encode())
            names = self.directories[path].current
            for name in sorted(names):
                total.update(f"{name}\0".encode() + self.files[names[name]].current.digest())
        return total.digest()

    def _blank(self) -> DiskState:
        twin = DiskState(power_safe_overwrite=self.power_safe_overwrite)
        twin._next_change, twin._next_inode = self._next_change, self._next_inode
        return twin

    def _surviving(self, file: FileState, outcomes: Mapping[int, str]) -> Content:
        file.durable.digest()  # computed once here, then inherited by every image that leaves the file alone
        content = file.durable.fork()
        for change in file.pending:
            outcome = outcomes.get(change.number, LOST)
            if isinstance(change, FileWrite):
                _apply_torn(content, change, outcome, self.power_safe_overwrite)
            elif outcome == KEPT:
                _apply_data(content, change)
        return content


def _touch(earlier: DataChange, change: FileWrite) -> bool:
    if isinstance(earlier, Resized):
        return True
    return earlier.offset < change.offset + len(change.data) and change.offset < earlier.offset + len(earlier.data)


def _apply_data(content: Content, change: DataChange) -> None:
    if isinstance(change, FileWrite):
        content.write(change.offset, change.data)
    else:
        content.resize(change.size)


def _apply_name(names: dict[str, int], change: NameChange) -> None:
    if isinstance(change, Unlinked):
        names.pop(change.name, None)
        return
    if change.old_name and names.get(change.old_name) == change.inode:
        del names[change.old_name]
    names[change.name] = change.inode


def _apply_torn(content: Content, change: FileWrite, outcome: str, power_safe_overwrite: bool) -> None:
    """Apply the outcome of a write to each run of sectors."""
    if len(outcome) == 1:
        outcome = outcome * change.sectors
    for letter, start, end in _runs(change, outcome):
        if letter == KEPT:
            content.write(start, change.data[start - change.offset : end - change.offset])
        elif letter == OLD and content.size < end:
            content.resize(end)
        elif letter == GARBAGE:
            if not power_safe_overwrite:
                start, end = start // SECTOR_BYTES * SECTOR_BYTES, -(-end // SECTOR_BYTES) * SECTOR_BYTES
            content.write(start, garbage(change.number, end - start))


def _runs(change: FileWrite, outcome: str) -> Iterator[tuple[str, int, int]]:
    """Runs of equal letters as (letter, first offset, end offset), clipped to the write."""
    base = change.offset // SECTOR_BYTES
    stop = change.offset + len(change.data)
    for letter, run in groupby(range(len(outcome)), key=outcome.__getitem__):
        sectors = list(run)
        start = max((base + sectors[0]) * SECTOR_BYTES, change.offset)
        end = min((base + sectors[-1] + 1) * SECTOR_BYTES, stop)
        yield letter, start, end


@lru_cache(maxsize=64)
def garbage(number: int, size: int) -> bytes:
    """Garbage bytes, the same for the same change."""
    return hashlib.shake_128(number.to_bytes(8, "big")).digest(size)

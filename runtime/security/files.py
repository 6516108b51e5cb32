"""The files of a security directory, read with care.

    ca.crt            certificates of the authorities that are trusted
    tls.crt, tls.key  the certificate of this process, with those between it and the authority, and its key
    access.toml       who may do what: ``core/access``
    token-keys.json   keys that tokens are checked with, a JSON Web Key Set
    zookeeper.auth    USER:PASSWORD for ZooKeeper
    zookeeper-reader.auth  USER:PASSWORD of a second user, who may only read there

The first three have the names that Kubernetes gives them. Files may be replaced at any time, one by one or, where
they are links, all at once; what was read counts only if nothing changed meanwhile. A file that cannot be read is the
trouble of who wants it, and keeps nobody from the others.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from tallybook.core.errors import InvalidConfig

AUTHORITY: Final = "ca.crt"
CERTIFICATE: Final = "tls.crt"
PRIVATE: Final = "tls.key"
ACCESS: Final = "access.toml"
TOKEN_KEYS: Final = "token-keys.json"  # noqa: S105 (a file)
ZOOKEEPER: Final = "zookeeper.auth"
ZOOKEEPER_READER: Final = "zookeeper-reader.auth"

NAMES: Final = (AUTHORITY, CERTIFICATE, PRIVATE, ACCESS, TOKEN_KEYS, ZOOKEEPER, ZOOKEEPER_READER)
_SECRET: Final = frozenset({PRIVATE, TOKEN_KEYS, ZOOKEEPER, ZOOKEEPER_READER})
MAX_FILE_BYTES: Final = 4 << 20
_TRIES: Final = 3

Signature: TypeAlias = tuple[tuple[int, int, int, int] | None, ...]
"""By which a change is noticed: of each file inode, size, and times of its last changes, in nanoseconds."""


class Files(NamedTuple):
    """What lies in a directory: of each file its content, ``None`` if it is not there, or why it cannot be read."""

    signature: Signature
    contents: dict[str, bytes | InvalidConfig | None]

    def found(self, name: str) -> bytes | None:
        """The content of a file; ``None`` if it is not there.

        Raises:
            InvalidConfig: it cannot be read, or must not be believed.
        """
        content = self.contents[name]
        if isinstance(content, InvalidConfig):
            raise content
        return content

    def __repr__(self) -> str:
        """Without what must never be shown."""
        return f"Files({', '.join(name for name, content in self.contents.items() if content is not None)})"

    def wanted(self, name: str, directory: str) -> bytes:
        """The content of a file that there has to be.

        Raises:
            InvalidConfig: there is none, or none that can be read and believed.
        """
        content = self.found(name)
        if content is None:
            raise InvalidConfig(f"{directory} has no {name}")
        return content


def signature_of(directory: str) -> Signature:
    """What all files look like from outside.

    Raises:
        InvalidConfig: the directory cannot be looked into.
    """
    return tuple(seen(Path(directory, name)) for name in NAMES)


def part_of(signature: Signature, names: Sequence[str]) -> Signature:
    """What some of the files look like."""
    return tuple(signature[NAMES.index(name)] for name in names)


def read_files(directory: str) -> Files:
    """All files, of one moment.

    Raises:
        InvalidConfig: the directory cannot be read, changes all the time, or may be changed by every user of this
            machine.
    """
    mode = _mode_of(directory)
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        # With the sticky bit, as Kubernetes mounts secrets, others may not replace what is there; and what they add is
        # not believed, since it belongs to them.
        raise InvalidConfig(f"everybody may put files into {directory}: chmod o-w {directory}")
    for _ in range(_TRIES):
        before = signature_of(directory)
        contents = {name: _content(Path(directory, name), secret=name in _SECRET) for name in NAMES}
        if signature_of(directory) == before:
            return Files(before, contents)
    raise InvalidConfig(f"the files of {directory} change all the time")


def _mode_of(directory: str) -> int:
    """Who may do what with a directory. It is asked once: what was there may be gone the next time.

    Raises:
        InvalidConfig: there is none, or what it lies in cannot be looked into.
    """
    try:
        found = Path(directory).stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # of a name that no file can have
        raise InvalidConfig(f"security: there is no directory {directory}") from None
    except OSError as error:
        raise InvalidConfig(f"security: {directory} cannot be read: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise InvalidConfig(f"security: there is no directory {directory}")
    return stat.S_IMODE(found.st_mode)


def _content(path: Path, *, secret: bool) -> bytes | InvalidConfig | None:
    try:
        return read_file(path, secret=secret)
    except InvalidConfig as error:
        return error


def seen(path: Path) -> tuple[int, int, int, int] | None:
    """What one file looks like from outside; ``None`` if it is not there.

    Raises:
        InvalidConfig: its directory cannot be looked into.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_file(path: Path, *, secret: bool) -> bytes | None:
    """All of a file; ``None`` if it is not there.

    Raises:
        InvalidConfig: it cannot be read, is too large, is ``secret`` and open to every user of this machine, or may be
            another user's.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            # Opening a FIFO would wait for somebody to write into it.
            raise InvalidConfig(f"{path} is no file")
        if secret and stat.S_IMODE(found.st_mode) & 0o007:
            raise InvalidConfig(f"{path} holds a secret and is open to everybody: chmod o-rwx {path}")
        if found.st_mode & stat.S_IWOTH:
            raise InvalidConfig(f"everybody may change {path}: chmod o-w {path}")
        if path.parent.stat().st_mode & stat.S_IWOTH and found.st_uid not in (0, os.geteuid()):
            raise InvalidConfig(f"user {found.st_uid} has put {path} there, as everybody may: chmod o-w {path.parent}")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise InvalidConfig(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    return content

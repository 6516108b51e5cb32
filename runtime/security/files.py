"""The files of a security directory, read consistently and checked for unsafe permissions.

    ca.crt            certificates of the trusted authorities
    tls.crt, tls.key  the certificate chain of this process, and its key
    access.toml       who may do what: ``core/access``
    token-keys.json   keys that verify tokens, a JSON Web Key Set
    zookeeper.auth    USER:PASSWORD for ZooKeeper
    zookeeper-reader.auth  USER:PASSWORD of a second user with read access only

The first three have the names that Kubernetes uses. Files may be replaced at any time, one by one or, if they are
links, all at once; a read counts only if no file changed meanwhile. A file that cannot be read is an error only where
it is needed.
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
"""Detects changes: inode, size, mtime and ctime (in nanoseconds) of each file; ``None`` for a missing one."""


class Files(NamedTuple):
    """The files of a directory: content, ``None`` if the file is missing, or why it cannot be read."""

    signature: Signature
    contents: dict[str, bytes | InvalidConfig | None]

    def optional(self, name: str) -> bytes | None:
        """The content of a file; ``None`` if it is missing.

        Raises:
            InvalidConfig: it cannot be read, or has unsafe permissions.
        """
        content = self.contents[name]
        if isinstance(content, InvalidConfig):
            raise content
        return content

    def __repr__(self) -> str:
        """Without secrets."""
        return f"Files({', '.join(name for name, content in self.contents.items() if content is not None)})"

    def required(self, name: str, directory: str) -> bytes:
        """The content of a file that must exist.

        Raises:
            InvalidConfig: it is missing, cannot be read, or has unsafe permissions.
        """
        content = self.optional(name)
        if content is None:
            raise InvalidConfig(f"{directory} has no {name}")
        return content


def signature_of(directory: str) -> Signature:
    """The signature of all files.

    Raises:
        InvalidConfig: the directory is not accessible.
    """
    return tuple(stat_signature(Path(directory, name)) for name in NAMES)


def part_of(signature: Signature, names: Sequence[str]) -> Signature:
    """The signature of some of the files."""
    return tuple(signature[NAMES.index(name)] for name in names)


def read_files(directory: str) -> Files:
    """Read all files, consistent with each other.

    Raises:
        InvalidConfig: the directory cannot be read, keeps changing, or is writable for every user of this machine.
    """
    mode = _mode_of(directory)
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        # With the sticky bit, as Kubernetes mounts secrets, other users cannot replace existing files, and files that
        # they add are refused because of their owner.
        raise InvalidConfig(f"every user may put files into {directory}: chmod o-w {directory}")
    for _ in range(_TRIES):
        before = signature_of(directory)
        contents = {name: _content(Path(directory, name), secret=name in _SECRET) for name in NAMES}
        if signature_of(directory) == before:
            return Files(before, contents)
    raise InvalidConfig(f"the files of {directory} keep changing: try again")


def _mode_of(directory: str) -> int:
    """The permission bits of a directory. A single call, because the directory may vanish between two.

    Raises:
        InvalidConfig: it does not exist or is not accessible.
    """
    try:
        found = Path(directory).stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: not a valid path
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


def stat_signature(path: Path) -> tuple[int, int, int, int] | None:
    """The signature of one file; ``None`` if it is missing.

    Raises:
        InvalidConfig: its directory is not accessible.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_file(path: Path, *, secret: bool) -> bytes | None:
    """The content of a file; ``None`` if it is missing.

    Raises:
        InvalidConfig: it cannot be read, is too large, is ``secret`` and accessible to every user of this machine, or
            may come from another user.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            # Opening a FIFO would wait for a writer.
            raise InvalidConfig(f"{path} is not a regular file")
        if secret and stat.S_IMODE(found.st_mode) & 0o007:
            raise InvalidConfig(f"{path} holds a secret and is accessible to every user: chmod o-rwx {path}")
        if found.st_mode & stat.S_IWOTH:
            raise InvalidConfig(f"every user may change {path}: chmod o-w {path}")
        if path.parent.stat().st_mode & stat.S_IWOTH and found.st_uid not in (0, os.geteuid()):
            raise InvalidConfig(
                f"{path} belongs to user {found.st_uid}, as every user may put files there: chmod o-w {path.parent}"
            )
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise InvalidConfig(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    return content

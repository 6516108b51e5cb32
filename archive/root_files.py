"""Reads the files at the root of a bucket, which are replaced as a whole (``format/root_file.py`` encodes them)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from tallybook.core.errors import DamagedFile, ObjectDamaged, ObjectMissing
from tallybook.runtime.tasks import Workers

from .objects.port import ObjectStore
from .objects.probe import info_if_there

_T = TypeVar("_T")
_TRIES: Final = 2
"""A file that is replaced during a read looks damaged, once."""


async def read_root_file(
    store: ObjectStore, workers: Workers, key: str, max_bytes: int, decode: Callable[[bytes, str], _T]
) -> _T | None:
    """Read a file at the root of a bucket; ``None`` if it does not exist.

    Args:
        decode: takes the bytes of the file, and its name in messages.

    Raises:
        ObjectDamaged, DamagedFile: it is unreadable.
        NewerFormat: a newer Tallybook wrote it.
        ArchiveKeyMissing: it is encrypted with a missing key.
        ArchiveUnavailable, ArchiveDenied: the store does not return it.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            found = await info_if_there(store, key)
            if found is None:
                return None
            if not 0 < found.size_bytes <= max_bytes:
                raise DamagedFile(f"{store.url}: {key} has {found.size_bytes:,} bytes")
            data = await store.read(key, 0, found.size_bytes)
            return await workers.run(decode, data, f"{store.url}: {key}")
        except ObjectMissing:
            return None
        except (ObjectDamaged, DamagedFile):
            if not tries_left:
                raise
    return None

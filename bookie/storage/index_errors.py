"""What an error of RocksDB means. Its binding raises one kind, so only the text tells."""

from __future__ import annotations

from tallybook.core.errors import DamagedFile, DiskFailed, DiskFull


def rocksdb_error(error: Exception, doing: str) -> DamagedFile | DiskFailed | DiskFull:
    """The error of ours for ``error``, which was met while ``doing``, as the message begins."""
    text = str(error)
    if "No space left" in text or "quota exceeded" in text:
        return DiskFull(f"{doing}: {text}")
    if text.startswith("IO error") and "No such file" not in text:
        return DiskFailed(f"{doing}: {text}")
    return DamagedFile(f"{doing}: {text}")

"""A disk with a single file, for decoders that read files themselves. Its calls never wait."""

from __future__ import annotations


class OneFile:
    """A disk and its file in one object."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self._data = data

    async def open(self, path: str, **_how: object) -> OneFile:
        """The file, if it is that."""
        if path != self.path:
            raise FileNotFoundError(path)
        return self

    async def read(self, offset: int, size: int) -> bytes:
        """Fewer bytes at the end."""
        if offset < 0 or size < 0:
            raise ValueError(f"{size} bytes from {offset} on cannot be read")
        return self._data[offset : offset + size]

    async def size(self) -> int:
        """Of the file."""
        return len(self._data)

    async def read_file(self, path: str, max_bytes: int) -> bytes | None:
        """The whole file, if it is that."""
        return self._data[:max_bytes] if path == self.path else None

    async def list(self, _directory: str) -> list[str]:
        """Its name."""
        return [self.path.rpartition("/")[2]]

    async def close(self) -> None:
        """Nothing is open."""

"""The bytes of one simulated file, cheap to copy.

Contents are pages of 4 KiB; zero pages are not stored. ``fork`` shares the page table until one side writes, so that
thousands of crash images of one disk need little memory. The previous version of each overwritten page is kept, for
simulated lost writes.
"""

from __future__ import annotations

import hashlib
from typing import Final

PAGE_BYTES: Final = 4096
_ZERO_PAGE: Final = bytes(PAGE_BYTES)


class Content:
    """A sparse, growable run of bytes."""

    __slots__ = ("_digest", "_pages", "_previous", "_shared", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pages: dict[int, bytes] = {}
        self._previous: dict[int, bytes] = {}
        self._shared = False
        self._digest: bytes | None = None

    def fork(self) -> Content:
        """An independent copy."""
        twin = Content()
        twin.size, twin._pages, twin._previous, twin._digest = self.size, self._pages, self._previous, self._digest
        twin._shared = self._shared = True
        return twin

    def read(self, offset: int, size: int) -> bytes:
        """Bytes ``offset .. offset + size``; fewer if the file ends before."""
        end = min(offset + size, self.size)
        if end <= offset:
            return b""
        first, last = offset // PAGE_BYTES, (end - 1) // PAGE_BYTES
        joined = b"".join(self._pages.get(index, _ZERO_PAGE) for index in range(first, last + 1))
        start = offset - first * PAGE_BYTES
        return joined[start : start + end - offset]

    def write(self, offset: int, data: bytes, *, remember: bool = True) -> None:
        """Write ``data`` at ``offset``; a gap before it reads as zeros.

        With ``remember``, ``stale`` returns the overwritten bytes afterwards.
        """
        if not data:
            return
        self._own()
        at, end = 0, len(data)
        while at < end:
            index, within = divmod(offset + at, PAGE_BYTES)
            step = min(PAGE_BYTES - within, end - at)
            if step == PAGE_BYTES:
                self._put(index, data[at : at + step], remember=remember)
            else:
                old = self._pages.get(index, _ZERO_PAGE)
                self._put(index, old[:within] + data[at : at + step] + old[within + step :], remember=remember)
            at += step
        self.size = max(self.size, offset + end)

    def resize(self, size: int) -> None:
        """Cut, or extend with zeros."""
        self._own()
        if size < self.size:
            kept, within = divmod(size, PAGE_BYTES)
            for index in [index for index in self._pages if index > kept or (index == kept and not within)]:
                del self._pages[index]
            if kept in self._pages:
                self._put(kept, self._pages[kept][:within] + bytes(PAGE_BYTES - within), remember=False)
        self.size = size

    def stale(self, offset: int, size: int) -> bytes:
        """Bytes at ``offset`` before the page was last overwritten; zeros if it never was."""
        index, within = divmod(offset, PAGE_BYTES)
        return self._previous.get(index, _ZERO_PAGE)[within : within + size]

    def digest(self) -> bytes:
        """A hash of size and bytes."""
        if self._digest is None:
            state = hashlib.blake2b(self.size.to_bytes(8, "big"), digest_size=16)
            for index in sorted(self._pages):
                state.update(index.to_bytes(8, "big"))
                state.update(self._pages[index])
            self._digest = state.digest()
        return self._digest

    def _own(self) -> None:
        self._digest = None
        if self._shared:
            self._pages, self._previous, self._shared = dict(self._pages), dict(self._previous), False

    def _put(self, index: int, page: bytes, *, remember: bool) -> None:
        old = self._pages.get(index)
        if remember and old is not None:
            self._previous[index] = old
        if page == _ZERO_PAGE:
            self._pages.pop(index, None)
        else:
            self._pages[index] = page

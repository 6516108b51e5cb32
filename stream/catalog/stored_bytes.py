"""Sizes of streams: the payload of their sealed segments, from heads and chapters."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from .catalog import StreamCatalog
from .head import Head, StreamSegment


class StoredBytes:
    """Computes the stored payload of streams, and caches that of chapters, which do not change."""

    def __init__(self, catalog: StreamCatalog) -> None:
        self._catalog = catalog
        self._chapters: dict[str, dict[tuple[int, int], int]] = {}
        """For each stream, the payload of each chapter from a segment on."""

    async def of(self, head: Head) -> int:
        """The payload of the sealed segments of a stream.

        Raises:
            As ``StreamCatalog.chapter``.
        """
        known, sizes = self._chapters.get(head.stream_id, {}), dict[tuple[int, int], int]()
        for chapter in head.chapters:
            key = chapter.number, chapter.first_segment
            sizes[key] = known[key] if key in known else _size(await self._catalog.chapter(head.stream_id, chapter))
        self._chapters[head.stream_id] = sizes
        return sum(sizes.values()) + _size(head.segments)

    def forget_all_but(self, stream_ids: Iterable[str]) -> None:
        """Drop streams that no longer exist."""
        self._chapters = {each: self._chapters[each] for each in stream_ids if each in self._chapters}


def _size(segments: Iterable[StreamSegment]) -> int:
    return sum(segment.end.payload_bytes for segment in segments if segment.end is not None)


async def newest_first(catalog: StreamCatalog, head: Head) -> AsyncGenerator[StreamSegment, None]:
    """The sealed segments of a stream, the newest first.

    Raises:
        As ``StreamCatalog.chapter``.
    """
    for segment in reversed(head.segments):
        if segment.end is not None:
            yield segment
    for chapter in reversed(head.chapters):
        for segment in reversed(await catalog.chapter(head.stream_id, chapter)):
            yield segment

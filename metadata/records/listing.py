"""Lists record names, across pages."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ..store import MetadataStore


async def record_names(store: MetadataStore, prefix: str, after: str = "") -> AsyncIterator[str]:
    """Names of records with ``prefix``, after ``after``.

    Raises:
        MetadataUnavailable: the listing is incomplete.
    """
    start: str | None = after
    while start is not None:
        page = await store.list_records(prefix, start)
        for name in page.names:
            yield name
        start = page.next_after()

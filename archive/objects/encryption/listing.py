"""Lists a store with encrypted and plain objects in one order of keys.

An encrypted object has two parts, its bytes and its key. An object with only one of them is not listed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Final

from ..port import ObjectInfo, ObjectStore
from .format import plain_bytes_of

FOLDER: Final = "sealed/"
OBJECTS: Final = f"{FOLDER}objects/"
KEYS: Final = f"{FOLDER}keys/"

_BEHIND: Final = f"{FOLDER}~"
"""Sorts after every key of the folder, and before all later keys outside it."""
_PAGE_OBJECTS: Final = 1000


def whole(found: ObjectInfo) -> ObjectInfo:
    """Listing entry of an encrypted object: its own key, and the size of its plaintext."""
    return ObjectInfo(found.key.removeprefix(OBJECTS), plain_bytes_of(found.size_bytes), found.modified_at_ms)


async def listing(store: ObjectStore, prefix: str, after: str) -> AsyncIterator[Sequence[ObjectInfo]]:
    """Encrypted and plain objects, in pages; if both exist under a key, the encrypted one is listed."""
    plain, encrypted = _each(_plain(store, prefix, after)), _encrypted(store, prefix, after)
    page: list[ObjectInfo] = []
    async for ours, theirs in _joined(encrypted, plain):
        found = ours or theirs
        if found is not None:
            page.append(found)
        if len(page) >= _PAGE_OBJECTS:
            yield page
            page = []
    if page:
        yield page


async def halves(store: ObjectStore) -> AsyncIterator[ObjectInfo]:
    """Encrypted objects without a key, and keys without an object."""
    async for record, found in _joined(_under(store, KEYS), _under(store, OBJECTS)):
        half = (found or record) if found is None or record is None else None
        if half is not None:
            yield half


async def _encrypted(store: ObjectStore, prefix: str, after: str) -> AsyncIterator[ObjectInfo]:
    """Objects with both halves."""
    # If nothing is encrypted, this takes one request.
    keys = _under(store, KEYS, prefix, after)
    first = await anext(keys, None)
    if first is None:
        return
    async for record, found in _joined(_behind(first, keys), _under(store, OBJECTS, prefix, after)):
        if record is not None and found is not None:
            yield replace(found, size_bytes=plain_bytes_of(found.size_bytes))


async def _behind(first: ObjectInfo, rest: AsyncIterator[ObjectInfo]) -> AsyncIterator[ObjectInfo]:
    yield first
    async for found in rest:
        yield found


async def _under(store: ObjectStore, folder: str, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
    """Objects in a folder, with keys relative to it."""
    async for page in store.list(folder + prefix, folder + after if after else ""):
        for found in page:
            yield replace(found, key=found.key.removeprefix(folder))


async def _plain(store: ObjectStore, prefix: str, after: str) -> AsyncIterator[Sequence[ObjectInfo]]:
    """Plain objects. The listing restarts after the folder of encrypted ones."""
    async for page in store.list(prefix, after):
        outside = [found for found in page if not found.key.startswith(FOLDER)]
        if len(outside) == len(page):
            yield page
            continue
        before = [found for found in outside if found.key < FOLDER]
        if before:
            yield before
        break
    else:
        return
    async for page in store.list(prefix, max(after, _BEHIND)):
        yield page


async def _each(pages: AsyncIterator[Sequence[ObjectInfo]]) -> AsyncIterator[ObjectInfo]:
    async for page in pages:
        for found in page:
            yield found


async def _joined(
    left: AsyncIterator[ObjectInfo], right: AsyncIterator[ObjectInfo]
) -> AsyncIterator[tuple[ObjectInfo | None, ObjectInfo | None]]:
    """Merge two listings by key, ordered: both entries where the keys are equal."""
    one, other = await anext(left, None), await anext(right, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.key < other.key):
            yield one, None
            one = await anext(left, None)
        elif one is None or other.key < one.key:
            yield None, other
            other = await anext(right, None)
        else:
            yield one, other
            one, other = await anext(left, None), await anext(right, None)

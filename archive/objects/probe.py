"""Tells trouble with one object from trouble with the whole store.

A store may refuse a single object while it serves all others: a lifecycle rule has moved it to a storage class that has
to be restored first (Glacier), a policy denies its prefix, a legal hold forbids its deletion. A pass over many objects
names such an object, leaves it out and goes on. Where the store does not answer at all, or refuses everything, the pass
ends: each further object would cost a deadline, and say the same.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Final, Protocol, cast

from tallybook.core.errors import (
    ArchiveBusy,
    ArchiveDenied,
    ArchiveKeyMissing,
    ArchiveUnavailable,
    NewerFormat,
    ObjectDamaged,
    ObjectMissing,
    TallybookError,
)

from .port import ObjectInfo

OBJECT_ERRORS: Final = (
    ObjectMissing, ObjectDamaged, ArchiveKeyMissing, NewerFormat, ArchiveDenied, ArchiveUnavailable,
)  # fmt: skip
"""What may be wrong with one object: ask ``concerns_one_object`` whether it is."""


class Listed(Protocol):
    """The part of an ``ObjectStore`` that a probe needs."""

    def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages of all objects."""


class Findable(Listed, Protocol):
    """The part of an ``ObjectStore`` that finds one object."""

    async def info(self, key: str) -> ObjectInfo:
        """What a listing would show."""


async def check_answers(store: Listed) -> None:
    """Ask for the first page of a listing.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the store does not give it.
    """
    async with aclosing(cast("AsyncGenerator[object, None]", store.list())) as pages:
        await anext(pages, None)


async def concerns_one_object(store: Listed, error: TallybookError) -> bool:
    """Whether ``error``, which a request for one object has raised, says nothing of the others.

    Where the error alone does not tell, the store is asked for a listing.
    """
    if isinstance(error, ArchiveBusy):
        return False
    if isinstance(error, ArchiveKeyMissing) or not isinstance(error, ArchiveDenied | ArchiveUnavailable):
        return True
    try:
        await check_answers(store)
    except (ArchiveDenied, ArchiveUnavailable):
        return False
    return True


async def info_if_there(store: Findable, key: str) -> ObjectInfo | None:
    """What a listing would show of an object; ``None`` if there is none.

    Where keys may list only what begins with a prefix, S3 calls an object that is not there forbidden. So what is
    refused is looked for in a listing.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the store does not say, or refuses an object that is there.
    """
    try:
        return await store.info(key)
    except ObjectMissing:
        return None
    except ArchiveDenied:
        async for page in store.list(key):
            if any(found.key == key for found in page):
                raise
        return None

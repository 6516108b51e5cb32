"""Tells trouble with one object from trouble with the whole store.

A store may refuse a single object while it serves all others: a lifecycle rule has moved it to a storage class that has
to be restored first (Glacier), a policy denies its prefix, a legal hold forbids its deletion. A pass over many objects
names such an object, leaves it out and goes on. Where the store does not answer at all, or refuses everything, the pass
ends: each further object would cost a deadline, and say the same. So it does with objects that hang while listings are
answered, once several in a row have: that is what ``ObjectPass`` counts.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, Protocol, TypeVar, cast

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

_T = TypeVar("_T")

MOST_TIMEOUTS: Final = 5
"""Objects in a row that time out, after which a pass asks for no other: each takes a deadline, and all may."""

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


class ObjectPass:
    """A pass over many objects, which asks for no more once ``MOST_TIMEOUTS`` in a row have timed out."""

    def __init__(self, store: Listed) -> None:
        self._store = store
        self._timeouts = 0

    @property
    def ended(self) -> bool:
        """Whether it asks for no more."""
        return self._timeouts >= MOST_TIMEOUTS

    async def ask(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """What ``request``, which asks for one object, gives.

        Raises:
            ArchiveUnavailable: the pass has ended, and the object was not asked for.
            Exception: what ``request`` raises.
        """
        if self.ended:
            raise ArchiveUnavailable(f"it was not asked for: {self._timeouts} objects in a row have timed out")
        try:
            found = await request()
        except ArchiveUnavailable:
            raise
        except TallybookError:
            self._timeouts = 0
            raise
        self._timeouts = 0
        return found

    async def concerns_one_object(self, error: TallybookError) -> bool:
        """Whether ``error``, which ``ask`` has raised, says nothing of the others, but for how long they may take."""
        if self.ended:
            return True
        if not await concerns_one_object(self._store, error):
            return False
        self._timeouts += isinstance(error, ArchiveUnavailable)
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

"""Distinguishes errors of one object from errors of the whole store.

A store may refuse a single object while it serves all others: a lifecycle rule moved it to a storage class that must be
restored first (Glacier), a policy denies its prefix, a legal hold forbids its deletion. A pass over many objects
reports such an object, skips it and continues. If the store does not answer at all, or refuses everything, the pass
ends: each further object would cost a deadline and fail too. A pass also ends when several objects in a row time out
although listings are answered: ``ObjectPass`` counts that. Objects that time out are often adjacent (old, or in one
folder). So objects are requested in an order that separates neighbours (``spread``), and later passes request failed
objects last (``RequestOrder``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
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

MAX_TIMEOUTS: Final = 5
"""Consecutive time-outs after which a pass ends: each costs a deadline, and all objects may time out."""
MAX_REMEMBERED: Final = 10_000
"""Failed objects remembered, to be requested last."""

OBJECT_ERRORS: Final = (
    ObjectMissing, ObjectDamaged, ArchiveKeyMissing, NewerFormat, ArchiveDenied, ArchiveUnavailable,
)  # fmt: skip
"""Errors that may concern one object only: ``concerns_one_object`` tells."""


class Listable(Protocol):
    """The part of an ``ObjectStore`` that a probe needs."""

    def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages of all objects."""


class Findable(Listable, Protocol):
    """The part of an ``ObjectStore`` that finds one object."""

    async def info(self, key: str) -> ObjectInfo:
        """The object's listing entry."""


async def check_answers(store: Listable) -> None:
    """Request the first page of a listing.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the store does not return it.
    """
    async with aclosing(cast("AsyncGenerator[object, None]", store.list())) as pages:
        await anext(pages, None)


async def concerns_one_object(store: Listable, error: TallybookError) -> bool:
    """Whether ``error``, raised by a request for one object, concerns only that object.

    If the error alone does not tell, requests a listing.
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


def spread(items: Iterable[_T]) -> list[_T]:
    """The same items with neighbours far apart: first one of each half, then of each quarter, and so on."""
    given = list(items)
    bits = len(given).bit_length()
    return [given[at] for at in sorted(range(len(given)), key=lambda at: int(f"{at:0{bits}b}"[::-1], 2))]


class RequestOrder:
    """Order of objects over several passes: failed objects last, those with fewer failures first."""

    def __init__(self) -> None:
        self._failed: dict[str, int] = {}
        """Failures per object."""

    def failed(self, key: str) -> None:
        """Record a failed request for an object."""
        self._failed[key] = self._failed.pop(key, 0) + 1
        if len(self._failed) > MAX_REMEMBERED:
            del self._failed[next(iter(self._failed))]

    def has_failed(self, key: str) -> bool:
        """Whether a failure of the object is recorded."""
        return key in self._failed

    def order(self, items: Iterable[_T], key: Callable[[_T], str]) -> list[_T]:
        """The same items in the order of their requests."""
        return sorted(spread(items), key=lambda each: self._failed.get(key(each), 0))


class ObjectPass:
    """A pass over many objects, which ends once ``MAX_TIMEOUTS`` consecutive requests have timed out.

    Consecutive in the order of requests: of concurrent requests, those that time out finish last.
    """

    def __init__(self, store: Listable) -> None:
        self._store = store
        self._asked = 0
        self._at: dict[TallybookError, int] = {}
        """Number of each time-out that is not counted yet."""
        self._timed_out: set[int] = set()
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the pass sends no further requests."""
        return self._ended

    async def ask(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """Run ``request``, which requests one object.

        Raises:
            ArchiveUnavailable: the pass has ended, and the object was not requested.
            Exception: any error of ``request``.
        """
        if self.ended:
            raise ArchiveUnavailable(f"not requested, because {MAX_TIMEOUTS} objects in a row timed out")
        at, self._asked = self._asked, self._asked + 1
        try:
            return await request()
        except ArchiveUnavailable as error:
            self._at[error] = at
            raise

    async def concerns_one_object(self, error: TallybookError) -> bool:
        """Whether ``error``, raised by ``ask``, concerns only its object. Counts time-outs."""
        if self.ended:
            return True
        if not await concerns_one_object(self._store, error):
            return False
        if (at := self._at.pop(error, None)) is not None:
            self._timed_out.add(at)
            first, last = at, at
            while first - 1 in self._timed_out:
                first -= 1
            while last + 1 in self._timed_out:
                last += 1
            self._ended = self._ended or last - first + 1 >= MAX_TIMEOUTS
        return True


async def info_if_there(store: Findable, key: str) -> ObjectInfo | None:
    """The object's listing entry; ``None`` if there is no object.

    With keys that may list only a prefix, S3 reports a missing object as forbidden. So a refused object is looked up in
    a listing.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the store does not answer, or refuses an existing object.
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

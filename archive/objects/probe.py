"""Tells trouble with one object from trouble with the whole store.

A store may refuse a single object while it serves all others: a lifecycle rule has moved it to a storage class that has
to be restored first (Glacier), a policy denies its prefix, a legal hold forbids its deletion. A pass over many objects
names such an object, leaves it out and goes on. Where the store does not answer at all, or refuses everything, the pass
ends: each further object would cost a deadline, and say the same. So it does with objects that hang while listings are
answered, once several in a row have: that is what ``ObjectPass`` counts. What hangs often lies together, as what is old
or in one folder does. So objects are asked for in an order in which neighbours are far apart (``spread``), and passes
that follow one another leave those that failed for last (``Turns``).
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

MOST_TIMEOUTS: Final = 5
"""Objects in a row that time out, after which a pass asks for no other: each takes a deadline, and all may."""
MOST_REMEMBERED: Final = 10_000
"""Objects that failed, to be asked for last."""

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


def spread(items: Iterable[_T]) -> list[_T]:
    """The same items, neighbours far apart: first one of each half, then of each quarter, and so on."""
    given = list(items)
    bits = len(given).bit_length()
    return [given[at] for at in sorted(range(len(given)), key=lambda at: int(f"{at:0{bits}b}"[::-1], 2))]


class Turns:
    """In which order passes that follow one another ask for objects: those that failed come behind, and in turn."""

    def __init__(self) -> None:
        self._failed: dict[str, int] = {}
        """How often."""

    def failed(self, key: str) -> None:
        """Note that the store did not do what it was asked for with an object."""
        self._failed[key] = self._failed.pop(key, 0) + 1
        if len(self._failed) > MOST_REMEMBERED:
            del self._failed[next(iter(self._failed))]

    def has_failed(self, key: str) -> bool:
        """Whether that was noted of an object."""
        return key in self._failed

    def order(self, items: Iterable[_T], key: Callable[[_T], str]) -> list[_T]:
        """The same items, in the order in which they are to be asked for."""
        return sorted(spread(items), key=lambda each: self._failed.get(key(each), 0))


class ObjectPass:
    """A pass over many objects, which asks for no more once ``MOST_TIMEOUTS`` in a row have timed out.

    In a row means one after the other as they were asked for: of those that are under way at once the ones that hang
    come last.
    """

    def __init__(self, store: Listed) -> None:
        self._store = store
        self._asked = 0
        self._at: dict[TallybookError, int] = {}
        """The place of each time-out that was not counted so far."""
        self._timed_out: set[int] = set()
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether it asks for no more."""
        return self._ended

    async def ask(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """What ``request``, which asks for one object, gives.

        Raises:
            ArchiveUnavailable: the pass has ended, and the object was not asked for.
            Exception: what ``request`` raises.
        """
        if self.ended:
            raise ArchiveUnavailable(f"it was not asked for: {MOST_TIMEOUTS} objects in a row have timed out")
        at, self._asked = self._asked, self._asked + 1
        try:
            return await request()
        except ArchiveUnavailable as error:
            self._at[error] = at
            raise

    async def concerns_one_object(self, error: TallybookError) -> bool:
        """Whether ``error``, which ``ask`` has raised, says nothing of the others, but for how long they may take."""
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
            self._ended = self._ended or last - first + 1 >= MOST_TIMEOUTS
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

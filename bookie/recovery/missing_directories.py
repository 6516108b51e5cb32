"""Which directories of journals and entry logs are there, and which are lost: for a bookie that does not run.

A start refuses wherever list, settings and cookies do not agree (places.py). Here an operator wants to know, or has
said, that what cannot be found is lost. A place that carries its cookie is there, also at another path that the
settings name. Where the format file is lost, the list is made again from the cookies, in the order of the settings:
no journal is needed once it was replayed, so which order they had before does not matter.

A lost place that is still wanted stays in the list, and is made again under its old name. One that is not wanted any
more leaves the list. The parts of the data directory itself must be there whether they are used or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tallybook.core.errors import DamagedFile, ForeignDirectory
from tallybook.runtime.disk import Disk

from .cookie import Cookie
from .directories import Layout, why_lost
from .places import KINDS, OWN, Place, Places, places_of, title_at

_NOT_KNOWN: Final = "?"
"""Name of a place of which the list and the cookie are lost."""


@dataclass(frozen=True, slots=True)
class LostPlace:
    """A place that cannot be found, and why."""

    place: Place
    why: str
    wanted: bool
    """It is to be made again."""


@dataclass(frozen=True, slots=True)
class FoundPlaces:
    """``places`` are to be listed from now on, with the paths at which they are. Those that are ``lost`` among them."""

    places: Places
    lost: tuple[LostPlace, ...]

    def lost_of(self, kind: str) -> list[LostPlace]:
        """The lost ones of one kind."""
        return [lost for lost in self.lost if lost.place.kind == kind]


async def find_places(
    disk: Disk, layout: Layout, cookie: Cookie, listed: Places | None, wanted: Mapping[str, Sequence[str]]
) -> FoundPlaces:
    """Look for every place.

    Args:
        listed: what the format file says; ``None`` where it is lost.
        wanted: paths by kind, what the settings say.

    Raises:
        ForeignDirectory: one of the directories belongs to another bookie, or to another place.
        DiskFailed: one cannot be read.
    """
    search = _Search(disk, layout, cookie)
    paths = [(kind, path) for kind in KINDS for path in wanted[kind]]
    for kind, path in paths:
        await search.look(kind, path)
    if listed is None:
        listed = places_of([search.places.get(path) or search.unknown(kind, path) for kind, path in paths])
    at = {place.title: place.path for place in search.places.values()}
    kept: list[Place] = []
    lost: list[LostPlace] = []
    for place in (*listed, *_own_unlisted(layout, listed)):
        why = "" if place.title in at else await search.why_lost(place)
        is_wanted = place.name != _NOT_KNOWN and (place.name == OWN or place.path in wanted[place.kind])
        if why:
            lost.append(LostPlace(place, why, is_wanted))
        if place in tuple(listed) and (is_wanted or not why) and place.name != _NOT_KNOWN:
            kept.append(replace(place, path=at.get(place.title, place.path)))
    return FoundPlaces(places_of(kept), tuple(lost))


def _own_unlisted(layout: Layout, listed: Places) -> list[Place]:
    """Parts of the data directory that are not in use."""
    titles = {place.title for place in listed}
    own = [Place(kind, OWN, layout.file(kind)) for kind in KINDS]
    return [place for place in own if place.title not in titles]


class _Search:
    """Looks at one directory after the other."""

    def __init__(self, disk: Disk, layout: Layout, cookie: Cookie) -> None:
        self._disk = disk
        self._layout = layout
        self._cookie = cookie
        self.places: dict[str, Place] = {}
        """What is there, by its path."""

    async def look(self, kind: str, path: str) -> None:
        """See which place lies at a path of the settings."""
        if path == self._layout.file(kind):
            if not await why_lost(self._disk, path, self._cookie):
                self.places[path] = Place(kind, OWN, path)
            return
        title = await self._title_at(path)
        if title is not None:
            if not title.startswith(f"{kind}-"):
                raise ForeignDirectory(f"{path} is named for {kind}, and carries the cookie of {title}")
            self.places[path] = Place(kind, title.partition("-")[2], path)

    def unknown(self, kind: str, path: str) -> Place:
        """A place of the settings that carries no cookie, where there is no list."""
        return Place(kind, OWN if path == self._layout.file(kind) else _NOT_KNOWN, path)

    async def why_lost(self, place: Place) -> str:
        """Why a place is not where the list has it; nothing if it is."""
        if place.name == OWN:
            return await why_lost(self._disk, place.path, self._cookie)
        title = await self._title_at(place.path)
        if title == place.title:
            return ""
        if title is not None:
            raise ForeignDirectory(
                f"{place.path} is known as {place.title}, and carries the cookie of {title}: were two disks swapped?"
            )
        return f"{place.path} is missing or empty: it lost its cookie"

    async def _title_at(self, path: str) -> str | None:
        """``None`` for a cookie that is damaged, too: it says nothing."""
        try:
            return await title_at(self._disk, self._layout.root, self._cookie, path)
        except DamagedFile:
            return None

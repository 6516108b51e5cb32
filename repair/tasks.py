"""Work that was handed out: records in the metadata that name ledgers to be mended, taken by whoever is free.

A task is of many ledgers, so that ten thousand of them cost a few dozen records. Who works at one puts its name in, and
writes the record again every third of a lease; a task whose record has not changed for a whole lease, by the clock of
whoever looks, is taken over. That saves work and nothing else: two at one task copy the same bytes, and the
compare-and-set of each ledger's metadata decides.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.metadata.record_format import FIRST, check_format
from tallybook.metadata.record_json import NOT_UNDERSTOOD
from tallybook.metadata.store import BadVersion, MetadataStore, Ok, Unknown
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng

from .task_progress import NOTHING_KNOWN, TaskProgress, decode_progress

_log = logger("repair")

PREFIX: Final = "repair/tasks/"
LEDGERS_OF_A_TASK: Final = 256
MOST_LISTED: Final = 10_000
"""Tasks that are looked at; of a cluster with more, the rest follows once these are done."""
PAGE: Final = 100
MOST_READ: Final = 100
"""Tasks that are read until one can be taken. Each worker holds one, so a free one is found far sooner."""
MOST_SEEN: Final = 1_000
"""Tasks of others of which it is remembered since when nothing has changed."""

URGENT: Final = f"{PREFIX}0-"
"""How names of tasks begin about something that is known; they come before those of the periodic check."""
_LATER: Final = f"{URGENT}ffffffff-"
"""Of those, the ones that come behind the others: nothing is missing of what they move."""
_ROUTINE: Final = f"{PREFIX}1-"
_KINDS: Final = ((URGENT, _LATER), (_LATER, _ROUTINE), (_ROUTINE, f"{PREFIX}2-"))
"""How the names of each kind of task begin, and before what they end."""


@dataclass(frozen=True, slots=True)
class Task:
    """Ledgers to be mended.

    ``leaving``: bookies whose places others are to take. ``thorough``: look at what every bookie holds, not only at
    what the metadata say is missing. ``end``: recover those that are open, so that they can be mended.
    """

    ledger_ids: tuple[int, ...]
    leaving: frozenset[str] = frozenset()
    thorough: bool = False
    end: bool = False
    why: str = ""
    owner: str = ""
    beat: int = 0
    progress: TaskProgress = NOTHING_KNOWN
    """For people: nothing rests on it."""

    @property
    def urgent(self) -> bool:
        """Whether it is about something that is known, and not of the periodic check."""
        return bool(self.why)

    def encode(self) -> bytes:
        """As a record's value."""
        # Of a task of which nothing is known, a record says no more than it did before there was anything to say.
        progress = {"progress": self.progress.as_json()} if self.progress != NOTHING_KNOWN else {}
        return json.dumps(
            {
                "format": FIRST,
                "ledgers": list(self.ledger_ids),
                "leaving": sorted(self.leaving),
                "thorough": self.thorough,
                "end": self.end,
                "why": self.why,
                "owner": self.owner,
                "beat": self.beat,
                **progress,
            },
            separators=(",", ":"),
        ).encode()


def decode_task(name: str, value: bytes) -> Task:
    """The task in a record.

    Raises:
        DamagedFile: there is something else in it.
        NewerFormat: a newer Tallybook has written it.
    """
    try:
        found = json.loads(value)
        check_format(name, found)
        return Task(
            tuple(int(ledger_id) for ledger_id in found["ledgers"]),
            frozenset(str(name) for name in found["leaving"]),
            bool(found["thorough"]),
            bool(found["end"]),
            str(found["why"]),
            str(found["owner"]),
            int(found["beat"]),
            decode_progress(found.get("progress")),
        )
    except NOT_UNDERSTOOD as error:
        raise DamagedFile(f"the record {name} is no task of a repair: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Held:
    """A task and the version of its record, as its holder has written it, or as it was found."""

    name: str
    task: Task
    version: int


class TaskBoard:
    """The tasks of a cluster."""

    def __init__(self, store: MetadataStore, clock: Clock, rng: Rng, *, lease_s: float) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng
        self._lease_s = lease_s
        self._name = rng.uuid()
        self._seen: dict[str, tuple[int, float]] = {}
        """Of each task that somebody works at: the version of its record, and since when that is known."""

    async def publish(self, tasks: Iterable[Task], *, later: bool = False) -> int:
        """Hand out tasks; how many were, as far as is known. One that may or may not have been is found, or missed.

        Args:
            later: urgent ones come behind the other urgent ones.
        """
        published = 0
        urgent = _LATER if later else URGENT
        for task in tasks:
            name = f"{urgent if task.urgent else _ROUTINE}{self._rng.uuid()}"
            published += isinstance(await self._store.write_record(name, task.encode(), None), Ok)
        return published

    async def names(self) -> list[str]:
        """The names of all tasks, the urgent ones first.

        Raises:
            MetadataUnavailable: the store does not answer.
        """
        found: list[str] = []
        async with aclosing(self._listed(PREFIX, "")) as names:
            async for name in names:
                found.append(name)
                if len(found) == MOST_LISTED:
                    break
        return found

    async def read(self, names: Iterable[str]) -> dict[str, Task]:
        """Those of these tasks that are there still, and can be understood, by name.

        Raises:
            MetadataUnavailable: the store does not answer.
        """
        found = [await self._read(name) for name in names]
        return {held.name: held.task for held in found if held is not None}

    async def take(self) -> Held | None:
        """Take a task that nobody works at, or whose holder is silent; ``None`` if none was found.

        Each worker begins somewhere else in each kind, so that they do not all come to the same ones.

        Raises:
            MetadataUnavailable: the store does not answer.
        """
        now = self._clock.monotonic()
        left = MOST_READ
        for kind, end in _KINDS:
            async with aclosing(self._of_a_kind(kind, end)) as names:
                async for name in names:
                    if not left:
                        return None
                    left -= 1
                    found = await self._read(name)
                    if found is None or (found.task.owner and not self._is_silent(name, found.version, now)):
                        continue
                    progress = found.task.progress.at_rest
                    task = replace(found.task, owner=self._name, beat=found.task.beat + 1, progress=progress)
                    held = await self._write(name, task, found.version)
                    if held is not None:
                        self._seen.pop(name, None)
                        return held
        return None

    async def _of_a_kind(self, prefix: str, end: str) -> AsyncGenerator[str, None]:
        """Every name with this prefix that lies before ``end``: those behind a random one, then those before."""
        start = f"{prefix}{self._rng.uuid()}"
        for after, last in ((start, end), ("", min(start, end))):
            async with aclosing(self._listed(prefix, after)) as names:
                async for name in names:
                    if name > last:
                        break
                    yield name

    async def _listed(self, prefix: str, after: str) -> AsyncGenerator[str, None]:
        while True:
            page = await self._store.list_records(prefix, after, PAGE)
            for name in page.names:
                yield name
            following = page.next_after()
            if following is None:
                return
            after = following

    async def _read(self, name: str) -> Held | None:
        record = await self._store.read_record(name)
        if record is None:
            return None
        try:
            return Held(name, decode_task(name, record.value), record.version)
        except (DamagedFile, NewerFormat) as error:
            # The others are none the worse for it; ``fsck`` tells of it, too.
            _log.error("a task is passed over", task=name, error=error.message)
            return None

    def _is_silent(self, name: str, version: int, now: float) -> bool:
        if self._seen.get(name, (None, 0.0))[0] != version:
            self._seen.pop(name, None)
            self._seen[name] = version, now
            if len(self._seen) > MOST_SEEN:
                # The one whose holder was last heard of the longest ago: most likely it is done.
                del self._seen[next(iter(self._seen))]
            return False
        return now - self._seen[name][1] >= self._lease_s

    async def renew(self, held: Held, left: Iterable[int], progress: TaskProgress) -> Held | None:
        """Say that the holder is at work, and what is left; ``None`` if the task is not the holder's any more.

        Raises:
            MetadataUnavailable: the store does not answer.
        """
        task = replace(held.task, ledger_ids=tuple(left), beat=held.task.beat + 1, progress=progress)
        return await self._write(held.name, task, held.version)

    async def put_back(self, held: Held, left: Iterable[int], progress: TaskProgress) -> None:
        """Leave what is left of a task for whoever takes it next.

        Raises:
            MetadataUnavailable: the store does not answer; the task is taken over by somebody in time.
        """
        task = replace(held.task, ledger_ids=tuple(left), owner="", progress=progress.at_rest)
        await self._write(held.name, task, held.version)

    async def finish(self, held: Held) -> None:
        """The task is done, or what is left of it is for somebody else to find again.

        Raises:
            MetadataUnavailable: the store does not answer; the task is taken over by somebody in time.
        """
        version: int | None = held.version
        while version is not None and isinstance(await self._store.delete_record(held.name, version), BadVersion):
            # A renewal that was cut off may have landed.
            found = await self._store.read_record(held.name, linearizable=True)
            ours = found is not None and decode_task(held.name, found.value).owner == self._name
            version = found.version if found is not None and ours else None

    async def _write(self, name: str, task: Task, version: int) -> Held | None:
        result = await self._store.write_record(name, task.encode(), version)
        if isinstance(result, Ok):
            return Held(name, task, result.version)
        if isinstance(result, Unknown):
            found = await self._store.read_record(name, linearizable=True)
            if found is not None and found.value == task.encode():
                return Held(name, task, found.version)
        return None


def is_urgent(name: str) -> bool:
    """Whether a task of this name is about something that is known, and not of the periodic check."""
    return name.startswith(URGENT)


def tasks_of(
    ledger_ids: Iterable[int],
    *,
    leaving: frozenset[str] = frozenset(),
    thorough: bool,
    end: bool = False,
    why: str,
    expected: Mapping[int, int | None] | None = None,
) -> Iterable[Task]:
    """So many tasks as these ledgers make.

    Args:
        expected: how many bytes are to be copied for each, as far as that is known.
    """
    ledgers = list(ledger_ids)
    for at in range(0, len(ledgers), LEDGERS_OF_A_TASK):
        some = ledgers[at : at + LEDGERS_OF_A_TASK]
        sizes = [(expected or {}).get(ledger_id) for ledger_id in some]
        known = None if None in sizes else sum(size for size in sizes if size is not None)
        progress = TaskProgress(ledgers=len(some), expected_bytes=known)
        yield Task(tuple(some), leaving, thorough, end, why, progress=progress)

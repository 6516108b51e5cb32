"""Repair tasks: metadata records with ids of ledgers to repair, which the auditor publishes and replicators claim.

A task has many ledgers, so that ten thousand ledgers need a few dozen records. A replicator claims a task by writing
its name into the record, and renews it every third of a lease. If a record has not changed for a whole lease, by the
clock of another replicator, that one takes the task over. Leases only save work: if two replicators work at one task,
they copy the same bytes, and the compare-and-set of each ledger's metadata decides.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.metadata.records.format import FIRST, load_json, reporting_damage
from tallybook.metadata.store import BadVersion, MetadataStore, Ok, Unknown
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng

from .task_progress import NOTHING_KNOWN, TaskProgress, decode_progress

_log = logger("repair")

PREFIX: Final = "repair/tasks/"
LEDGERS_PER_TASK: Final = 256
MAX_LISTED: Final = 10_000
"""Maximum tasks that ``names`` lists."""
PAGE: Final = 100
MAX_READ: Final = 100
"""Maximum tasks that ``claim`` reads. Each replicator holds one, so a free one is found much earlier."""
MAX_OBSERVED: Final = 1_000
"""Maximum number of other replicators' tasks whose last change this one remembers."""

URGENT: Final = f"{PREFIX}0-"
"""Name prefix of tasks for a known problem. They sort before those of the periodic check."""
_LATER: Final = f"{URGENT}ffffffff-"
"""Name prefix of urgent tasks that come after the other urgent ones: drains, where no copy is missing."""
_ROUTINE: Final = f"{PREFIX}1-"
_KINDS: Final = ((URGENT, _LATER), (_LATER, _ROUTINE), (_ROUTINE, f"{PREFIX}2-"))
"""The name range of each kind of task: first prefix, and the prefix after the last name."""


@dataclass(frozen=True, slots=True)
class Task:
    """Ledgers to repair.

    Attributes:
        leaving: bookies to be replaced.
        thorough: ask every bookie what it holds, instead of trusting the metadata.
        end: recover ledgers that are open, so that their last fragment can be repaired.
        why: value of a ``RepairReason``; empty for the periodic check.
        owner: name of the replicator; empty while none works at it.
        beat: raised by each renewal.
    """

    ledger_ids: tuple[int, ...]
    leaving: frozenset[str] = frozenset()
    thorough: bool = False
    end: bool = False
    why: str = ""
    owner: str = ""
    beat: int = 0
    progress: TaskProgress = NOTHING_KNOWN
    """For display only."""

    @property
    def urgent(self) -> bool:
        """Whether it is about a known problem, not a task of the periodic check."""
        return bool(self.why)

    def encode(self) -> bytes:
        """The value of the task's record."""
        # Left out if empty, as in records of versions that did not have it.
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
    """Decode a record's value.

    Raises:
        DamagedFile: it is not a task.
        NewerFormat: a newer version of Tallybook has written it.
    """
    found = load_json(name, value)
    with reporting_damage(name):
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


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task and the version of its record, as last read or written."""

    name: str
    task: Task
    version: int


class TaskBoard:
    """The repair tasks of a cluster.

    Args:
        lease_s: seconds without a renewal after which a task can be taken over.
    """

    def __init__(self, store: MetadataStore, clock: Clock, rng: Rng, *, lease_s: float) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng
        self._lease_s = lease_s
        self._name = rng.uuid()
        self._seen: dict[str, tuple[int, float]] = {}
        """For each task that another replicator works at: the version of its record, and when it was first seen."""

    async def publish(self, tasks: Iterable[Task], *, later: bool = False) -> int:
        """Write tasks; returns how many certainly were. A task that was lost is published again by a later walk.

        Args:
            later: urgent tasks are claimed after the other urgent ones.
        """
        published = 0
        urgent = _LATER if later else URGENT
        for task in tasks:
            name = f"{urgent if task.urgent else _ROUTINE}{self._rng.uuid()}"
            published += isinstance(await self._store.write_record(name, task.encode(), None), Ok)
        return published

    async def names(self) -> list[str]:
        """The names of the first ``MAX_LISTED`` tasks, the urgent ones first.

        Raises:
            MetadataUnavailable: the store does not answer.
        """
        found: list[str] = []
        async with aclosing(self._listed(PREFIX, "")) as names:
            async for name in names:
                found.append(name)
                if len(found) == MAX_LISTED:
                    break
        return found

    async def read(self, names: Iterable[str]) -> dict[str, Task]:
        """Tasks by name, without those that are done or cannot be decoded.

        Raises:
            MetadataUnavailable: the store does not answer.
        """
        found = [await self._read(name) for name in names]
        return {held.name: held.task for held in found if held is not None}

    async def claim(self) -> TaskRecord | None:
        """Claim a task that is free or whose lease has expired; ``None`` if there is none.

        Each replicator starts at a random name of each kind, so that they do not all try the same tasks.

        Raises:
            MetadataUnavailable: the store does not answer.
        """
        now = self._clock.monotonic()
        left = MAX_READ
        for kind, end in _KINDS:
            async with aclosing(self._of_a_kind(kind, end)) as names:
                async for name in names:
                    if not left:
                        return None
                    left -= 1
                    found = await self._read(name)
                    if found is None or (found.task.owner and not self._is_expired(name, found.version, now)):
                        continue
                    progress = found.task.progress.at_rest
                    task = replace(found.task, owner=self._name, beat=found.task.beat + 1, progress=progress)
                    held = await self._write(name, task, found.version)
                    if held is not None:
                        self._seen.pop(name, None)
                        return held
        return None

    async def _of_a_kind(self, prefix: str, end: str) -> AsyncGenerator[str, None]:
        """Every name from ``prefix`` to ``end``, starting at a random one."""
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

    async def _read(self, name: str) -> TaskRecord | None:
        record = await self._store.read_record(name)
        if record is None:
            return None
        try:
            return TaskRecord(name, decode_task(name, record.value), record.version)
        except (DamagedFile, NewerFormat) as error:
            # The other tasks can still be done. ``fsck`` reports this one, too.
            _log.error("a repair task is skipped", task=name, error=error.message)
            return None

    def _is_expired(self, name: str, version: int, now: float) -> bool:
        if self._seen.get(name, (None, 0.0))[0] != version:
            self._seen.pop(name, None)
            self._seen[name] = version, now
            if len(self._seen) > MAX_OBSERVED:
                # The one that was first seen longest ago: most likely it is done.
                del self._seen[next(iter(self._seen))]
            return False
        return now - self._seen[name][1] >= self._lease_s

    async def renew(self, held: TaskRecord, left: Iterable[int], progress: TaskProgress) -> TaskRecord | None:
        """Renew the lease and record which ledgers are left; ``None`` if another replicator has taken the task over.

        Raises:
            MetadataUnavailable: the store does not answer.
        """
        task = replace(held.task, ledger_ids=tuple(left), beat=held.task.beat + 1, progress=progress)
        return await self._write(held.name, task, held.version)

    async def release(self, held: TaskRecord, left: Iterable[int], progress: TaskProgress) -> None:
        """Give up a task, with the ledgers that are left.

        Raises:
            MetadataUnavailable: the store does not answer; the task is taken over once its lease has expired.
        """
        task = replace(held.task, ledger_ids=tuple(left), owner="", progress=progress.at_rest)
        await self._write(held.name, task, held.version)

    async def finish(self, held: TaskRecord) -> None:
        """Delete a task. The auditor finds ledgers that could not be repaired again.

        Raises:
            MetadataUnavailable: the store does not answer; the task is taken over once its lease has expired.
        """
        version: int | None = held.version
        while version is not None and isinstance(await self._store.delete_record(held.name, version), BadVersion):
            # A renewal without an answer may have been applied.
            found = await self._store.read_record(held.name, linearizable=True)
            ours = found is not None and decode_task(held.name, found.value).owner == self._name
            version = found.version if found is not None and ours else None

    async def _write(self, name: str, task: Task, version: int) -> TaskRecord | None:
        result = await self._store.write_record(name, task.encode(), version)
        if isinstance(result, Ok):
            return TaskRecord(name, task, result.version)
        if isinstance(result, Unknown):
            found = await self._store.read_record(name, linearizable=True)
            if found is not None and found.value == task.encode():
                return TaskRecord(name, task, found.version)
        return None


def is_urgent(name: str) -> bool:
    """Whether this is the name of a task for a known problem, not of the periodic check."""
    return name.startswith(URGENT)


def make_tasks(
    ledger_ids: Iterable[int],
    *,
    leaving: frozenset[str] = frozenset(),
    thorough: bool,
    end: bool = False,
    why: str,
    expected: Mapping[int, int | None] | None = None,
) -> Iterable[Task]:
    """Tasks of up to ``LEDGERS_PER_TASK`` ledgers each.

    Args:
        expected: for each ledger, about how many bytes are to be copied, if known.
    """
    ledgers = list(ledger_ids)
    for at in range(0, len(ledgers), LEDGERS_PER_TASK):
        some = ledgers[at : at + LEDGERS_PER_TASK]
        sizes = [(expected or {}).get(ledger_id) for ledger_id in some]
        known = None if None in sizes else sum(size for size in sizes if size is not None)
        progress = TaskProgress(ledgers=len(some), expected_bytes=known)
        yield Task(tuple(some), leaving, thorough, end, why, progress=progress)

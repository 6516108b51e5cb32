"""Who of several processes does a job that needs doing only once: a leader, agreed on through one record.

The leader writes the record again every third of its *lease*, by compare-and-set. A candidate that has seen the same
version of the record for a whole lease, by its own monotonic clock, takes it over by compare-and-set. Nobody compares
wall clocks, and nobody asks another process for the time.

Why there are not two at once: a leader counts its lease from before it sent the write that renewed it, and begins to
stop its work when three quarters of that have passed. A candidate counts from after it has read what that write left,
which is later, and waits for all of it. So the work has a quarter of a lease to come to an end, and usually far more.

That takes clocks that run equally fast, a process that is not held up, and work that ends when it is cancelled. A
process that was stopped and goes on does not know that time has passed for others: until its next renewal is refused,
two may lead. Whatever a leader does must therefore be safe without a leader; leading saves work, and no promise may
rest on it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tallybook.core.errors import (
    Conflict,
    DamagedFile,
    InvalidArgument,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    TallybookError,
)
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks, unless_set

from .record_format import FIRST, check_format
from .record_json import NOT_UNDERSTOOD
from .store import MetadataStore, Ok, Record

RENEWALS: Final = 3
"""A lease is renewed so often while it lasts."""
WORKING_PART: Final = 0.75
"""Part of the lease after which the work is stopped; the rest is for it to end."""
LONGEST_LOOK_SECONDS: Final = 1.0
"""A candidate looks at least so often, so that it soon takes the place of a leader that has resigned."""
SHORTEST_PAUSE_SECONDS: Final = 0.01
PATIENT_LEASES: Final = 2
"""Leases after which one that leads on is not waited for: one that has died is found out after the first."""

_AWAY: Final = (MetadataUnavailable, MetadataOutcomeUnknown, TimeoutError)
"""The store does not answer, or not in time."""


class Leader(NamedTuple):
    """What a record says of who leads."""

    holder: str | None
    """Its name; ``None`` if nobody leads."""
    lease_s: float
    """The silence that others must wait for."""
    who: str
    """Where people find it; empty if it does not say."""


def decode_leader(record: str, value: bytes) -> Leader:
    """What the record of that name holds.

    Raises:
        DamagedFile: something else.
        NewerFormat: a newer Tallybook has written it.
    """
    try:
        stored = json.loads(value)
        check_format(record, stored)
        holder, lease_ms, who = stored["holder"], stored["lease_ms"], stored.get("who", "")
        lease_s = lease_ms / 1000
    except NOT_UNDERSTOOD as error:
        raise DamagedFile(f"the record {record} does not name a leader: {value[:100]!r}") from error
    if not (holder is None or isinstance(holder, str)) or not isinstance(lease_ms, int):
        raise DamagedFile(f"the record {record} does not name a leader: {value[:100]!r}")
    # Nothing hangs on it but what people are told.
    return Leader(holder, lease_s, who if isinstance(who, str) else "")


def _not_settled(record: str, error: Exception) -> MetadataUnavailable:
    why = error.message if isinstance(error, TallybookError) else "the metadata store did not answer in time"
    return MetadataUnavailable(f"{record}: it is not known who leads: {why}")


@dataclass(slots=True)
class _Term:
    """What the record held when it was last known to be ours, and what was sent since and may yet turn out to be."""

    version: int
    value: bytes
    renewed_at: float
    """Monotonic time from before the write was sent."""
    sent: dict[bytes, float] = field(default_factory=dict)


class Leadership:
    """One candidate. It may lead again and again, one term after the other.

    Args:
        store: where the record is.
        clock: for the lease, and for pauses.
        rng: names this candidate, and spreads the looks of several.
        record: name of the record. It must never be deleted while there are candidates.
        lease_s: seconds of silence after which another one takes over. Candidates may differ in it: each says
            in the record how long its own is, and nobody takes over sooner than that.

    Raises:
        InvalidArgument: the lease is not positive.
    """

    def __init__(self, store: MetadataStore, clock: Clock, rng: Rng, *, record: str, lease_s: float) -> None:
        if not lease_s > 0:
            raise InvalidArgument(f"a lease is longer than nothing, got {lease_s} s")
        self._store = store
        self._clock = clock
        self._rng = rng
        self._record = record
        self._lease = lease_s
        self._name = rng.uuid()
        self._who = ""
        self._writes = 0

    async def lead(self, work: Callable[[], Coroutine[Any, Any, object]], *, who: str = "") -> None:
        """Run ``work()`` whenever this candidate leads, until it ends by itself or this call is cancelled.

        When leadership is lost, ``work`` is cancelled and waited for; when it is won again, ``work()`` begins anew. At
        the end this candidate resigns, after the work has ended, so that another one takes over at its next look.

        Args:
            who: where people find this candidate while it leads.

        Raises:
            DamagedFile, NewerFormat: the record holds something else.
            Exception: what ``work`` raises.
        """
        self._who = who
        while not await self._serve(await self._win(), work):
            pass

    async def lead_once(self, work: Callable[[], Coroutine[Any, Any, object]], *, busy: str) -> None:
        """As ``lead``, but wait for another candidate no longer than ``PATIENT_LEASES``: each time, and of its lease.

        Args:
            busy: what to say of another one that leads on.

        Raises:
            Conflict: another one leads on.
            MetadataUnavailable: for so long it could not be settled who leads.
            DamagedFile, NewerFormat: the record holds something else.
            Exception: what ``work`` raises.
        """
        while not await self._serve(await self._win(busy), work):
            pass

    async def _serve(self, term: _Term, work: Callable[[], Coroutine[Any, Any, object]]) -> bool:
        """Do the work for as long as the term lasts; whether it ended by itself."""
        lost, ended = asyncio.Event(), False

        async def until_it_ends() -> None:
            nonlocal ended
            await work()
            ended = True

        async def keep() -> None:
            try:
                await self._keep(term)
            finally:
                lost.set()

        tasks = Tasks("leadership", lambda _name, _error: lost.set())
        keeper = tasks.spawn(keep(), name="renew")
        try:
            await unless_set(lost, until_it_ends())
        finally:
            # The lease is renewed until here: work that takes its time to end is not joined by another leader's.
            over = keeper.done()
            if over:
                sometimes("leader: has lost the lead")
            await tasks.close()
            if not over:
                await self._resign(term)
        if over:
            keeper.result()
        return ended

    # --- becoming the leader ------------------------------------------------------------------------------------------

    async def _win(self, busy: str = "") -> _Term:
        """Wait until nobody else leads, and take the lead; with ``busy``, as ``lead_once`` says."""
        seen: Record | None = None
        began = seen_at = self._clock.monotonic()
        lease, away = self._lease, None
        while True:
            pause = self._look_seconds()
            if busy and self._clock.monotonic() - began >= PATIENT_LEASES * lease:
                raise Conflict(busy) if away is None else _not_settled(self._record, away)
            try:
                # One request that hangs leaves time for another one.
                async with asyncio.timeout(self._lease / 4 if busy else None):
                    looked_at = self._clock.monotonic()
                    found = await self._store.read_record(self._record, linearizable=True)
                    holder, lease = self._holder(found)
                    if found is None or found != seen:
                        # Only from now on is it known to have stood still.
                        seen, seen_at = found, self._clock.monotonic()
                    if holder in (None, self._name) or looked_at - seen_at >= lease:
                        term = await self._take(found)
                        if term is not None:
                            if holder not in (None, self._name):
                                sometimes("leader: takes over from one that fell silent")
                            return term
                    else:
                        pause = min(pause, max(SHORTEST_PAUSE_SECONDS, seen_at + lease - self._clock.monotonic()))
                away = None
            except _AWAY as error:
                # It is looked at again; what was seen before still counts, for versions only grow.
                away = error
            await self._clock.sleep(pause)

    def _look_seconds(self) -> float:
        return min(LONGEST_LOOK_SECONDS, self._lease / RENEWALS) * (0.5 + self._rng.random() / 2)

    async def _take(self, found: Record | None) -> _Term | None:
        """Write this candidate into the record; ``None`` if it may not have worked."""
        began, value = self._clock.monotonic(), self._value(self._name)
        result = await self._store.write_record(self._record, value, None if found is None else found.version)
        return _Term(result.version, value, began) if isinstance(result, Ok) else None

    def _value(self, holder: str | None) -> bytes:
        """What the record is to hold. No two are alike, so what is found tells which write landed."""
        self._writes += 1
        lease_ms = round(self._lease * 1000)
        told = {"holder": holder, "lease_ms": lease_ms, "by": self._name, "write": self._writes, "who": self._who}
        return json.dumps({"format": FIRST, **told}).encode()

    def _holder(self, found: Record | None) -> tuple[str | None, float]:
        """Who leads by the record, ``None`` if nobody does, and the seconds of silence that end it."""
        if found is None:
            return None, self._lease
        leader = decode_leader(self._record, found.value)
        return leader.holder, max(self._lease, leader.lease_s)

    # --- staying the leader -------------------------------------------------------------------------------------------

    async def _keep(self, term: _Term) -> None:
        """Renew the lease again and again; return when it is lost, or could not be renewed for too long."""
        step = self._lease / RENEWALS
        pause = step
        while True:
            left = term.renewed_at + self._lease * WORKING_PART - self._clock.monotonic()
            await self._clock.sleep(max(0.0, min(pause, left)))
            left = term.renewed_at + self._lease * WORKING_PART - self._clock.monotonic()
            if left <= 0:
                return
            pause = step / 4
            try:
                # One request that hangs leaves time for another one.
                async with asyncio.timeout(min(left, self._lease / 4)):
                    if not await self._write(term, self._value(self._name)):
                        return
            except _AWAY:
                continue
            if not term.sent:
                pause = max(0.0, term.renewed_at + step - self._clock.monotonic())

    async def _write(self, term: _Term, value: bytes) -> bool:
        """Write the record over what this candidate wrote last; false if somebody else has written it.

        ``term.value`` tells what it holds now, which is ``value`` only if that has landed.
        """
        term.sent[value] = began = self._clock.monotonic()
        result = await self._store.write_record(self._record, value, term.version)
        if not isinstance(result, Ok):
            # Refused, perhaps since an earlier write landed whose answer was lost; or this one may have landed.
            return await self._read_back(term)
        term.version, term.value, term.renewed_at = result.version, value, began
        term.sent.clear()
        return True

    async def _read_back(self, term: _Term) -> bool:
        found = await self._store.read_record(self._record, linearizable=True)
        if found is None or (found.value not in term.sent and found.version != term.version):
            return False
        if found.value in term.sent:
            term.version, term.value, term.renewed_at = found.version, found.value, term.sent[found.value]
            # Whatever else was sent was over an earlier version, and can no longer land.
            term.sent.clear()
        return True

    # --- leaving ------------------------------------------------------------------------------------------------------

    async def _resign(self, term: _Term) -> None:
        """Name nobody in the record, if that can be done soon; else the others wait for the lease to end."""
        try:
            async with asyncio.timeout(self._lease / RENEWALS):
                value = self._value(None)
                while await self._write(term, value) and term.value != value:
                    await self._clock.sleep(SHORTEST_PAUSE_SECONDS)
        except _AWAY:
            return

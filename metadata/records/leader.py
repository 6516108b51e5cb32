"""Leader election: several processes agree through one record which of them does a job.

The leader rewrites the record every third of its *lease*, by compare-and-set. A candidate that has seen the same
version of the record for a whole lease, by its own monotonic clock, takes it over by compare-and-set. Wall clocks are
never compared between processes.

A leader counts its lease from before it sent the renewing write, and stops its work after three quarters of it; a
candidate counts from after it has read that write. So the work has at least a quarter of a lease to end.

This assumes clocks of equal speed, and work that ends when it is cancelled. A process that was suspended still believes
that it leads until its next renewal is refused. So leading saves duplicate work, and no guarantee may depend on it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tallybook.core.coverage import sometimes
from tallybook.core.errors import (
    Conflict,
    DamagedFile,
    InvalidArgument,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    TallybookError,
)
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import jittered
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks, run_until_set

from ..store import MetadataRecord, MetadataStore, Ok
from .format import FIRST, check_format
from .json_errors import DECODE_ERRORS

RENEWALS: Final = 3
"""Renewals per lease."""
WORK_SHARE: Final = 0.75
"""Share of the lease after which the work is stopped; the rest is for it to end."""
MAX_POLL_SECONDS: Final = 1.0
"""Maximum pause between polls of a candidate, so that it soon replaces a leader that resigned."""
MIN_PAUSE_SECONDS: Final = 0.01
MAX_WAIT_LEASES: Final = 2
"""Leases after which ``lead_once`` gives up: the first is enough to detect a dead leader."""

_AWAY: Final = (MetadataUnavailable, MetadataOutcomeUnknown, TimeoutError)
"""Errors of a store that does not answer in time."""


class Leader(NamedTuple):
    """Decoded content of a leader record."""

    holder: str | None
    """Its name; ``None``: there is no leader."""
    lease_s: float
    """Lease time that others must wait for."""
    who: str
    """Address or name for people; may be empty."""


def decode_leader(record: str, value: bytes) -> Leader:
    """Decode a leader record.

    Raises:
        DamagedFile: the record is invalid.
        NewerFormat: a newer Tallybook has written it.
    """
    try:
        stored = json.loads(value)
        check_format(record, stored)
        holder, lease_ms, who = stored["holder"], stored["lease_ms"], stored.get("who", "")
        lease_s = lease_ms / 1000
    except DECODE_ERRORS as error:
        raise DamagedFile(f"the record {record} does not name a leader: {value[:100]!r}") from error
    if not (holder is None or isinstance(holder, str)) or not isinstance(lease_ms, int):
        raise DamagedFile(f"the record {record} does not name a leader: {value[:100]!r}")
    # For display only.
    return Leader(holder, lease_s, who if isinstance(who, str) else "")


def _leader_unknown(record: str, error: Exception) -> MetadataUnavailable:
    why = error.message if isinstance(error, TallybookError) else "the metadata store did not answer in time"
    return MetadataUnavailable(f"{record}: it is not known who leads: {why}")


@dataclass(slots=True)
class _Term:
    """The record when it was last known to be ours, and writes sent since whose outcome is unknown."""

    version: int
    value: bytes
    renewed_at: float
    """Monotonic time before the write was sent."""
    sent: dict[bytes, float] = field(default_factory=dict)


class Leadership:
    """One candidate. It may lead several times, one term after the other.

    Args:
        store: the metadata store.
        clock: for the lease, and for pauses.
        rng: gives the candidate its name, and jitter between candidates.
        record: name of the record. It must never be deleted while there are candidates.
        lease_s: seconds of silence after which another candidate takes over. May differ between candidates: each
            writes its own lease into the record, and no candidate takes over sooner.

    Raises:
        InvalidArgument: the lease is not positive.
    """

    def __init__(self, store: MetadataStore, clock: Clock, rng: Rng, *, record: str, lease_s: float) -> None:
        if not lease_s > 0:
            raise InvalidArgument(f"a lease must be longer than 0 s, got {lease_s} s")
        self._store = store
        self._clock = clock
        self._rng = rng
        self._record = record
        self._lease = lease_s
        self._name = rng.uuid()
        self._who = ""
        self._writes = 0

    async def lead(self, work: Callable[[], Coroutine[Any, Any, object]], *, who: str = "") -> None:
        """Run ``work()`` while this candidate leads, until ``work`` returns or this call is cancelled.

        When leadership is lost, ``work`` is cancelled and awaited; when it is won again, ``work()`` starts again. At
        the end, after ``work`` has ended, this candidate resigns, so that another one takes over at its next poll.

        Args:
            who: address or name of this candidate for people.

        Raises:
            DamagedFile, NewerFormat: the record is invalid, or of a newer format.
            Exception: any error of ``work``.
        """
        self._who = who
        while not await self._serve(await self._win(), work):
            pass

    async def lead_once(self, work: Callable[[], Coroutine[Any, Any, object]], *, busy: str) -> None:
        """As ``lead``, but wait for another leader at most ``MAX_WAIT_LEASES`` of its leases, each time.

        Args:
            busy: message of the Conflict error.

        Raises:
            Conflict: another candidate still leads.
            MetadataUnavailable: the leader could not be determined for that time.
            DamagedFile, NewerFormat: the record is invalid, or of a newer format.
            Exception: any error of ``work``.
        """
        while not await self._serve(await self._win(busy), work):
            pass

    async def _serve(self, term: _Term, work: Callable[[], Coroutine[Any, Any, object]]) -> bool:
        """Run the work during the term; true if it ended by itself."""
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
        renewal = tasks.spawn(keep(), name="renew")
        try:
            await run_until_set(lost, until_it_ends())
        finally:
            # The lease is renewed until here: no other leader starts while the work is still ending.
            over = renewal.done()
            if over:
                sometimes("leader: lost the lease")
            await tasks.close()
            if not over:
                await self._resign(term)
        if over:
            renewal.result()
        return ended

    # --- becoming the leader ------------------------------------------------------------------------------------------

    async def _win(self, busy: str = "") -> _Term:
        """Wait until there is no other leader, and take the lead; ``busy`` as for ``lead_once``."""
        seen: MetadataRecord | None = None
        began = seen_at = self._clock.monotonic()
        lease, away = self._lease, None
        while True:
            pause = self._poll_seconds()
            if busy and self._clock.monotonic() - began >= MAX_WAIT_LEASES * lease:
                raise Conflict(busy) if away is None else _leader_unknown(self._record, away)
            try:
                # The time-out leaves time for another request if one hangs.
                async with asyncio.timeout(self._lease / 4 if busy else None):
                    polled_at = self._clock.monotonic()
                    found = await self._store.read_record(self._record, linearizable=True)
                    holder, lease = self._holder(found)
                    if found is None or found != seen:
                        # The record is known to be unchanged only from now on.
                        seen, seen_at = found, self._clock.monotonic()
                    if holder in (None, self._name) or polled_at - seen_at >= lease:
                        term = await self._take(found)
                        if term is not None:
                            if holder not in (None, self._name):
                                sometimes("leader: takes over from one that is silent")
                            return term
                    else:
                        pause = min(pause, max(MIN_PAUSE_SECONDS, seen_at + lease - self._clock.monotonic()))
                away = None
            except _AWAY as error:
                # Poll again; earlier observations remain valid, since versions only grow.
                away = error
            await self._clock.sleep(pause)

    def _poll_seconds(self) -> float:
        return jittered(self._rng, min(MAX_POLL_SECONDS, self._lease / RENEWALS))

    async def _take(self, found: MetadataRecord | None) -> _Term | None:
        """Write this candidate into the record; ``None`` if that may have failed."""
        began, value = self._clock.monotonic(), self._value(self._name)
        result = await self._store.write_record(self._record, value, None if found is None else found.version)
        return _Term(result.version, value, began) if isinstance(result, Ok) else None

    def _value(self, holder: str | None) -> bytes:
        """A new value of the record. All values are unique, so the value found tells which write was applied."""
        self._writes += 1
        lease_ms = round(self._lease * 1000)
        content = {"holder": holder, "lease_ms": lease_ms, "by": self._name, "write": self._writes, "who": self._who}
        return json.dumps({"format": FIRST, **content}).encode()

    def _holder(self, found: MetadataRecord | None) -> tuple[str | None, float]:
        """Name of the leader, ``None`` if there is none, and its lease in seconds."""
        if found is None:
            return None, self._lease
        leader = decode_leader(self._record, found.value)
        return leader.holder, max(self._lease, leader.lease_s)

    # --- staying the leader -------------------------------------------------------------------------------------------

    async def _keep(self, term: _Term) -> None:
        """Renew the lease repeatedly; return when it is lost, or could not be renewed in time."""
        step = self._lease / RENEWALS
        pause = step
        while True:
            left = term.renewed_at + self._lease * WORK_SHARE - self._clock.monotonic()
            await self._clock.sleep(max(0.0, min(pause, left)))
            left = term.renewed_at + self._lease * WORK_SHARE - self._clock.monotonic()
            if left <= 0:
                return
            pause = step / 4
            try:
                # The time-out leaves time for another request if one hangs.
                async with asyncio.timeout(min(left, self._lease / 4)):
                    if not await self._write(term, self._value(self._name)):
                        return
            except _AWAY:
                continue
            if not term.sent:
                pause = max(0.0, term.renewed_at + step - self._clock.monotonic())

    async def _write(self, term: _Term, value: bytes) -> bool:
        """Overwrite this candidate's last write; false if another process has written the record.

        ``term.value`` is the current value afterwards; it is ``value`` only if the write was applied.
        """
        term.sent[value] = began = self._clock.monotonic()
        result = await self._store.write_record(self._record, value, term.version)
        if not isinstance(result, Ok):
            # An earlier write with a lost answer may have been applied, or this one.
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
            # All other writes sent were for an earlier version, and can no longer be applied.
            term.sent.clear()
        return True

    # --- leaving ------------------------------------------------------------------------------------------------------

    async def _resign(self, term: _Term) -> None:
        """Remove the leader's name from the record if possible soon; otherwise others wait for the lease to end."""
        try:
            async with asyncio.timeout(self._lease / RENEWALS):
                value = self._value(None)
                while await self._write(term, value) and term.value != value:
                    await self._clock.sleep(jittered(self._rng, MIN_PAUSE_SECONDS))
        except _AWAY:
            return

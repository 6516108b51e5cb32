"""The metadata store of a simulated cluster, and all that can happen between it and its clients.

Every client and every bookie has a *session*. An operation travels to the store, takes effect
there at one moment, and its answer travels back; each way takes time, and while the session is *cut* nothing gets
through. A write whose answer is lost is unknown to the client, whether it took effect or not, and it may still take
effect later. A session that was not heard of for too long, because it is cut or its process is frozen or dead,
*expires*, and what follows is what follows with ZooKeeper: its registrations are gone, nobody knows of the writes
under way, nothing gets through until the process has another session, and then every watch tells, as nobody knows
what it has missed. Reads that need not be linearizable may be old, and watches may tell late.

What takes effect does so outside of the client's process: a request that was sent lands also if the client is frozen.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from tallybook.core.errors import MetadataOutcomeUnknown, MetadataUnavailable, NoSuchLedger, TallybookError
from tallybook.core.ids import NO_IDENTITY
from tallybook.metadata.memory import MemoryMetadata, MemoryRegistration
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import (
    BadVersion,
    BookieInfo,
    Deletion,
    LedgerPage,
    LedgerWatch,
    MembershipWatch,
    Ok,
    Record,
    RecordPage,
    Unknown,
    Versioned,
    WriteResult,
)
from tallybook.metadata.watch import Wakeup
from tallybook.runtime.deterministic import Gate, SimClock, outside
from tallybook.runtime.rng import Rng

from .at_once import at_once
from .registration import SimRegistration

T = TypeVar("T")

OnChange = Callable[[int, LedgerMetadata | None, LedgerMetadata | None], None]
"""Told of every change of a ledger as it takes effect: its id, the value before, the value after."""

_CLOCK: Final = SimClock()

_EXPIRED: Final = object()
"""Stands for the answer to what was under way when its session expired."""

LATEST_SECONDS: Final = 3.0
"""How late a write may still take effect whose answer was lost."""


@dataclass(slots=True)
class MetadataFaults:
    """Chances of what goes wrong with one operation, and times in seconds."""

    unavailable: float = 0.0
    """It is refused, and not done."""
    applied: float = 0.0
    """A write takes effect and its answer is lost."""
    lost: float = 0.0
    """A write is lost on the way there."""
    late: float = 0.0
    """A write takes effect after its client was told that nobody knows."""
    stale: float = 0.0
    """A read that need not be linearizable is old."""
    partial: float = 0.0
    """A listing breaks off half way."""
    slow_watch: float = 0.0
    """A watch tells late."""
    delay_seconds: tuple[float, float] = (0.0005, 0.003)
    watch_delay_seconds: float = 2.0
    reconnect_seconds: float = 1.0
    """At most so long after one session has expired the next one begins."""


class SimMetadata:
    """What all sessions share.

    Args:
        faults: may be changed while it runs.
        session_seconds: how long a session that is not heard of lives on.
        timeout_seconds: how long a client waits for an answer.
    """

    def __init__(self, rng: Rng, faults: MetadataFaults, *, session_seconds: float, timeout_seconds: float) -> None:
        self.shared = MemoryMetadata(rng.fork("shared"))
        self.faults = faults
        self.session_seconds = session_seconds
        self.timeout_seconds = timeout_seconds
        self.versions: dict[int, list[Versioned]] = {}
        """Every value that each ledger ever had, the last one in force unless it is deleted."""
        self.lives: Counter[str] = Counter()
        """How often a record of each name was made."""
        self.on_change: OnChange = _nobody_listens
        self.sessions: dict[str, MetadataSession] = {}
        self.away = False
        """Nobody gets through."""
        self._rng = rng.fork("network")
        self._context = outside()
        self._sessions = 0

    def session(self, name: str, gate: Gate) -> MetadataSession:
        """A session of the process called ``name``; it takes the place of an earlier one."""
        self._sessions += 1
        session = MetadataSession(self, name, gate, self._rng.fork(f"session {self._sessions}"))
        self.sessions[name] = session
        return session

    def value(self, ledger_id: int) -> LedgerMetadata | None:
        """The value in force."""
        return self.versions[ledger_id][-1].value if ledger_id in self.shared.ledgers else None

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Let something happen that no process has a hand in."""
        asyncio.get_running_loop().call_later(seconds, action, context=self._context)

    def go_away(self) -> None:
        """Let nobody through until ``heal``."""
        self.away = True
        for session in self.sessions.values():
            session.lose_touch()

    def heal(self) -> None:
        """Let everybody through again."""
        self.away = False
        for session in self.sessions.values():
            session.heal()

    def changed(self, ledger_id: int, after: Versioned | None) -> None:
        """A change of a ledger has taken effect."""
        versions = self.versions.setdefault(ledger_id, [])
        before = versions[-1].value if versions else None
        if after is not None:
            versions.append(after)
        self.on_change(ledger_id, before, None if after is None else after.value)


class MetadataSession:
    """One process's way to the store: ``store`` and ``membership`` are its ports."""

    def __init__(self, metadata: SimMetadata, name: str, gate: Gate, rng: Rng) -> None:
        self.metadata = metadata
        self.name = name
        self.rng = rng
        self._gate = gate
        self._cut = False
        self._healed = asyncio.Event()
        if not metadata.away:
            self._healed.set()
        self._closed = False
        self._silences = 0
        self._sessions_due = 0
        self._under_way: dict[asyncio.Future[Any], None] = {}
        self._watches: dict[_SimWatch, None] = {}
        self._client = metadata.shared.client()
        self.registrations: list[MemoryRegistration] = []
        self.seen: dict[int, int] = {}
        self.seen_records: dict[str, Record | None] = {}
        self.store = SimStore(self)
        self.membership = SimMembership(self)

    @property
    def inner(self) -> tuple[Any, Any]:
        """Store and membership as they are at the store itself."""
        return self._client.store, self._client.membership

    @property
    def through(self) -> bool:
        """Whether anything gets through."""
        return not self._cut and not self.metadata.away and not self._sessions_due

    @property
    def heard(self) -> bool:
        """Whether the store hears of this process."""
        return self.through and self._gate.open and not self._closed

    def cut(self) -> None:
        """Let nothing through until ``heal``."""
        self._cut = True
        self.lose_touch()

    def lose_touch(self) -> None:
        """Nothing gets through from now on."""
        self._healed.clear()
        self.watch_over()

    def heal(self) -> None:
        """Let everything through again."""
        self._cut = False
        if self.through:
            self._healed.set()

    def watch_over(self) -> None:
        """The process may not be heard of from now on; if it stays so, its session expires."""
        self._silences += 1
        self.metadata.later(self.metadata.session_seconds, lambda: self._expire_unless_heard(self._silences))

    def end(self) -> None:
        """The process is dead; the store learns of it when the session expires."""
        self._closed = True
        self.watch_over()

    def expire(self) -> None:
        """The store gives the session up; the process goes on under another one, a little later."""
        self._leave()
        for answer in self._under_way:
            if not answer.done():
                answer.set_result(_EXPIRED)
        if not self._closed:
            self._sessions_due += 1
            self._healed.clear()
            self.metadata.later(self.metadata.faults.reconnect_seconds * self.rng.random(), self._begin_again)

    def watching(self, watch: _SimWatch) -> None:
        """A watch that has to tell when another session begins."""
        self._watches[watch] = None

    def watched(self, watch: _SimWatch) -> None:
        """A watch that is over."""
        self._watches.pop(watch, None)

    async def close(self) -> None:
        """Leave in good order."""
        if not self._closed:
            self._closed = True
            self._leave()

    async def until_through(self) -> None:
        """Return when the store can be heard."""
        while not self.through:
            # One whose place another has taken is not told when the store goes away.
            self._healed.clear()
            await self._healed.wait()

    async def ask(self, name: str, effect: Callable[[], Coroutine[Any, Any, T]], *, writes: bool = False) -> T:
        """Carry one operation to the store and its answer back.

        Raises:
            MetadataUnavailable: there was no answer, and the operation had no effect, or was a read.
            MetadataOutcomeUnknown: there was no answer to a write.
        """
        if self._closed:
            raise MetadataUnavailable(f"the session of {self.name} is closed")
        while True:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._under_way[answer] = None
            try:
                found = await self._attempt(name, effect, answer, writes=writes)
            finally:
                del self._under_way[answer]
            if found is not _EXPIRED:
                return cast("T", found)
            if writes:
                raise MetadataOutcomeUnknown(f"{name}: the session has expired")
            await self.until_through()

    async def _attempt(
        self, name: str, effect: Callable[[], Coroutine[Any, Any, T]], answer: asyncio.Future[Any], *, writes: bool
    ) -> Any:
        low, high = self.metadata.faults.delay_seconds
        there = low + (high - low) * self.rng.random()
        fault = self._draw(writes)
        certainly_not = fault == "unavailable" or (not self.through and self.rng.random() < 0.5)
        if fault == "late":
            self.metadata.later(there + LATEST_SECONDS * self.rng.random(), lambda: at_once(effect))
        elif fault in ("", "applied") and not certainly_not:
            self.metadata.later(there, lambda: self._land(effect, answer, lost=fault == "applied"))
        if fault and self.through:
            await _CLOCK.sleep(there * 2)
        else:
            try:
                async with asyncio.timeout(self.metadata.timeout_seconds):
                    return await answer
            except TimeoutError:
                pass
        if writes and not certainly_not:
            raise MetadataOutcomeUnknown(f"{name}: no answer")
        raise MetadataUnavailable(f"{name}: the store does not answer")

    def _draw(self, writes: bool) -> str:
        faults = self.metadata.faults
        draw = self.rng.random()
        chances = [("unavailable", faults.unavailable)]
        if writes:
            chances += [("applied", faults.applied), ("lost", faults.lost), ("late", faults.late)]
        for fault, chance in chances:
            draw -= chance
            if draw < 0:
                return fault
        return ""

    def _leave(self) -> None:
        for registration in self.registrations:
            self.metadata.shared.drop(registration)
        self.registrations.clear()

    def _begin_again(self) -> None:
        """There is another session."""
        self._sessions_due -= 1
        if self.through:
            self._healed.set()
        for watch in list(self._watches):
            watch.tell()

    def _land(self, effect: Callable[[], Coroutine[Any, Any, T]], answer: asyncio.Future[Any], *, lost: bool) -> None:
        """The request has arrived, if it gets through; the answer goes back, unless it is lost."""
        if not self.through:
            return
        result = at_once(effect)
        low, high = self.metadata.faults.delay_seconds
        if not lost:
            self.metadata.later(low + (high - low) * self.rng.random(), lambda: self._answer(answer, result))

    def _answer(self, answer: asyncio.Future[Any], result: T | TallybookError) -> None:
        if not self.through or answer.done():
            return
        if isinstance(result, TallybookError):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def _expire_unless_heard(self, silences: int) -> None:
        if not self.heard and silences == self._silences:
            self.expire()


class SimStore:
    """A ``MetadataStore`` over a session."""

    def __init__(self, session: MetadataSession) -> None:
        self._session = session
        self._metadata = session.metadata
        self._inner = session.inner[0]

    async def cluster_id(self) -> str:
        """See the port."""
        return await self._session.ask("cluster_id", self._inner.cluster_id)

    async def next_ledger_id(self) -> int:
        """See the port."""
        return await self._session.ask("next_ledger_id", self._inner.next_ledger_id)

    async def id_counter(self) -> int:
        """See the port."""
        return await self._session.ask("id_counter", self._inner.id_counter)

    async def raise_id_counter(self, at_least: int) -> None:
        """See the port."""
        await self._session.ask("raise_id_counter", lambda: self._inner.raise_id_counter(at_least), writes=True)

    async def create_ledger(self, metadata: LedgerMetadata) -> Versioned:
        """See the port."""

        async def create() -> Versioned:
            known = metadata.ledger_id in self._metadata.shared.ledgers
            created = cast("Versioned", await self._inner.create_ledger(metadata))
            if not known:
                self._metadata.changed(metadata.ledger_id, created)
            return created

        created = await self._session.ask("create_ledger", create, writes=True)
        self._saw(metadata.ledger_id, created.version)
        return created

    async def read_ledger(self, ledger_id: int, *, linearizable: bool = False) -> Versioned:
        """See the port."""
        stale = not linearizable and self._session.rng.random() < self._metadata.faults.stale

        async def read() -> Versioned:
            current = cast("Versioned", await self._inner.read_ledger(ledger_id))
            return self._old(ledger_id, current) if stale else current

        found = await self._session.ask("read_ledger", read)
        self._saw(ledger_id, found.version)
        return found

    def _old(self, ledger_id: int, current: Versioned) -> Versioned:
        """A value that this session may still see: not older than the last one it saw, and perhaps none yet."""
        seen = self._session.seen.get(ledger_id, 0)
        possible = [old for old in self._metadata.versions[ledger_id] if seen <= old.version <= current.version]
        at = self._session.rng.randint(0 if seen else -1, len(possible) - 1)
        if at < 0:
            raise NoSuchLedger(f"there is no ledger {ledger_id} yet")
        return possible[at]

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        """See the port."""

        async def update() -> WriteResult:
            result = cast("WriteResult", await self._inner.update_ledger(metadata, expected_version))
            if isinstance(result, Ok):
                self._metadata.changed(metadata.ledger_id, Versioned(metadata, result.version))
            return result

        try:
            result = await self._session.ask("update_ledger", update, writes=True)
        except MetadataOutcomeUnknown as error:
            return Unknown(error.message)
        self._saw(metadata.ledger_id, result.version if isinstance(result, Ok) else expected_version)
        return result

    async def delete_ledger(self, ledger_id: int, expected_version: int, identity: bytes = NO_IDENTITY) -> WriteResult:
        """See the port."""

        async def delete() -> WriteResult:
            result = cast("WriteResult", await self._inner.delete_ledger(ledger_id, expected_version, identity))
            if isinstance(result, Ok):
                self._metadata.changed(ledger_id, None)
            return result

        try:
            return await self._session.ask("delete_ledger", delete, writes=True)
        except MetadataOutcomeUnknown as error:
            return Unknown(error.message)

    async def deletion(self, ledger_id: int) -> Deletion | None:
        """See the port."""
        return await self._session.ask("deletion", lambda: self._inner.deletion(ledger_id))

    async def list_ledgers(self, after: int = -1, limit: int = 1000) -> LedgerPage:
        """See the port."""
        page = await self._session.ask("list_ledgers", lambda: self._inner.list_ledgers(after, limit))
        if self._session.rng.random() < self._metadata.faults.partial:
            return LedgerPage(page.ledger_ids[: len(page.ledger_ids) // 2], complete=False)
        return cast("LedgerPage", page)

    def watch_ledger(self, ledger_id: int) -> LedgerWatch:
        """See the port."""
        return _SimWatch(self._inner.watch_ledger(ledger_id), self._session)

    async def read_cookie(self, bookie_id: str) -> bytes | None:
        """See the port."""
        return await self._session.ask("read_cookie", lambda: self._inner.read_cookie(bookie_id))

    async def write_cookie(self, bookie_id: str, cookie: bytes, *, replace: bool = False) -> None:
        """See the port."""
        await self._session.ask(
            "write_cookie", lambda: self._inner.write_cookie(bookie_id, cookie, replace=replace), writes=True
        )

    async def delete_cookie(self, bookie_id: str) -> None:
        """See the port."""
        await self._session.ask("delete_cookie", lambda: self._inner.delete_cookie(bookie_id), writes=True)

    async def read_record(self, name: str, *, linearizable: bool = False) -> Record | None:
        """See the port. An old answer is what this session saw last."""
        seen = self._session.seen_records
        stale = not linearizable and self._session.rng.random() < self._metadata.faults.stale
        found = await self._session.ask("read_record", lambda: self._inner.read_record(name))
        if not stale or name not in seen:
            seen[name] = found
        return seen[name]

    async def write_record(self, name: str, value: bytes, expected_version: int | None) -> WriteResult:
        """See the port."""

        async def write() -> WriteResult:
            result = cast("WriteResult", await self._inner.write_record(name, value, expected_version))
            self._metadata.lives[name] += isinstance(result, Ok) and expected_version is None
            return result

        return await self._write_record(name, "write_record", write)

    async def delete_record(self, name: str, expected_version: int) -> WriteResult:
        """See the port."""
        life = self._metadata.lives[name]

        async def delete() -> WriteResult:
            # Versions begin again with another record of that name: nobody could tell it from the one that is meant.
            if self._metadata.lives[name] != life:
                return BadVersion()
            return cast("WriteResult", await self._inner.delete_record(name, expected_version))

        return await self._write_record(name, "delete_record", delete)

    async def _write_record(
        self, name: str, operation: str, write: Callable[[], Coroutine[Any, Any, WriteResult]]
    ) -> WriteResult:
        # Whoever wrote cannot read what was there before.
        self._session.seen_records.pop(name, None)
        try:
            return await self._session.ask(operation, write, writes=True)
        except MetadataOutcomeUnknown as error:
            return Unknown(error.message)

    async def list_records(self, prefix: str = "", after: str = "", limit: int = 1000) -> RecordPage:
        """See the port."""
        page = await self._session.ask("list_records", lambda: self._inner.list_records(prefix, after, limit))
        if self._session.rng.random() < self._metadata.faults.partial:
            return RecordPage(page.names[: len(page.names) // 2], complete=False)
        return cast("RecordPage", page)

    async def close(self) -> None:
        """Leave in good order."""
        await self._session.close()

    def _saw(self, ledger_id: int, version: int) -> None:
        self._session.seen[ledger_id] = max(version, self._session.seen.get(ledger_id, 0))


class SimMembership:
    """A ``Membership`` over a session."""

    def __init__(self, session: MetadataSession) -> None:
        self._session = session
        self._inner = session.inner[1]

    async def register(self, info: BookieInfo) -> SimRegistration:
        """See the port. An attempt whose answer is lost may leave an entry, as a session that ended then would."""
        session = self._session
        attempted: list[MemoryRegistration] = []

        async def register() -> MemoryRegistration:
            made = cast("MemoryRegistration", await self._inner.register(info))
            session.registrations.append(made)
            attempted.append(made)
            return made

        def forget() -> None:
            for made in attempted:
                session.metadata.shared.drop(made)

        try:
            return SimRegistration(session, await session.ask("register", register, writes=True))
        except MetadataOutcomeUnknown:
            # Nobody keeps that entry alive. The next attempt makes another one, which stays.
            session.metadata.later(LATEST_SECONDS + session.metadata.session_seconds, forget)
            raise

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """See the port."""
        return cast("Mapping[str, BookieInfo]", await self._session.ask("bookies", self._inner.bookies))

    def watch(self) -> MembershipWatch:
        """See the port."""
        return _SimWatch(self._inner.watch(), self._session)


class _SimWatch:
    """A watch that may tell late, and tells nothing while nothing gets through."""

    def __init__(self, inner: Wakeup, session: MetadataSession) -> None:
        self._inner = inner
        self._session = session
        self._owed = False
        session.watching(self)

    def tell(self) -> None:
        """Tell, for something may have happened."""
        self._inner.notify()

    async def changed(self) -> None:
        if not self._owed:
            await self._inner.changed()
            # A caller who is cancelled from here on has not been told: the next call tells it.
            self._owed = True
            faults, rng = self._session.metadata.faults, self._session.rng
            seconds = faults.delay_seconds[1] * rng.random()
            if rng.random() < faults.slow_watch:
                seconds += faults.watch_delay_seconds * rng.random()
            await _CLOCK.sleep(seconds)
        await self._session.until_through()
        self._owed = False

    async def close(self) -> None:
        self._session.watched(self)
        await self._inner.close()


def _nobody_listens(_ledger_id: int, _before: LedgerMetadata | None, _after: LedgerMetadata | None) -> None:
    """Nobody is told of changes."""

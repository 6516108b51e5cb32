"""The metadata store of a simulated cluster, with the faults between it and its clients.

Every client and bookie has a *session*. An operation travels to the store, takes effect at one moment, and its answer
travels back. Each way takes time, and nothing passes while the session is *cut*. A write whose answer is lost has an
unknown outcome; it may still take effect later. A session that the store does not hear of for too long, because it is
cut or its process is frozen or dead, *expires*. Then the same follows as with ZooKeeper: registrations are gone, writes
in flight have an unknown outcome, nothing passes until the process has a new session, and then every watch fires. Reads
that need not be linearizable may be stale, and watches may fire late.

Operations take effect outside the client's process: a request in flight also lands if the client is frozen.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from tallybook.core.errors import MetadataOutcomeUnknown, MetadataUnavailable, NoSuchLedger, TallybookError
from tallybook.core.ids import NO_IDENTITY
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.memory import MemoryMetadata, MemoryRegistration
from tallybook.metadata.store import (
    BadVersion,
    BookieInfo,
    Deletion,
    LedgerPage,
    LedgerWatch,
    MembershipWatch,
    MetadataRecord,
    Ok,
    RecordPage,
    Unknown,
    Versioned,
    WriteResult,
)
from tallybook.metadata.watch import Wakeup
from tallybook.runtime.rng import Rng

from ..deterministic import ProcessGate, SimClock, outside
from .atomic_steps import run_in_one_step
from .registration import SimRegistration

T = TypeVar("T")

OnChange = Callable[[int, LedgerMetadata | None, LedgerMetadata | None], None]
"""Called with each ledger change as it takes effect: ledger id, value before, value after."""

_CLOCK: Final = SimClock()

_EXPIRED: Final = object()
"""Answer to a request that was in flight when its session expired."""

LATEST_SECONDS: Final = 3.0
"""Maximum delay after which a write with an unknown outcome may still take effect."""


@dataclass(slots=True)
class MetadataFaults:
    """Probabilities of faults of one operation, and delays in seconds."""

    unavailable: float = 0.0
    """The operation is refused and not done."""
    applied: float = 0.0
    """A write takes effect and its answer is lost."""
    lost: float = 0.0
    """A write request is lost."""
    late: float = 0.0
    """A write takes effect after its client got an unknown outcome."""
    stale: float = 0.0
    """A read that need not be linearizable returns a stale value."""
    partial: float = 0.0
    """A listing breaks off half way."""
    slow_watch: float = 0.0
    """A watch fires late."""
    delay_seconds: tuple[float, float] = (0.0005, 0.003)
    watch_delay_seconds: float = 2.0
    reconnect_seconds: float = 1.0
    """Maximum time from the expiry of a session to the next one."""


def _ignore_change(_ledger_id: int, _before: LedgerMetadata | None, _after: LedgerMetadata | None) -> None:
    """Default ``on_change``: do nothing."""


class SimMetadata:
    """The store that all sessions share.

    Args:
        faults: may be changed during a run.
        session_seconds: session timeout.
        timeout_seconds: how long a client waits for an answer.
        on_change: called with each change of a ledger's metadata.
    """

    def __init__(
        self,
        rng: Rng,
        faults: MetadataFaults,
        *,
        session_seconds: float,
        timeout_seconds: float,
        on_change: OnChange = _ignore_change,
    ) -> None:
        self.shared = MemoryMetadata(rng.fork("shared"))
        self.faults = faults
        self.session_seconds = session_seconds
        self.timeout_seconds = timeout_seconds
        self.versions: dict[int, list[Versioned]] = {}
        """All values of each ledger; the last one is current unless the ledger is deleted."""
        self.lives: Counter[str] = Counter()
        """How often a record of each name was created."""
        self._on_change = on_change
        self.sessions: dict[str, MetadataSession] = {}
        self.away = False
        """Whether the store is unreachable for all sessions."""
        self._rng = rng.fork("network")
        self._context = outside()
        self._sessions = 0

    def session(self, name: str, gate: ProcessGate) -> MetadataSession:
        """A new session of the process called ``name``; it replaces an earlier one."""
        self._sessions += 1
        session = MetadataSession(self, name, gate, self._rng.fork(f"session {self._sessions}"))
        self.sessions[name] = session
        return session

    def value(self, ledger_id: int) -> LedgerMetadata | None:
        """The current value of a ledger; ``None`` if there is none."""
        return self.versions[ledger_id][-1].value if ledger_id in self.shared.ledgers else None

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Call ``action`` after ``seconds``, outside any simulated process."""
        asyncio.get_running_loop().call_later(seconds, action, context=self._context)

    def go_away(self) -> None:
        """Disconnect all sessions until ``heal``."""
        self.away = True
        for session in self.sessions.values():
            session.disconnected()

    def heal(self) -> None:
        """Reconnect all sessions."""
        self.away = False
        for session in self.sessions.values():
            session.heal()

    def changed(self, ledger_id: int, after: Versioned | None) -> None:
        """Record a change of a ledger that took effect."""
        versions = self.versions.setdefault(ledger_id, [])
        before = versions[-1].value if versions else None
        if after is not None:
            versions.append(after)
        self._on_change(ledger_id, before, None if after is None else after.value)


class MetadataSession:
    """Connection of one process to the store; ``store`` and ``membership`` are its ports."""

    def __init__(self, metadata: SimMetadata, name: str, gate: ProcessGate, rng: Rng) -> None:
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
        self._in_flight: dict[asyncio.Future[Any], None] = {}
        self._watches: dict[_SimWatch, None] = {}
        self._client = metadata.shared.client()
        self.registrations: list[MemoryRegistration] = []
        self.seen: dict[int, int] = {}
        self.seen_records: dict[str, MetadataRecord | None] = {}
        self.store = SimStore(self)
        self.membership = SimMembership(self)

    @property
    def inner(self) -> tuple[Any, Any]:
        """The in-memory store and membership behind the session."""
        return self._client.store, self._client.membership

    @property
    def through(self) -> bool:
        """Whether messages pass."""
        return not self._cut and not self.metadata.away and not self._sessions_due

    @property
    def heard(self) -> bool:
        """Whether the store gets heartbeats of this process."""
        return self.through and self._gate.open and not self._closed

    def cut(self) -> None:
        """Drop all messages until ``heal``."""
        self._cut = True
        self.disconnected()

    def disconnected(self) -> None:
        """Start to count towards expiry: messages do not pass any more."""
        self._healed.clear()
        self.start_timeout()

    def heal(self) -> None:
        """Let messages pass again."""
        self._cut = False
        if self.through:
            self._healed.set()

    def start_timeout(self) -> None:
        """Start the session timeout; the session expires if the store gets no heartbeat until its end."""
        self._silences += 1
        self.metadata.later(self.metadata.session_seconds, lambda: self._expire_unless_heard(self._silences))

    def end(self) -> None:
        """End the session of a dead process; the store notices when the session expires."""
        self._closed = True
        self.start_timeout()

    def expire(self) -> None:
        """Expire the session; the process gets a new one a little later."""
        self._leave()
        for answer in self._in_flight:
            if not answer.done():
                answer.set_result(_EXPIRED)
        if not self._closed:
            self._sessions_due += 1
            self._healed.clear()
            self.metadata.later(self.metadata.faults.reconnect_seconds * self.rng.random(), self._begin_again)

    def watching(self, watch: _SimWatch) -> None:
        """Register a watch that must fire when a new session begins."""
        self._watches[watch] = None

    def watched(self, watch: _SimWatch) -> None:
        """Unregister a closed watch."""
        self._watches.pop(watch, None)

    async def close(self) -> None:
        """Close the session."""
        if not self._closed:
            self._closed = True
            self._leave()

    async def until_through(self) -> None:
        """Return when messages pass."""
        while not self.through:
            # A session that was replaced by a newer one is not notified when the store goes away.
            self._healed.clear()
            await self._healed.wait()

    async def ask(self, name: str, effect: Callable[[], Coroutine[Any, Any, T]], *, writes: bool = False) -> T:
        """Send one operation to the store and return its answer.

        Raises:
            MetadataUnavailable: no answer, and the operation had no effect, or was a read.
            MetadataOutcomeUnknown: no answer to a write.
        """
        if self._closed:
            raise MetadataUnavailable(f"the session of {self.name} is closed")
        while True:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._in_flight[answer] = None
            try:
                found = await self._attempt(name, effect, answer, writes=writes)
            finally:
                del self._in_flight[answer]
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
            self.metadata.later(there + LATEST_SECONDS * self.rng.random(), lambda: run_in_one_step(effect))
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
        """Begin the next session: all watches fire."""
        self._sessions_due -= 1
        if self.through:
            self._healed.set()
        for watch in list(self._watches):
            watch.tell()

    def _land(self, effect: Callable[[], Coroutine[Any, Any, T]], answer: asyncio.Future[Any], *, lost: bool) -> None:
        """Execute a request that arrives, if messages pass, and send the answer unless that is lost."""
        if not self.through:
            return
        result = run_in_one_step(effect)
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
        """A stale value, not older than the last one that this session saw; NoSuchLedger if it saw none."""
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

    async def read_record(self, name: str, *, linearizable: bool = False) -> MetadataRecord | None:
        """See the port. A stale answer is the value that this session saw last."""
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
            # Versions restart when a record is created again, so the expected version could match the wrong record.
            if self._metadata.lives[name] != life:
                return BadVersion()
            return cast("WriteResult", await self._inner.delete_record(name, expected_version))

        return await self._write_record(name, "delete_record", delete)

    async def _write_record(
        self, name: str, operation: str, write: Callable[[], Coroutine[Any, Any, WriteResult]]
    ) -> WriteResult:
        # After a write, this session must not read an older value.
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
        """Close the session."""
        await self._session.close()

    def _saw(self, ledger_id: int, version: int) -> None:
        self._session.seen[ledger_id] = max(version, self._session.seen.get(ledger_id, 0))


class SimMembership:
    """A ``Membership`` over a session."""

    def __init__(self, session: MetadataSession) -> None:
        self._session = session
        self._inner = session.inner[1]

    async def register(self, info: BookieInfo) -> SimRegistration:
        """See the port. An attempt whose answer is lost may leave an entry, as an ended ZooKeeper session would."""
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
            # That entry gets no heartbeats and disappears. The next attempt creates another one.
            session.metadata.later(LATEST_SECONDS + session.metadata.session_seconds, forget)
            raise

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """See the port."""
        return cast("Mapping[str, BookieInfo]", await self._session.ask("bookies", self._inner.bookies))

    def watch(self) -> MembershipWatch:
        """See the port."""
        return _SimWatch(self._inner.watch(), self._session)


class _SimWatch:
    """A watch that may fire late, and does not fire while the session is disconnected."""

    def __init__(self, inner: Wakeup, session: MetadataSession) -> None:
        self._inner = inner
        self._session = session
        self._owed = False
        session.watching(self)

    def tell(self) -> None:
        """Fire: the value may have changed."""
        self._inner.notify()

    async def changed(self) -> None:
        if not self._owed:
            await self._inner.changed()
            # A caller that is cancelled from here on has not seen the change: the next call returns at once.
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

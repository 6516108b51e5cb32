"""Performs the actions of a recovery machine: fences, reads, writes back, closes the ledger in the metadata.

Every request runs as a task and reports to one queue, so that the machine gets one event at a time, in the order of the
answers.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, TypeAlias, TypeVar, assert_never

from tallybook.core.batch import BatchHeader
from tallybook.core.coverage import sometimes
from tallybook.core.errors import (
    BookieUnavailable,
    Busy,
    Conflict,
    EntryTooLarge,
    MetadataUnavailable,
    NoSuchLedger,
    OtherLedger,
    RecoveryFailed,
    TallybookError,
    is_defect,
)
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.model import LedgerMetadata, begin_recovery, close
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.concurrency.progress_deadline import ProgressTracker
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng

from ..connection.port import BookieConnection
from ..placement.replacement_probe import ReplacementFinder
from ..ports import Connections, UpdateLedger
from ..reader.handle import LedgerReader
from ..recovery_counters import RecoveryCounters
from .last_entry import find_last_entry
from .lossy import AcceptedLoss, LossyRecoveryMachine
from .machine import (
    AwaitStragglers,
    Close,
    Failed,
    FenceMember,
    FindLast,
    FindReplacements,
    ReadEnd,
    ReadMember,
    RecoveryAction,
    RecoveryMachine,
    WriteBack,
    obsolete_after,
)
from .member_adds import MemberAdds
from .read_size import ReadSize

T = TypeVar("T")

_Request: TypeAlias = FenceMember | ReadMember | WriteBack | AwaitStragglers | FindReplacements | ReadEnd | FindLast

_log = logger("client.recovery")

MAX_RUNS: Final = 3
"""How often a recovery starts over because the last fragment has changed meanwhile."""

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
"""Bounds of the retry pauses while the metadata store does not answer."""


@dataclass(frozen=True, slots=True)
class RecoveryContext:
    """The client's connections, settings and callbacks that a recovery uses."""

    connections: Connections
    replacements: ReplacementFinder
    clock: Clock
    rng: Rng
    settings: ClientSettings
    update: UpdateLedger
    reader_of: Callable[[LedgerMetadata, int], LedgerReader]
    """Makes a reader over given metadata that may read up to a given entry."""
    counters: RecoveryCounters = field(default_factory=RecoveryCounters)


async def recover_ledger(context: RecoveryContext, *, key: bytes, digest_key: bytes | None) -> LedgerMetadata:
    """Fence a ledger, find its last entry, and close it. Of a closed ledger, only return the metadata.

    Raises:
        RecoveryFailed: the last entry cannot be determined now; nothing was lost, try again later.
        Unauthorized: the key is not that of the ledger.
        NoSuchLedger: the ledger was deleted.
        OtherLedger: its bookies have another ledger with this id, so its end can never be determined.
        MetadataUnavailable, MetadataOutcomeUnknown: a metadata change failed; try again.
    """
    return await _counted(context, key, lambda metadata: RecoveryMachine(metadata, digest_key))


async def _counted(
    context: RecoveryContext, key: bytes, machine_of: Callable[[LedgerMetadata], RecoveryMachine]
) -> LedgerMetadata:
    context.counters.recoveries += 1
    try:
        return (await _recover(context, key, machine_of)).metadata
    except TallybookError:
        context.counters.failed_recoveries += 1
        raise


async def recover_accepting_loss(
    context: RecoveryContext, *, key: bytes, digest_key: bytes | None, lost: Collection[str] = ()
) -> AcceptedLoss:
    """Recover a ledger; if that fails, close it after its last good copy and give up the rest.

    Args:
        lost: bookies that never come back. Entries on other bookies that do not answer are not given up.

    Raises:
        RecoveryFailed: no bookie of the last fragment answers; or a bookie does not answer that is not ``lost``, or was
            reachable before; or no good copy has the ledger's length. The ledger stays open.
        As ``recover_ledger`` otherwise, except OtherLedger: a bookie with another ledger has no good copy.
    """
    ordinary: list[RecoveryMachine] = []
    lossy: list[LossyRecoveryMachine] = []

    def ordinary_machine(metadata: LedgerMetadata) -> RecoveryMachine:
        ordinary.append(RecoveryMachine(metadata, digest_key))
        return ordinary[-1]

    def lossy_machine(metadata: LedgerMetadata) -> RecoveryMachine:
        reachable = frozenset[str]().union(*(machine.reachable for machine in (*ordinary, *lossy)))
        lossy.append(LossyRecoveryMachine(metadata, digest_key, reachable, lost))
        return lossy[-1]

    try:
        return AcceptedLoss(await _counted(context, key, ordinary_machine))
    except (RecoveryFailed, OtherLedger) as error:
        failure = error.message
    closed, own_end = await _recover(context, key, lossy_machine)
    if not lossy:
        return AcceptedLoss(closed)
    confirmed = lossy[-1].confirmed
    if not own_end:
        # Another recovery closed the ledger; it reports its own losses, except entries known here to be confirmed.
        return AcceptedLoss(closed, failure, confirmed) if confirmed > closed.last_entry_id else AcceptedLoss(closed)
    if not lossy[-1].lossy:
        return AcceptedLoss(closed)
    found = AcceptedLoss(closed, failure, confirmed, lossy[-1].unknown, lossy[-1].last_entries)
    _log.error(
        "a ledger was ended after its last good copy", ledger_id=closed.ledger_id, last_entry_id=closed.last_entry_id,
        confirmed=confirmed, error=failure,
    )  # fmt: skip
    return found


class _Closed(NamedTuple):
    """A closed ledger."""

    metadata: LedgerMetadata
    own_end: bool
    """Whether it was closed at the end that this recovery found."""


async def _recover(
    context: RecoveryContext, key: bytes, machine_of: Callable[[LedgerMetadata], RecoveryMachine]
) -> _Closed:
    metadata = (await context.update(begin_recovery)).value
    for _ in range(MAX_RUNS):
        if metadata.closed:
            return _Closed(metadata, own_end=False)
        try:
            end = await _RecoveryRun(context, machine_of(metadata), key).run()
        except TallybookError as error:
            if is_defect(error) or (closed := await _closed_meanwhile(context)) is None:
                raise
            return _Closed(closed, own_end=False)
        tried: list[LedgerMetadata] = []
        try:
            closed = (await context.update(partial(_close, tried, metadata, end))).value
            return _Closed(closed, own_end=any(_has_end_of(closed, each) for each in tried))
        except LastFragmentChanged:
            sometimes("recovery: starts over")
            metadata = (await context.update(begin_recovery)).value
    raise RecoveryFailed(f"ledger {metadata.ledger_id}: its last fragment changed during each of {MAX_RUNS} recoveries")


async def _closed_meanwhile(context: RecoveryContext) -> LedgerMetadata | None:
    """The metadata, if another recovery has closed the ledger (then bookies may have dropped archived entries).

    Raises:
        NoSuchLedger: the ledger was deleted.
    """
    try:
        metadata = (await context.update(begin_recovery)).value
    except NoSuchLedger:
        raise
    except TallybookError as error:
        if is_defect(error):
            raise
        return None
    if not metadata.closed:
        return None
    sometimes("recovery: failed, and another one was first")
    return metadata


def _close(tried: list[LedgerMetadata], known: LedgerMetadata, end: Close, fresh: LedgerMetadata) -> LedgerMetadata:
    """As ``closed_at``; records in ``tried`` the metadata that it tries to write."""
    wanted = closed_at(known, end, fresh)
    if not fresh.closed:
        tried.append(wanted)
    return wanted


def _has_end_of(closed: LedgerMetadata, tried: LedgerMetadata) -> bool:
    """Whether the close ``tried`` took effect. A repair may have changed older fragments since."""
    ends = [(each.last_entry_id, each.length, each.last_fragment) for each in (closed, tried)]
    return ends[0] == ends[1]


class LastFragmentChanged(Exception):
    """The last fragment has changed since the recovery began, so its findings are obsolete."""


def closed_at(known: LedgerMetadata, end: Close, fresh: LedgerMetadata) -> LedgerMetadata:
    """The metadata closed at the end that was found; concurrent changes of older fragments are kept.

    Args:
        known: the metadata that the recovery worked on.
        fresh: the current metadata. If another recovery has closed the ledger, they are returned unchanged.

    Raises:
        LastFragmentChanged: the recovery has to start over.
    """
    if fresh.closed:
        # Another recovery was first; its end counts.
        sometimes("recovery: another one was first")
        return fresh
    if fresh.last_fragment != known.last_fragment:
        raise LastFragmentChanged
    fragments = [*fresh.fragments[:-1], *end.fragments]
    while fragments[-1].first_entry_id > end.last_entry_id + 1:
        fragments.pop()  # an operator has given up more than the last fragment
    return close(fresh, end.last_entry_id, end.length, fragments=fragments, missed=(*fresh.missed, *end.missed))


class _RecoveryRun:
    """One run of the machine."""

    def __init__(self, context: RecoveryContext, machine: RecoveryMachine, key: bytes) -> None:
        metadata = machine.metadata
        self._context = context
        self._settings = context.settings
        self._metadata = metadata
        self._ledger_id = metadata.ledger_id
        self._bookies = metadata.last_fragment.bookies
        self._key = key
        self._identity = metadata.identity
        self._machine = machine
        # A position has few requests that are unfinished or unprocessed; further answers wait for space.
        self._events: asyncio.Queue[Callable[[], list[RecoveryAction]]] = asyncio.Queue(4 * len(self._bookies))
        self._adds: defaultdict[str, MemberAdds] = defaultdict(lambda: MemberAdds(context.clock))
        deadline_s = context.settings.request_timeout_ms / 1000
        self._read_sizes: defaultdict[str, ReadSize] = defaultdict(lambda: ReadSize(context.clock, deadline_s))
        self._adding_since: float | None = None
        self._waited_s = 0.0

    async def run(self) -> Close:
        """Run the machine to its end.

        Raises:
            TallybookError: the machine's error.
        """
        try:
            async with asyncio.TaskGroup() as group:
                end = await self._drive(group)
        except ExceptionGroup as several:
            # An unexpected error of a task: raise it unwrapped.
            raise several.exceptions[0] from several
        if isinstance(end, Failed):
            raise end.error
        return end

    async def _drive(self, group: asyncio.TaskGroup) -> Close | Failed:
        actions = self._machine.start()
        # Requests that a later action may make obsolete.
        open_ends: list[tuple[RecoveryAction, asyncio.Task[None]]] = []
        running: set[asyncio.Task[None]] = set()
        while True:
            for action in actions:
                if isinstance(action, Close | Failed):
                    for task in running:
                        task.cancel()
                    return action
                task = group.create_task(self._perform(action))
                running.add(task)
                task.add_done_callback(running.discard)
                if isinstance(action, ReadMember | AwaitStragglers):
                    open_ends.append((action, task))
            # Cancel obsolete requests: they must not pile up at a hanging bookie.
            over = obsolete_after(actions)
            for action, task in open_ends:
                if isinstance(action, over) and action not in actions:
                    task.cancel()
            open_ends = [(action, task) for action, task in open_ends if not task.done()]
            actions = (await self._events.get())()

    async def _perform(self, action: _Request) -> None:
        match action:
            case FenceMember():
                await self._fence(action)
            case ReadMember():
                await self._read(action)
            case WriteBack():
                await self._add(action)
            case AwaitStragglers():
                await self._await_stragglers(action)
            case FindReplacements():
                await self._find_replacements(action)
            case ReadEnd():
                await self._read_end(action)
            case FindLast():
                await self._find_last(action)
            case _:
                assert_never(action)

    async def _fence(self, action: FenceMember) -> None:
        at = action.position
        try:
            answer = await self._while_busy(
                self._bookies[at],
                lambda bookie: bookie.fence(self._ledger_id, self._key, identity=self._identity),
                self._settings.request_timeout_ms,
            )
        except TallybookError as error:
            await self._report(self._machine.fence_failed, at, error)
        else:
            await self._report(self._machine.fenced, at, answer)

    async def _read(self, action: ReadMember) -> None:
        at, entry_id = action.position, action.entry_id
        member = self._members(entry_id)[at]
        size = self._read_sizes[member]
        asked = size.asked()
        try:
            answer = await self._while_busy(
                member,
                lambda bookie: bookie.recovery_read(
                    self._ledger_id, entry_id, self._key, asked.max_bytes, identity=self._identity
                ),
                self._settings.request_timeout_ms,
            )
        except TallybookError as error:
            await self._report(self._machine.read_failed, at, entry_id, error)
        else:
            first, *more = answer.batches or (b"",)
            size.answered(asked, sum(map(len, answer.batches)))
            await self._report(self._machine.read, at, entry_id, first, more)

    async def _add(self, action: WriteBack) -> None:
        at, to, entry_id = action.position, action.bookie_id, action.entry_id
        adds = self._adds[to]
        if self._adding_since is None:
            self._adding_since = self._context.clock.monotonic()
        error = await adds.add(len(action.batch), partial(self._send, adds, action))
        if error is None:
            await self._report(self._machine.added, at, entry_id)
            return
        if isinstance(error, EntryTooLarge):
            # Concerns this batch only: the bookie may take smaller ones.
            _log.warning(
                "a batch is too large for a bookie", bookie_id=to, ledger_id=self._ledger_id, entry_id=entry_id,
                batch_bytes=len(action.batch),
            )  # fmt: skip
            await self._report(self._machine.add_failed, at, entry_id, error)
            return
        if isinstance(error, Conflict):
            _log.error("conflicting bytes at a bookie", bookie_id=to, ledger_id=self._ledger_id, entry_id=entry_id)
            # The conflict concerns this entry only; later adds fail as unavailable.
            adds.write_off(BookieUnavailable(f"{to} has other bytes from entry {entry_id}"))
        adds.write_off(error)
        await self._report(self._machine.add_failed, at, entry_id, error)

    async def _send(self, adds: MemberAdds, action: WriteBack) -> None:
        await self._while_busy(
            action.bookie_id,
            lambda bookie: bookie.recovery_add(action.batch, self._key, identity=self._identity),
            self._settings.add_timeout_ms,
            adds.progress,
        )

    async def _await_stragglers(self, action: AwaitStragglers) -> None:
        clock = self._context.clock
        began = clock.monotonic()
        pace_s = began - (began if self._adding_since is None else self._adding_since) - self._waited_s
        late = {bookie_id: adds for bookie_id, adds in self._adds.items() if adds.unanswered}
        try:
            while (left_s := max((adds.wait_left_s(began, pace_s) for adds in late.values()), default=0.0)) > 0:
                await clock.sleep(left_s)
        finally:
            waited_s = clock.monotonic() - began
            self._waited_s += waited_s
            for adds in late.values():
                adds.waited_s += waited_s
        for bookie_id in [bookie_id for bookie_id, adds in late.items() if adds.unanswered]:
            # Written off: waiting again would cost this time in every window. Its missed batches are recorded.
            _log.warning("recovery stops waiting for a bookie", bookie_id=bookie_id, ledger_id=self._ledger_id)
            late[bookie_id].write_off(BookieUnavailable(f"{bookie_id} did not answer in time"))
        await self._report(self._machine.stragglers_late, action.round_number)

    async def _find_replacements(self, action: FindReplacements) -> None:
        found: dict[int, str] = {}
        try:
            while left := [position for position in action.positions if position not in found]:
                # Written-off bookies are excluded, though they may still accept connections.
                more = await self._context.replacements.find(
                    self._metadata,
                    action.ensemble,
                    left,
                    excluded=[*self._written_off, *found.values()],
                    batch_bytes=action.batch_bytes,
                )
                if not more:
                    break
                found |= more
        except TallybookError as error:
            if is_defect(error):
                raise
            # The live bookies cannot be listed: continue without replacements.
        await self._report(self._machine.replacements_found, found)

    @property
    def _written_off(self) -> list[str]:
        return [bookie_id for bookie_id, adds in self._adds.items() if adds.written_off]

    async def _while_busy(
        self,
        bookie_id: str,
        ask: Callable[[BookieConnection], Awaitable[T]],
        timeout_ms: int,
        progress: ProgressTracker | None = None,
    ) -> T:
        """Send a request; while the bookie is BUSY, again after the pause it names. ``progress`` extends the timeout.

        Also retries while the metadata store does not answer this client, or the bookie.
        """
        clock, rng = self._context.clock, self._context.rng
        began = clock.monotonic()
        backoff = Backoff(clock, rng, first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)
        while True:
            try:
                return await ask(await self._context.connections.get(bookie_id))
            except (Busy, MetadataUnavailable) as transient:
                error = transient
            backoff.deadline = (max(began, progress.at) if progress else began) + timeout_ms / 1000
            if not await backoff.pause(error.retry_after_ms / 1000 if isinstance(error, Busy) else None):
                raise error

    async def _read_end(self, action: ReadEnd) -> None:
        reader = self._context.reader_of(self._metadata, action.entry_id)
        try:
            header: BatchHeader = (await reader.read_batch(action.entry_id))[0]
        except TallybookError as error:
            await self._report(self._machine.end_failed, error)
        else:
            await self._report(self._machine.end_read, header)

    async def _find_last(self, action: FindLast) -> None:
        at = action.position
        try:
            found = await self._while_busy(
                self._members(action.first)[at],
                lambda bookie: find_last_entry(
                    bookie, self._ledger_id, action.first, action.before, identity=self._identity
                ),
                self._settings.request_timeout_ms,
            )
        except TallybookError as error:
            await self._report(self._machine.last_failed, at, action.before, error)
        else:
            event = partial(self._machine.last_found, limbo=found.limbo)
            await self._report(event, at, action.before, found.entry_id)

    def _members(self, entry_id: int) -> tuple[str, ...]:
        """The ensemble of an entry, by the metadata with which the recovery began."""
        last = self._metadata.last_fragment
        return self._bookies if entry_id >= last.first_entry_id else self._metadata.fragment_of(entry_id).bookies

    async def _report(self, event: Callable[..., list[RecoveryAction]], *arguments: object) -> None:
        await self._events.put(lambda: event(*arguments))

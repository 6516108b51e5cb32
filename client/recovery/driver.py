"""Does what the recovery machine says: asks bookies, writes back, settles the end.

Every request runs as a task of its own and reports to one queue, so that the machine sees one
event at a time, in the order in which answers came.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, TypeAlias, TypeVar

from tallybook.core.batch import BatchHeader
from tallybook.core.config import ClientSettings
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
from tallybook.core.marks import sometimes
from tallybook.metadata.model import LedgerMetadata, begin_recovery, close
from tallybook.runtime.backoff import Backoff
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.progress import Progress
from tallybook.runtime.rng import Rng

from ..bookie_port import BookieConnection
from ..deeds import Deeds
from ..ports import Connections, UpdateLedger
from ..reader.handle import LedgerReader
from ..spares import Spares
from .last_held import last_held
from .lossy import AcceptedLoss, LossyRecoveryMachine
from .machine import (
    Action,
    AwaitStragglers,
    Close,
    Failed,
    Fence,
    FindLast,
    FindSpares,
    ReadEnd,
    RecoveryAdd,
    RecoveryMachine,
    RecoveryRead,
)
from .member_adds import MemberAdds
from .read_size import ReadSize

T = TypeVar("T")

_Request: TypeAlias = Fence | RecoveryRead | RecoveryAdd | AwaitStragglers | FindSpares | ReadEnd | FindLast

_log = logger("client.recovery")

MAX_RUNS: Final = 3
"""How often a recovery starts over because the last fragment changed under it."""

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
"""Bounds of the pauses after which a bookie is asked again for which the metadata did not answer."""


@dataclass(frozen=True, slots=True)
class RecoveryContext:
    """What a recovery needs of its client."""

    connections: Connections
    spares: Spares
    clock: Clock
    rng: Rng
    settings: ClientSettings
    update: UpdateLedger
    reader_of: Callable[[LedgerMetadata, int], LedgerReader]
    """A reader over given metadata, allowed to read up to a given entry."""
    deeds: Deeds = field(default_factory=Deeds)


async def recover_ledger(context: RecoveryContext, *, key: bytes, digest_key: bytes | None) -> LedgerMetadata:
    """Fence a ledger, find its end, and close it; of a closed ledger return the metadata.

    Raises:
        RecoveryFailed: the end cannot be told now; nothing was cut, try again later.
        Unauthorized: the key does not fit the ledger.
        NoSuchLedger: it was deleted.
        OtherLedger: its bookies hold another ledger of this id, so its end can never be told.
        MetadataUnavailable, MetadataOutcomeUnknown: the store did not settle a step; try again.
    """
    return await _counted(context, key, lambda metadata: RecoveryMachine(metadata, digest_key))


async def _counted(
    context: RecoveryContext, key: bytes, machine_of: Callable[[LedgerMetadata], RecoveryMachine]
) -> LedgerMetadata:
    context.deeds.recoveries += 1
    try:
        return (await _recover(context, key, machine_of)).metadata
    except TallybookError:
        context.deeds.failed_recoveries += 1
        raise


async def recover_accepting_loss(
    context: RecoveryContext, *, key: bytes, digest_key: bytes | None, lost: Collection[str] = ()
) -> AcceptedLoss:
    """Recover a ledger; where that fails, end it after its last good copy and give up the rest.

    Args:
        lost: bookies that never come back. What others may hold that do not answer is not given up.

    Raises:
        RecoveryFailed: no bookie of its last fragment answers, one that is not ``lost``, or is there after all, does
            not say what it holds, or no good copy tells its length. The ledger stays open.
        As ``recover_ledger`` otherwise, but for OtherLedger: a bookie that holds another ledger has no good copy.
    """
    ordinary: list[RecoveryMachine] = []
    lossy: list[LossyRecoveryMachine] = []

    def ordinary_machine(metadata: LedgerMetadata) -> RecoveryMachine:
        ordinary.append(RecoveryMachine(metadata, digest_key))
        return ordinary[-1]

    def lossy_machine(metadata: LedgerMetadata) -> RecoveryMachine:
        there = frozenset[str]().union(*(machine.there for machine in (*ordinary, *lossy)))
        lossy.append(LossyRecoveryMachine(metadata, digest_key, there, lost))
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
        # Another recovery was first. What it gave up is for it to tell, but for what is known here to be confirmed.
        return AcceptedLoss(closed, failure, confirmed) if confirmed > closed.last_entry_id else AcceptedLoss(closed)
    if not lossy[-1].lossy:
        return AcceptedLoss(closed)
    found = AcceptedLoss(closed, failure, confirmed, lossy[-1].untold, lossy[-1].held)
    _log.error(
        "a ledger was ended after its last good copy", ledger_id=closed.ledger_id, last_entry_id=closed.last_entry_id,
        confirmed=confirmed, error=failure,
    )  # fmt: skip
    return found


class _Closed(NamedTuple):
    """A ledger that is closed by now."""

    metadata: LedgerMetadata
    own_end: bool
    """Whether this recovery tried to close it, and it has the end that it tried to give it."""


async def _recover(
    context: RecoveryContext, key: bytes, machine_of: Callable[[LedgerMetadata], RecoveryMachine]
) -> _Closed:
    metadata = (await context.update(begin_recovery)).value
    for _ in range(MAX_RUNS):
        if metadata.closed:
            return _Closed(metadata, own_end=False)
        try:
            end = await _Run(context, machine_of(metadata), key).run()
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
    """The metadata, if another recovery has closed the ledger; its bookies may have dropped what the archive has.

    Raises:
        NoSuchLedger: it was deleted.
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
    """As ``closed_at``; what is not closed yet is noted in ``tried`` as it is to become."""
    wanted = closed_at(known, end, fresh)
    if not fresh.closed:
        tried.append(wanted)
    return wanted


def _has_end_of(closed: LedgerMetadata, tried: LedgerMetadata) -> bool:
    """Whether a close took effect. A repair may have changed older fragments since."""
    ends = [(each.last_entry_id, each.length, each.last_fragment) for each in (closed, tried)]
    return ends[0] == ends[1]


class LastFragmentChanged(Exception):
    """The last fragment is another one than the recovery worked on: what it found out no longer counts."""


def closed_at(known: LedgerMetadata, end: Close, fresh: LedgerMetadata) -> LedgerMetadata:
    """The ledger, closed at the end that was found; what others did to older fragments stays.

    Args:
        known: the metadata that the recovery worked on.
        fresh: as they are now. If another recovery has closed the ledger, they stay so.

    Raises:
        LastFragmentChanged: the recovery has to start over.
    """
    if fresh.closed:
        # Another recovery was first; its end is the end.
        sometimes("recovery: another one was first")
        return fresh
    if fresh.last_fragment != known.last_fragment:
        raise LastFragmentChanged
    fragments = [*fresh.fragments[:-1], *end.fragments]
    while fragments[-1].first_entry_id > end.last_entry_id + 1:
        fragments.pop()  # an operator has given up more than the last fragment
    return close(fresh, end.last_entry_id, end.length, fragments=fragments, missed=(*fresh.missed, *end.missed))


def _settled_by(actions: list[Action]) -> tuple[type[Action], ...]:
    """The kinds of earlier requests whose answers mean nothing any more once the machine asks for ``actions``."""
    kinds = {type(action) for action in actions}
    if kinds & {RecoveryRead, RecoveryAdd, ReadEnd, FindSpares, FindLast}:
        return (RecoveryRead, AwaitStragglers)
    return (RecoveryRead,) if AwaitStragglers in kinds else ()


class _Run:
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
        # Requests that are not over, or not looked at yet, are few per position; beyond that an answer waits.
        self._events: asyncio.Queue[Callable[[], list[Action]]] = asyncio.Queue(4 * len(self._bookies))
        self._adds: defaultdict[str, MemberAdds] = defaultdict(lambda: MemberAdds(context.clock))
        deadline_s = context.settings.request_timeout_ms / 1000
        self._read_sizes: defaultdict[str, ReadSize] = defaultdict(lambda: ReadSize(context.clock, deadline_s))
        self._adding_since: float | None = None
        self._waited_s = 0.0

    async def run(self) -> Close:
        """Run the machine to its end.

        Raises:
            TallybookError: what the machine failed with.
        """
        try:
            async with asyncio.TaskGroup() as group:
                end = await self._drive(group)
        except ExceptionGroup as several:
            # What no task expects. Whoever asked for the recovery expects one error, of its own kind.
            raise several.exceptions[0] from several
        if isinstance(end, Failed):
            raise end.error
        return end

    async def _drive(self, group: asyncio.TaskGroup) -> Close | Failed:
        actions = self._machine.start()
        # What a later action may settle, and all of it.
        open_ends: list[tuple[Action, asyncio.Task[None]]] = []
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
                if isinstance(action, RecoveryRead | AwaitStragglers):
                    open_ends.append((action, task))
            # What a copy or the last answer has settled is not waited for, and must not pile up at a hanging bookie.
            over = _settled_by(actions)
            for action, task in open_ends:
                if isinstance(action, over) and action not in actions:
                    task.cancel()
            open_ends = [(action, task) for action, task in open_ends if not task.done()]
            actions = (await self._events.get())()

    async def _perform(self, action: _Request) -> None:
        match action:
            case Fence():
                await self._fence(action)
            case RecoveryRead():
                await self._read(action)
            case RecoveryAdd():
                await self._add(action)
            case AwaitStragglers():
                await self._await_stragglers(action)
            case FindSpares():
                await self._find_spares(action)
            case ReadEnd():
                await self._read_end(action)
            case FindLast():
                await self._find_last(action)

    async def _fence(self, action: Fence) -> None:
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

    async def _read(self, action: RecoveryRead) -> None:
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

    async def _add(self, action: RecoveryAdd) -> None:
        at, to, entry_id = action.position, action.bookie_id, action.entry_id
        adds = self._adds[to]
        if self._adding_since is None:
            self._adding_since = self._context.clock.monotonic()
        error = await adds.add(len(action.batch), partial(self._send, adds, action))
        if error is None:
            await self._report(self._machine.added, at, entry_id)
            return
        if isinstance(error, EntryTooLarge):
            # That was said of this batch: it may take those that are smaller.
            _log.warning(
                "a batch is too large for a bookie", bookie_id=to, ledger_id=self._ledger_id, entry_id=entry_id,
                batch_bytes=len(action.batch),
            )  # fmt: skip
            await self._report(self._machine.add_failed, at, entry_id, error)
            return
        if isinstance(error, Conflict):
            _log.error("other bytes at a bookie", bookie_id=to, ledger_id=self._ledger_id, entry_id=entry_id)
            # That was said of this entry, and not of those after it.
            adds.write_off(BookieUnavailable(f"{to} holds other bytes from entry {entry_id}"))
        adds.write_off(error)
        await self._report(self._machine.add_failed, at, entry_id, error)

    async def _send(self, adds: MemberAdds, action: RecoveryAdd) -> None:
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
            while (left_s := max((adds.patience_s(began, pace_s) for adds in late.values()), default=0.0)) > 0:
                await clock.sleep(left_s)
        finally:
            waited_s = clock.monotonic() - began
            self._waited_s += waited_s
            for adds in late.values():
                adds.waited_s += waited_s
        for bookie_id in [bookie_id for bookie_id, adds in late.items() if adds.unanswered]:
            # It lacks what is on record; asking again would cost this wait in every window.
            _log.warning("a recovery does not wait for it any longer", bookie_id=bookie_id, ledger_id=self._ledger_id)
            late[bookie_id].write_off(BookieUnavailable(f"{bookie_id} did not answer in time"))
        await self._report(self._machine.stragglers_late, action.round_number)

    async def _find_spares(self, action: FindSpares) -> None:
        found: dict[int, str] = {}
        try:
            while left := [position for position in action.positions if position not in found]:
                # Whoever failed once is written off, though it may still let us in: each search offers new ones.
                more = await self._context.spares.find(
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
            # Who is alive cannot be told: then it has to do without.
        await self._report(self._machine.spares_found, found)

    @property
    def _written_off(self) -> list[str]:
        return [bookie_id for bookie_id, adds in self._adds.items() if adds.written_off]

    async def _while_busy(
        self,
        bookie_id: str,
        ask: Callable[[BookieConnection], Awaitable[T]],
        patience_ms: int,
        progress: Progress | None = None,
    ) -> T:
        """Ask a bookie; while it is BUSY, again after the pause it names. The patience counts from its ``progress``.

        The same while the metadata do not answer that it, or this client, has to ask about the ledger first.
        """
        began = self._context.clock.monotonic()
        backoff = Backoff(self._context.rng, first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)
        while True:
            try:
                return await ask(await self._context.connections.get(bookie_id))
            except (Busy, MetadataUnavailable) as asks_for_patience:
                error = asks_for_patience
            pause_s = max(error.retry_after_ms, 1) / 1000 if isinstance(error, Busy) else backoff.next_s()
            since = max(began, progress.at) if progress else began
            if self._context.clock.monotonic() + pause_s >= since + patience_ms / 1000:
                raise error
            await self._context.clock.sleep(pause_s)

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
                lambda bookie: last_held(bookie, self._ledger_id, action.first, action.before, identity=self._identity),
                self._settings.request_timeout_ms,
            )
        except TallybookError as error:
            await self._report(self._machine.last_failed, at, action.before, error)
        else:
            told = partial(self._machine.last_found, limbo=found.limbo)
            await self._report(told, at, action.before, found.entry_id)

    def _members(self, entry_id: int) -> tuple[str, ...]:
        """Who is asked about an entry: those whom the metadata named for it when the recovery began."""
        last = self._metadata.last_fragment
        return self._bookies if entry_id >= last.first_entry_id else self._metadata.fragment_of(entry_id).bookies

    async def _report(self, event: Callable[..., list[Action]], *arguments: object) -> None:
        await self._events.put(lambda: event(*arguments))

"""The segments of one writer: made in advance, changed when they are full, mended when they fail, sealed behind it.

    make(n+1) ------------------------------.
                                            v
    n: full --> hold --> all confirmed --> mark the end --> n+1 --.
                                                                  |--> close n, seal it in the head
    n: failed --> recover n --> seal it --> make another --> send again what is not in n

Changing to a segment that is there already takes one round trip to bookies and no write to the metadata store. While
there is none, however long the store stays away, the segment that is full is written on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from tallybook.client.background import defect_of
from tallybook.client.client import Client
from tallybook.core.errors import NoSuchStream, NotEnoughBookies, StreamEnded, StreamFenced, TallybookError, is_defect
from tallybook.core.marks import sometimes
from tallybook.metadata.ledger_use import STREAM
from tallybook.offload.policy import OFFLOAD_AFTER
from tallybook.runtime.backoff import Backoff
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks

from ..catalog import Catalog
from ..deleting import delete_ledgers
from ..head import Head, Owner, Segment, add_segment, announce, forget_doomed, release, seal
from ..load import StreamLoad
from .ending import recovered_end
from .flow import Flow, Target

MENDING_SECONDS: Final = 60.0
"""For how long a writer tries to go on after its segment has failed."""
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 2.0
TIDY_SECONDS: Final = 30.0
"""Pause before what the writer before left is deleted: a ledger that it was just making may be there only by then."""
MAKING_PART: Final = 0.5
"""The next segment is made when this one has reached so much of its size, or age."""

_log = logger("stream.writer")


class Segments:
    """Gives a flow its targets.

    Args:
        head: with the writer as its owner, and no segment open.
    """

    def __init__(
        self,
        catalog: Catalog,
        client: Client,
        head: Head,
        owner: Owner,
        flow: Flow,
        clock: Clock,
        tasks: Tasks,
        load: StreamLoad,
    ) -> None:
        self._load = load
        self._catalog = catalog
        self._client = client
        self._head = head
        self._owner = owner
        self._flow = flow
        self._clock = clock
        self._rng = client.world.rng.fork("segments")
        self._tasks = tasks
        self._current: Target | None = None
        self._next: Target | None = None
        self._making: asyncio.Task[None] | None = None
        self._make_again_at = float("-inf")
        self._rolling: asyncio.Task[None] | None = None
        self._full: deque[Target] = deque()
        """Segments to which nothing is added any more, and which are not sealed yet."""
        self._sealing: asyncio.Task[None] | None = None
        self._unused: int | None = None
        """The id of a ledger that was announced, and certainly not made."""
        self._mending: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None
        """Deletes what the writer before has left half made."""
        self._stopped = False
        flow.on_failed, flow.on_sent = self.failed, self.sent

    @property
    def head(self) -> Head:
        """The stream, as the writer last saw or changed it."""
        return self._head

    async def begin(self) -> None:
        """Make the first segment, and let the flow go.

        Raises:
            As ``Catalog.change`` and ``Client.create_ledger``; StreamFenced: a newer writer has taken the stream.
        """
        self._go_on(await self._make())
        if self._head.doomed:
            self._tidying = self._spawn(self._tidy_later(), "tidy")

    def _go_on(self, target: Target) -> None:
        target.opened_at = self._clock.monotonic()
        self._load.segments += 1
        self._current, self._next = target, None
        self._flow.start(target)

    # -- growing -----------------------------------------------------------------------------------------------------

    def sent(self, target: Target) -> None:
        """The flow has sent something: see whether the segment is full, or soon will be."""
        policy = self._head.policy
        age = self._clock.monotonic() - target.opened_at
        part = max(target.sent_bytes / policy.roll_bytes, age / policy.roll_after)
        if part < MAKING_PART or target is not self._current:
            return
        if self._next is None:
            if self._making is None and self._clock.monotonic() >= self._make_again_at:
                self._making = self._spawn(self._make_ahead(), "make")
        elif part >= 1 and self._rolling is None:
            self._rolling = self._spawn(self._roll(target, self._next), "roll")

    def look(self) -> None:
        """See whether the segment has grown old, though nothing may be sent any more."""
        if self._current is not None and self._current.sent_bytes:
            self.sent(self._current)

    async def _make_ahead(self) -> None:
        try:
            self._next = await self._make()
        except TallybookError as error:
            self._unless_over(error)
            sometimes("stream: the next segment cannot be made yet")
            self._make_again_at = self._clock.monotonic() + self._backoff(LONGEST_PAUSE_SECONDS).next_s()
        finally:
            self._making = None

    async def _make(self) -> Target:
        """Make a ledger, and list it as the next segment."""
        policy, stream_id = self._head.policy, self._head.stream_id
        ledger_id = self._unused if self._unused is not None else await self._client.reserve_ledger_id()
        self._unused = None
        known = {target.ledger.id for target in (self._current, *self._full) if target is not None}
        await self._change(partial(announce, owner=self._owner, ledger_id=ledger_id, known=known))
        custom = {STREAM: f"{stream_id}/{self._head.next_segment}".encode()}
        if policy.offload_after is not None:
            custom[OFFLOAD_AFTER] = str(policy.offload_after).encode()
        try:
            ledger = await self._client.create_ledger(
                ensemble=policy.ensemble,
                write_quorum=policy.write_quorum,
                ack_quorum=policy.ack_quorum,
                custom=custom,
                ledger_id=ledger_id,
            )
        except NotEnoughBookies:
            # Nothing was made, so the announcement still holds; without end of them the head would have no room left.
            self._unused = ledger_id
            raise
        try:
            now_ms = self._clock.wall_us() // 1000
            await self._change(partial(add_segment, owner=self._owner, ledger_id=ledger_id, now_ms=now_ms))
        except BaseException:
            ledger.abandon()
            raise
        [segment] = [segment for segment in self._head.segments if segment.ledger_id == ledger_id]
        return Target(segment.number, ledger, self._clock.monotonic())

    async def _roll(self, full: Target, following: Target) -> None:
        """Go on in the next segment. What is appended meanwhile gathers."""
        try:
            self._flow.hold()
            # Whoever recovers must never find a later record without an earlier one.
            if not await self._flow.drained():
                return
            self._flow.end_segment(full)
            self._full.append(full)
            self._go_on(following)
            if self._sealing is None:
                self._sealing = self._spawn(self._seal_full(), "seal")
        finally:
            self._rolling = None

    async def _seal_full(self) -> None:
        """Close the segments that are full, and seal them in the head, one after the other."""
        backoff = self._backoff()
        try:
            while self._full:
                try:
                    await self._close_and_seal(self._full[0])
                except TallybookError as error:
                    if self._unless_over(error):
                        return
                    # Who takes over does it, or this writer when it mends; meanwhile readers find the end themselves.
                    sometimes("stream: a segment that is full cannot be sealed yet")
                    await self._clock.sleep(backoff.next_s())
                else:
                    self._full.popleft()
                    backoff.reset()
            await self.tidy()
        finally:
            self._sealing = None

    async def show_full(self) -> bool:
        """Have readers see that segments are over which are full and not sealed yet; ``False``: the writer is over.

        Until they do, they take what is in the next one for hidden: there might be more before it. Bound the wait.
        """
        for full in tuple(self._full):
            while not self._is_sealed(full) and not await self._shows_its_end(full):
                if self._flow.error is not None or self._stopped:
                    return False
                sometimes("stream: bookies have not heard yet that a segment is over")
                await self._clock.sleep(self._backoff().next_s())
        return True

    def _backoff(self, first_s: float = FIRST_PAUSE_SECONDS) -> Backoff:
        return Backoff(self._rng, first_s=first_s, longest_s=LONGEST_PAUSE_SECONDS)

    def _is_sealed(self, full: Target) -> bool:
        segment = self._head.segment(full.number)
        return segment is None or segment.end is not None

    async def _shows_its_end(self, full: Target) -> bool:
        """Whether its mark is seen. One that was let go of is settled by a recovery, and sealed."""
        mark = full.end_mark
        return mark is not None and full in self._full and await full.ledger.show() >= mark

    async def _close_and_seal(self, full: Target) -> None:
        try:
            await full.ledger.close()
        except TallybookError as error:
            if error.retriable or is_defect(error):
                raise
            # Somebody else has closed it, which changes nothing of what is in it.
            full.ledger.abandon()
        segment = self._head.segment(full.number)
        if segment is not None and segment.end is None:
            await self._end(segment)
        self._head = await self._catalog.fold(self._head)

    # -- mending -----------------------------------------------------------------------------------------------------

    def failed(self, error: TallybookError) -> None:
        """The segment that is written has failed."""
        if self._mending is None and not self._stopped:
            self._mending = self._spawn(self._mend(error), "mend")

    async def _mend(self, error: TallybookError) -> None:
        """Settle what was sent, by recovering the segments it was sent to; then go on in another one."""
        sometimes("stream: a segment has failed")
        self._load.failed_segments += 1
        written = self._current
        which = {} if written is None else {"segment": written.number, "ledger_id": written.ledger.id}
        _log.warning("segment failed", stream=self._head.name, error=error.message, **which)
        deadline, backoff = self._clock.monotonic() + MENDING_SECONDS, self._backoff()
        try:
            await self._let_go()
            target: Target | None = None
            while target is None:
                try:
                    await self._recover()
                    target = await self._make()
                except TallybookError as trouble:
                    if self._unless_over(trouble):
                        return
                    pause = backoff.next_s()
                    hopeless = not trouble.retriable and trouble.settled
                    if self._clock.monotonic() + pause > deadline or hopeless:
                        self._flow.die(trouble)
                        return
                    await self._clock.sleep(pause)
            self._flow.take_back()
            await self.tidy()
        finally:
            self._mending = None
        sometimes("stream: goes on after a segment has failed")
        self._go_on(target)

    async def _let_go(self) -> None:
        """End all that is under way about segments, and let go of their ledgers."""
        await self._stop(self._making, self._rolling, self._sealing)
        # One that was cancelled before its first step has not said itself that it is over.
        self._making = self._rolling = self._sealing = None
        self._abandon_ledgers()

    async def _stop(self, *tasks: asyncio.Task[None] | None) -> None:
        under_way = [task for task in tasks if task is not None]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    def _abandon_ledgers(self) -> None:
        for target in (self._current, self._next, *self._full):
            if target is not None:
                target.ledger.abandon()
        self._current = self._next = None
        self._full.clear()

    async def _recover(self) -> None:
        head = await self._catalog.read(self._head.stream_id, self._head.name)
        if head.ended:
            self._head = head
            return
        if head.owner != self._owner:
            raise StreamFenced(f"stream {head.name} was taken by another writer")
        self._head = head
        for segment in head.open_segments:
            if not self._head.ended:
                await self._end(segment)

    async def _end(self, segment: Segment) -> None:
        before, now_ms = self._head.settled_marks, self._clock.wall_us() // 1000
        found = await recovered_end(self._client, segment, before, self._head.tag, now_ms)
        self._flow.recovered(segment.number, found.end.last_entry)
        await self._change(partial(seal, owner=self._owner, number=segment.number, **found.as_sealed))

    def _unless_over(self, error: TallybookError) -> bool:
        """Whether ``error`` says that this writer is over, which it then is.

        Raises:
            ``error``, if it is a defect.
        """
        if is_defect(error):
            raise error
        if isinstance(error, StreamFenced | StreamEnded | NoSuchStream):
            self._flow.die(error)
        return self._flow.error is not None

    # -- the end -----------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Seal what is open, and let go of the stream, which has ended if its end was marked. May be called again.

        Nothing is unsettled.

        Raises:
            As ``Catalog.change`` and ``Client.open_ledger``: it is not sealed, or not let go of. Whoever takes over
                does it.
        """
        self._stopped = True
        await self._let_go_gently()
        await self._recover()
        await self._change(partial(release, owner=self._owner))
        await self.tidy()

    async def _let_go_gently(self) -> None:
        """Close what can be closed without a recovery; the rest is recovered."""
        await self._stop(self._making, self._rolling, self._sealing, self._mending, self._tidying)
        for target in (*self._full, self._current, self._next):
            if target is not None:
                try:
                    await target.ledger.close()
                except TallybookError as error:
                    if is_defect(error):
                        raise
        self._abandon_ledgers()

    async def _tidy_later(self) -> None:
        await self._clock.sleep(TIDY_SECONDS)
        await self.tidy()

    async def tidy(self) -> None:
        """Delete ledgers that nobody may read any more; what cannot be deleted now is left to others."""
        try:
            gone = await delete_ledgers(self._client, self._head.doomed, [])
            if gone:
                await self._change(partial(forget_doomed, ledger_ids=gone))
        except TallybookError as error:
            if is_defect(error):
                raise
            _log.info("ledgers are deleted later", stream=self._head.name, error=error.message)

    def abandon(self) -> None:
        """Let go of everything at once; whoever takes over does the rest."""
        self._stopped = True
        for task in (self._making, self._rolling, self._sealing, self._mending, self._tidying):
            if task is not None:
                task.cancel()
        self._abandon_ledgers()

    async def _change(self, transition: Callable[[Head], Head]) -> None:
        self._head = await self._catalog.change(self._head.stream_id, transition)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._tasks.spawn(work, name=f"stream-{self._head.name}-{name}")
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A writer of which a part died of a defect must not look alive."""
        error = defect_of(task)
        if error is not None:
            self._flow.die(error)

"""The segments of one writer: created in advance, rolled when full, recovered when they fail, then sealed.

    make(n+1) ------------------------------.
                                            v
    n: full --> hold --> all confirmed --> mark the end --> n+1 --.
                                                                  |--> close n, seal it in the head
    n: failed --> recover n --> seal it --> make another --> send again what is not in n

Rolling to a segment that exists takes one round trip to bookies and no metadata write. While there is none (the
metadata store may be unavailable), the full segment is still written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from tallybook.client.background import defect_of
from tallybook.client.client import Client
from tallybook.core.coverage import sometimes
from tallybook.core.errors import NoSuchStream, NotEnoughBookies, StreamEnded, StreamFenced, TallybookError, is_defect
from tallybook.metadata.ledger.archived import OFFLOAD_AFTER
from tallybook.metadata.stream_use import STREAM
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks

from ..catalog.catalog import StreamCatalog
from ..catalog.head import Head, Owner, StreamSegment, add_segment, announce, forget_doomed, release, seal
from ..load import StreamLoad
from ..reader.segment_end import recovered_end
from ..records.compression import Compression
from .deletion import delete_ledgers
from .flow import RecordFlow, SegmentTarget
from .quota import WriterQuota

RECOVERY_SECONDS: Final = 60.0
"""How long a writer retries to recover after its segment has failed."""
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 2.0
TIDY_SECONDS: Final = 30.0
"""Delay before ledgers of the previous writer are deleted: one may still have been in creation."""
CREATE_AHEAD_SHARE: Final = 0.5
"""The next segment is created when the current one has reached this share of its maximum size or age."""

_log = logger("stream.writer")


class WriterSegments:
    """Creates, rolls, recovers and seals the segments of one writer, and gives them to its ``flow``.

    Args:
        head: the stream's head, with the writer as its owner, and without open segments.
    """

    def __init__(
        self,
        catalog: StreamCatalog,
        client: Client,
        head: Head,
        owner: Owner,
        quota: WriterQuota,
        clock: Clock,
        tasks: Tasks,
        load: StreamLoad,
    ) -> None:
        self._load = load
        self._catalog = catalog
        self._client = client
        self._head = head
        self._owner = owner
        self.flow = RecordFlow(
            head.settled_marks,
            head.last_place,
            head.tag,
            Compression.named(head.policy.compression),
            client.budget,
            clock,
            load,
            events=self,
            max_bytes=client.max_entry_bytes,
        )
        """The writer's records."""
        self._quota = quota
        self._sent_bytes = 0
        """Payload sent to segments before the current one."""
        self._refreshing: asyncio.Task[None] | None = None
        self._clock = clock
        self._rng = client.world.rng.fork("segments")
        self._tasks = tasks
        self._current: SegmentTarget | None = None
        self._next: SegmentTarget | None = None
        self._making: asyncio.Task[None] | None = None
        self._make_again_at = float("-inf")
        self._rolling: asyncio.Task[None] | None = None
        self._full: deque[SegmentTarget] = deque()
        """Segments that are full and not sealed yet."""
        self._sealing: asyncio.Task[None] | None = None
        self._unused: int | None = None
        """Id of a ledger that was announced and certainly not created."""
        self._recovering: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None
        """Deletes ledgers that the previous writer has left."""
        self._stopped = False

    @property
    def head(self) -> Head:
        """The stream's head, as last read or changed."""
        return self._head

    async def begin(self) -> None:
        """Create the first segment, and start the flow.

        Raises:
            As ``StreamCatalog.change`` and ``Client.create_ledger``; StreamFenced: a newer writer has taken the stream.
        """
        await self._quota.refresh(self._head, 0)
        self._go_on(await self._make())
        self._check_quota()
        if self._head.doomed:
            self._tidying = self._spawn(self._tidy_later(), "tidy")

    def _go_on(self, target: SegmentTarget) -> None:
        target.opened_at = self._clock.monotonic()
        self._load.segments += 1
        self._current, self._next = target, None
        self.flow.start(target)

    # -- growing -----------------------------------------------------------------------------------------------------

    def sent(self, target: SegmentTarget) -> None:
        """The flow has sent an envelope: check quotas; create the next segment, or roll, if it is time."""
        self._check_quota()
        policy = self._head.policy
        age = self._clock.monotonic() - target.opened_at
        part = max(target.sent_bytes / policy.roll_bytes, age / policy.roll_after)
        if part < CREATE_AHEAD_SHARE or target is not self._current:
            return
        if self._next is None:
            if self._making is None and self._clock.monotonic() >= self._make_again_at:
                self._making = self._spawn(self._make_ahead(), "make")
        elif part >= 1 and self._rolling is None:
            self._rolling = self._spawn(self._roll(target, self._next), "roll")

    def check_age(self) -> None:
        """Check the age of the segment, also without appends."""
        if self._current is not None and self._current.sent_bytes:
            self.sent(self._current)
        if self._quota.due and self._refreshing is None:
            self._refreshing = self._spawn(self._refresh_quota(), "quota")

    def group_opened(self) -> None:
        """Another envelope begins to gather: check quotas."""
        self._check_quota()

    @property
    def _all_sent_bytes(self) -> int:
        return self._sent_bytes + (0 if self._current is None else self._current.sent_bytes)

    def _check_quota(self) -> None:
        if not self._quota.limited:
            self.flow.set_quota_error(None)
            return
        # With compression, it is not known how much the records that are not sent yet will take.
        unsent_bytes = self.flow.unsent_bytes if self._head.policy.compression == "none" else 0
        unsealed = [target for target in (self._current, *self._full) if target is not None]
        unsealed_bytes = sum(target.sent_bytes for target in unsealed) + unsent_bytes
        self.flow.set_quota_error(self._quota.check(self._head, unsealed_bytes, self._all_sent_bytes + unsent_bytes))

    async def _refresh_quota(self) -> None:
        """Read head and quotas again: space was freed, or a quota was changed."""
        try:
            self._head = await self._catalog.read(self._head.stream_id, self._head.name)
            await self._quota.refresh(self._head, self._all_sent_bytes)
            self._check_quota()
        except TallybookError as error:
            self._unless_over(error)
        finally:
            self._refreshing = None

    async def _make_ahead(self) -> None:
        try:
            self._next = await self._make()
        except TallybookError as error:
            self._unless_over(error)
            sometimes("stream: the next segment cannot be made yet")
            self._make_again_at = self._clock.monotonic() + self._backoff(LONGEST_PAUSE_SECONDS).next_s()
        finally:
            self._making = None

    async def _make(self) -> SegmentTarget:
        """Create a ledger, and add it to the head as the next segment."""
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
            # The ledger was not created; reuse its id, or announced ids would fill the head.
            self._unused = ledger_id
            raise
        try:
            now_ms = self._clock.wall_us() // 1000
            await self._change(partial(add_segment, owner=self._owner, ledger_id=ledger_id, now_ms=now_ms))
        except BaseException:
            ledger.abandon()
            raise
        [segment] = [segment for segment in self._head.segments if segment.ledger_id == ledger_id]
        return SegmentTarget(segment.number, ledger, self._clock.monotonic())

    async def _roll(self, full: SegmentTarget, following: SegmentTarget) -> None:
        """Roll to the next segment. Records appended meanwhile gather."""
        try:
            self.flow.hold()
            # Drain first: a recovery must never find a later record without an earlier one.
            if not await self.flow.drained():
                return
            self.flow.end_segment(full)
            self._full.append(full)
            self._sent_bytes += full.sent_bytes
            self._go_on(following)
            if self._sealing is None:
                self._sealing = self._spawn(self._seal_full(), "seal")
        finally:
            self._rolling = None

    async def _seal_full(self) -> None:
        """Close full segments, and seal them in the head, one after another."""
        backoff = self._backoff()
        try:
            while self._full:
                try:
                    await self._close_and_seal(self._full[0])
                except TallybookError as error:
                    if self._unless_over(error):
                        return
                    # Retried; otherwise the next writer seals it. Meanwhile readers find the end by its mark.
                    sometimes("stream: a segment that is full cannot be sealed yet")
                    await backoff.pause()
                else:
                    self._full.popleft()
                    backoff.reset()
            await self._quota.refresh(self._head, self._all_sent_bytes)
            self._check_quota()
            await self.tidy()
        finally:
            self._sealing = None

    async def show_full(self) -> bool:
        """Publish the end marks of full segments that are not sealed yet; ``False`` if the writer has ended.

        Until readers see the end of a segment, they do not read the next one. Bound the wait.
        """
        for full in tuple(self._full):
            while not self._is_sealed(full) and not await self._shows_its_end(full):
                if self.flow.error is not None or self._stopped:
                    return False
                sometimes("stream: bookies have not heard yet that a segment is over")
                await self._backoff().pause()
        return True

    def _backoff(self, first_s: float = FIRST_PAUSE_SECONDS) -> Backoff:
        return Backoff(self._clock, self._rng, first_s=first_s, longest_s=LONGEST_PAUSE_SECONDS)

    def _is_sealed(self, full: SegmentTarget) -> bool:
        segment = self._head.segment(full.number)
        return segment is None or segment.end is not None

    async def _shows_its_end(self, full: SegmentTarget) -> bool:
        """Whether readers see its end mark. An abandoned segment is sealed by a recovery instead."""
        mark = full.end_mark
        return mark is not None and full in self._full and await full.ledger.show() >= mark

    async def _close_and_seal(self, full: SegmentTarget) -> None:
        try:
            await full.ledger.close()
        except TallybookError as error:
            if error.retriable or is_defect(error):
                raise
            # Another process has closed it, which does not change its entries.
            full.ledger.abandon()
        segment = self._head.segment(full.number)
        if segment is not None and segment.end is None:
            await self._end(segment)
        self._head = await self._catalog.fold(self._head)

    # -- recovering --------------------------------------------------------------------------------------------------

    def failed(self, error: TallybookError) -> None:
        """The current segment has failed."""
        if self._recovering is None and not self._stopped:
            self._recovering = self._spawn(self._continue_after(error), "mend")

    async def _continue_after(self, error: TallybookError) -> None:
        """Recover the segments to which records were sent, then continue in another one."""
        sometimes("stream: a segment has failed")
        self._load.failed_segments += 1
        written = self._current
        which = {} if written is None else {"segment": written.number, "ledger_id": written.ledger.id}
        _log.warning("segment failed", stream=self._head.name, error=error.message, **which)
        backoff = self._backoff()
        backoff.deadline = self._clock.monotonic() + RECOVERY_SECONDS
        try:
            await self._abandon_all()
            target: SegmentTarget | None = None
            while target is None:
                try:
                    await self._recover()
                    target = await self._make()
                except TallybookError as trouble:
                    if self._unless_over(trouble):
                        return
                    hopeless = not trouble.retriable and trouble.settled
                    if hopeless or not await backoff.pause():
                        self.flow.die(trouble)
                        return
            self.flow.take_back()
            await self.tidy()
        finally:
            self._recovering = None
        await self._quota.refresh(self._head, self._sent_bytes)
        sometimes("stream: goes on after a segment has failed")
        self._go_on(target)

    async def _abandon_all(self) -> None:
        """Stop all tasks of segments, and abandon their ledgers."""
        await self._stop(self._making, self._rolling, self._sealing)
        self._sent_bytes = self._all_sent_bytes
        # A task that was cancelled before its first step has not reset its attribute itself.
        self._making = self._rolling = self._sealing = None
        self._abandon_ledgers()

    async def _stop(self, *tasks: asyncio.Task[None] | None) -> None:
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

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

    async def _end(self, segment: StreamSegment) -> None:
        before, now_ms = self._head.settled_marks, self._clock.wall_us() // 1000
        found = await recovered_end(self._client, segment, before, self._head.tag, now_ms)
        self.flow.recovered(segment.number, found.end.last_entry)
        await self._change(partial(seal, owner=self._owner, number=segment.number, **found.as_sealed))

    def _unless_over(self, error: TallybookError) -> bool:
        """Whether the writer has ended; it ends here if ``error`` means that the stream is lost to it.

        Raises:
            ``error``, if it is a defect.
        """
        if is_defect(error):
            raise error
        if isinstance(error, StreamFenced | StreamEnded | NoSuchStream):
            self.flow.die(error)
        return self.flow.error is not None

    # -- the end -----------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Seal open segments, and release the stream. No record may be pending. May be called again.

        Raises:
            As ``StreamCatalog.change`` and ``Client.open_ledger``: not sealed, or not released; the next writer does.
        """
        self._stopped = True
        await self._close_ledgers()
        await self._recover()
        await self._change(partial(release, owner=self._owner))
        await self.tidy()

    async def _close_ledgers(self) -> None:
        """Close ledgers that can be closed without a recovery."""
        await self._stop(self._making, self._rolling, self._sealing, self._recovering, self._tidying, self._refreshing)
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
        """Delete doomed ledgers; those that cannot be deleted now are left to the janitor."""
        try:
            gone = await delete_ledgers(self._client, self._head.doomed, [])
            if gone:
                await self._change(partial(forget_doomed, ledger_ids=gone))
        except TallybookError as error:
            if is_defect(error):
                raise
            _log.info("ledgers are deleted later", stream=self._head.name, error=error.message)

    def abandon(self) -> None:
        """Abandon everything at once; the next writer recovers the segments."""
        self._stopped = True
        for task in (self._making, self._rolling, self._sealing, self._recovering, self._tidying, self._refreshing):
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
        """End the writer if one of its tasks ended with an unexpected error."""
        error = defect_of(task)
        if error is not None:
            self.flow.die(error)

"""What clients do with streams during a run, each in a process of its own.

    producer     takes a stream, writes it, and loses it (``producers``)
    follower     reads one, from wherever, and goes on for a while
    subscriber   reads one under a name, and says how far it has come
    keeper       looks after all of them, and truncates
    meddler      renames, deletes and changes streams, and recovers segments behind the backs of their writers

What they do and are told goes into a history of its own (``stream_history``), which ``stream_check`` goes through in
the end; what cannot be for a subscription is found at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from tallybook.core.errors import (
    InvalidArgument,
    NoSuchStream,
    StreamEnded,
    StreamExists,
    StreamGap,
    TallybookError,
    is_defect,
)
from tallybook.metadata.ledger_use import STREAM
from tallybook.metadata.model import LedgerState
from tallybook.runtime.deterministic import SimClock
from tallybook.stream import Cursor, Gap, Position, Start, StreamReader, StreamStore, SubscriptionReader
from tallybook.stream.position import TAG_CHARS

from .god import God
from .producers import Producer, Source
from .stream_history import Advances, Seen, StreamHistory, StreamReading
from .stream_swarm import LIES, StreamSwarm
from .swarm import Swarm, pick

if TYPE_CHECKING:
    from .workload import ClientProcess, Workload

SUBSCRIPTIONS: Final = ("billing", "audit")
RESETS: Final = 0.06
"""Share of what subscribers do that sets a subscription anew."""
TRUNCATIONS: Final = 0.15
"""Share of a keeper's rounds after which a stream is truncated."""
DELETIONS: Final = 0.1
"""Share of what meddlers do that deletes a stream."""


class Streaming:
    """What clients do with streams."""

    def __init__(self, swarm: Swarm, streams: StreamSwarm, workload: Workload, god: God) -> None:
        self.swarm = streams
        self.workload = workload
        self.god = god
        self.clock = SimClock()
        clock_faults = any(name in {"clock_jump", "offloader_clock"} for name, _ in swarm.faults)
        skewed = swarm.archive is not None and swarm.archive.skew_s > 0
        self.history = StreamHistory(
            self.clock.monotonic,
            retention_s=streams.retention_s,
            dedup_records=streams.dedup_records,
            clocks_agree=not clock_faults and not skewed,
            bookies_lie=LIES in dict(swarm.faults),
        )
        self.all_ended = False
        """Every stream was ended, after healing."""
        self._cluster = swarm
        self._sources: dict[tuple[str, str], Source] = {}
        self._names = [f"s{number}" for number in range(streams.streams)]

    def employ(self) -> None:
        """Let all of them begin."""
        swarm, workload = self.swarm, self.workload
        workload.employ("producer", swarm.producers, self._produce)
        workload.employ("follower", swarm.followers, self._follow)
        workload.employ("subscriber", swarm.subscribers, self._subscribe)
        workload.employ("keeper", swarm.keepers, self._keep)
        workload.employ("meddler", swarm.meddlers, self._meddle)

    def source(self, slot: str, tag: str) -> Source:
        """Of a producer, for one stream."""
        return self._sources.setdefault((slot, tag), Source(slot))

    def expected(self, actor: str, error: TallybookError) -> None:
        """An error that a client may meet, or a violation."""
        if is_defect(error):
            self.god.violated("defect", f"{actor} met {error!r}")

    @asynccontextmanager
    async def streams(self, client: ClientProcess) -> AsyncIterator[StreamStore]:
        """The streams, as a client sees them. What it may meet is counted, and ends the block."""
        store = StreamStore(client.client, name=client.name)
        try:
            yield store
        except TallybookError as error:
            self.expected(client.name, error)
            self.god.mark(f"{client.name.partition('-')[0]}: {type(error).__name__}")
        finally:
            await store.close()

    async def _pause(self, client: ClientProcess, mean_seconds: float) -> None:
        await self.clock.sleep(2 * mean_seconds * client.rng.random())

    def _name(self, client: ClientProcess) -> str:
        return pick(client.rng, self._names)

    # -- producers ---------------------------------------------------------------------------------------------------

    async def _produce(self, client: ClientProcess) -> None:
        await self._pause(client, 0.1)
        name, rng = self._name(client), client.rng
        async with self.streams(client) as streams:
            asked_at = self.clock.monotonic()
            try:
                writer = await streams.writer(name, wait_s=pick(rng, (None, None, 2.0, 5.0)))
            except NoSuchStream:
                await self.create(client, streams, name)
                return
            except StreamEnded:
                if rng.random() < 0.3:
                    await self.delete(streams, name)
                return
            story = self.history.story(writer.stream_id[:TAG_CHARS])
            self.god.expect(not story.ended, "S4", f"{client.name} is the writer of stream {name}, which has ended")
            writing = self.history.writing(client.name, story.tag, asked_at)
            await Producer(self, client, writer, writing, story).work()

    async def create(self, client: ClientProcess, streams: StreamStore, name: str) -> None:
        """Make a stream, unless there is one.

        Raises:
            TallybookError: it may not be there.
        """
        quorum = self._cluster.quorum(client.rng)
        try:
            await streams.create(
                name,
                ensemble=quorum.ensemble,
                write_quorum=quorum.write_quorum,
                ack_quorum=quorum.ack_quorum,
                **self.swarm.policy(),
            )
        except StreamExists:
            return
        self.god.mark("streams: created one")

    # -- readers -----------------------------------------------------------------------------------------------------

    async def _follow(self, client: ClientProcess) -> None:
        await self._pause(client, 0.5)
        rng = client.rng
        async with self.streams(client) as streams:
            start, follows = self._start(client), self.workload.over or rng.random() < 0.7
            reader = streams.reader(
                self._name(client),
                start=start,
                follow=follows,
                gaps=pick(rng, ("raise", "yield")),
                slow=pick(rng, ("catch_up", "raise")),
            )
            reading = self.history.reading(client.name, start)
            try:
                async with self.workload.patience(0.5 + 6.0 * rng.random()):
                    await self.read_on(client, reader, reading)
            except TimeoutError:
                self.god.mark("follower: gone before the end")

    async def read_on(self, client: ClientProcess, reader: StreamReader, reading: StreamReading) -> None:
        """Read to the end, from where the reader is again where that fails.

        Raises:
            TallybookError: the stream is gone, or has never been there.
        """
        while True:
            try:
                async with aclosing(reader.batches()) as batches:
                    async for batch in batches:
                        reading.saw(batch)
                return  # noqa: TRY300 - an else would stand behind all that may go wrong
            except StreamGap as error:
                if isinstance(error.gap, Gap):
                    reading.saw(error.gap)
            except (NoSuchStream, InvalidArgument):
                raise
            except TallybookError as error:
                self.expected(client.name, error)
                self.god.mark(f"reader of a stream: {type(error).__name__}")
                await self._pause(client, 0.2)

    def _start(self, client: ClientProcess) -> Start:
        """Mostly from the beginning; or from what somebody has seen, in one of the ways there are."""
        rng = client.rng
        known = self._known(client)
        if known is None or rng.random() < 0.4:
            return Start.latest() if rng.random() < 0.2 else Start.earliest()
        tag, record = known
        position = Position(*record.place, tag=tag)
        return pick(
            rng,
            (
                Start.at(position),
                Start.after(position),
                Start.sequence(record.sequence),
                Start.timestamp(record.timestamp_ms),
                Start.txid(record.txid or 0),
            ),
        )

    def _known(self, client: ClientProcess, part: float = 1.0) -> tuple[str, Seen] | None:
        """A record that somebody has seen lately, in the first part of what he has seen."""
        readings = [reading for reading in self.history.readings[-10:] if reading.records]
        if not readings:
            return None
        reading = pick(client.rng, readings)
        records = reading.records
        return reading.tag, pick(client.rng, records[: 1 + int(part * (len(records) - 1))])

    # -- subscribers -------------------------------------------------------------------------------------------------

    async def _subscribe(self, client: ClientProcess) -> None:
        await self._pause(client, 0.3)
        rng, name = client.rng, pick(client.rng, SUBSCRIPTIONS)
        async with self.streams(client) as streams:
            if rng.random() < RESETS:
                await self._begin_anew(client, streams, name)
                return
            promised = {tag: story.advances(name).promised() for tag, story in self.history.stories.items()}
            handle = await streams.subscribe(
                self._name(client), name, wait_s=pick(rng, (None, None, 2.0)), gaps="yield"
            )
            cursor = handle.cursor
            tag = cursor.position.tag
            advances = self.history.story(tag).advances(name)
            # While a stream is deleted, so are its subscriptions, and the ledgers that tell how far they have come.
            deleted = self.history.story(tag).deleted
            before = promised.get(tag, advances.promised())
            problem = "" if deleted else advances.problem(before, cursor)
            self.god.expect(not problem, "S9", f"subscription {name} of stream {tag}, for {client.name}, {problem}")
            turn = before.turn
            advances.tell(cursor, turn)
            start = cursor.start if cursor.after or advances.turn else Start.earliest()
            reading = self.history.reading(client.name, start)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5 + 3.0 * rng.random()):
                    await self._advance(client, handle, reading, advances, turn)
            draw = rng.random()
            if draw < 0.5:
                await handle.close()
            elif draw < 0.75:
                handle.abandon()

    async def _advance(
        self,
        client: ClientProcess,
        handle: SubscriptionReader,
        reading: StreamReading,
        advances: Advances,
        turn: int,
    ) -> None:
        rng = client.rng
        async with aclosing(handle.batches()) as batches:
            async for batch in batches:
                reading.saw(batch)
                if isinstance(batch, Gap) or rng.random() < 0.3:
                    continue
                position = pick(rng, batch).position
                cursor = Cursor(position, after=True)
                advances.want(cursor)
                if rng.random() < 0.3:
                    handle.advance_nowait(position)
                    continue
                await handle.advance(position)
                advances.tell(cursor, turn)
                self.god.mark("subscriber: an advance is stored")

    async def _begin_anew(self, client: ClientProcess, streams: StreamStore, name: str) -> None:
        """Set a subscription back or forth, or delete it."""
        stream, rng = self._name(client), client.rng
        self.history.story((await streams.info(stream)).stream_id[:TAG_CHARS])
        # Of all streams: by the time it is done, the name may lead to another one.
        stories = [(story, story.advances(name)) for story in self.history.stories.values()]
        turns = [advances.begin_anew() for _, advances in stories]
        done, cursor = False, None
        try:
            if rng.random() < 0.3:
                await streams.unsubscribe(stream, name)
                self.god.mark("subscriber: deleted a subscription")
            else:
                cursor = (await streams.reset_subscription(stream, name, self._start(client))).cursor
                self.god.mark("subscriber: set a subscription anew")
            done = True
        finally:
            for (story, advances), turn in zip(stories, turns, strict=True):
                other = cursor is not None and cursor.position.tag != story.tag
                advances.end_anew(turn, done=done, cursor=advances.told if other else cursor)

    # -- keepers and meddlers ----------------------------------------------------------------------------------------

    async def _keep(self, client: ClientProcess) -> None:
        await self._pause(client, 0.7)
        async with self.streams(client) as streams:
            failed = await streams.keep()
            self.god.mark("keeper: a round of all" if not failed else "keeper: some are left for later")
            if client.rng.random() < TRUNCATIONS:
                await self._truncate(client, streams)

    async def _truncate(self, client: ClientProcess, streams: StreamStore) -> None:
        known = self._known(client, part=client.rng.random() ** 3)
        if known is None:
            return
        tag, record = known
        story = self.history.story(tag)
        story.given_up = max(story.given_up, record.sequence)
        by_number = client.rng.random() < 0.3
        before = Start.sequence(record.sequence) if by_number else Position(*record.place, tag=tag)
        # A number says nothing of which stream is meant, and there may be another one of that name by now.
        for other in self.history.stories.values() if by_number else ():
            other.given_up = max(other.given_up, record.sequence)
        await streams.truncate(self._name(client), before=before)
        self.god.mark("keeper: truncated a stream")

    async def _meddle(self, client: ClientProcess) -> None:
        await self._pause(client, 1.0)
        rng, name = client.rng, self._name(client)
        async with self.streams(client) as streams:
            draw = rng.random()
            if draw < DELETIONS:
                await self.delete(streams, name)
            elif draw < 0.2:
                await streams.rename(name, pick(rng, (f"{name}x", name.rstrip("x"))))
                self.god.mark("meddler: renamed a stream")
            elif draw < 0.35:
                await streams.set_policy(name, roll_bytes=pick(rng, (1024, 4096)))
            elif draw < 0.45:
                await self._list(streams, name)
            else:
                await self._recover(client)

    async def _recover(self, client: ClientProcess) -> None:
        """Recover a segment that is written, so that its writer has to go on in another one."""
        segments = [
            ledger_id
            for ledger_id, known in self.god.ledgers.items()
            if STREAM in known.metadata.custom and known.metadata.state is LedgerState.OPEN
        ]
        if segments:
            await client.client.recover_ledger(pick(client.rng, segments[-3:]))
            self.god.mark("meddler: recovered a segment that is written")

    async def _list(self, streams: StreamStore, name: str) -> None:
        async for each in streams.list():
            if each == name:
                async for _ in streams.subscriptions(name):
                    self.god.mark("meddler: looked at subscriptions")

    async def delete(self, streams: StreamStore, name: str) -> None:
        """Delete a stream.

        Raises:
            TallybookError: it may be there yet, or in part.
        """
        self.history.deletions = True
        self.history.story((await streams.info(name)).stream_id[:TAG_CHARS]).deleted = True
        await streams.delete(name)
        self.god.mark("meddler: deleted a stream")

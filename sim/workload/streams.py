"""Stream clients of a run, each in a process of its own.

    producer     takes a stream over, writes it, and loses it (``producers``)
    follower     reads from some start position for a while
    subscriber   reads under a subscription and advances it
    "keeper"     runs the stream janitor, and truncates
    meddler      renames, deletes and changes streams, and recovers segments that are being written

Operations and results go into a stream history (``stream_history``), which ``checks/stream_check`` checks at the end of
the run. Subscription violations are found at once.
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
from tallybook.metadata.ledger.model import LedgerState
from tallybook.metadata.stream_use import STREAM
from tallybook.stream import Cursor, Gap, Position, Start, StreamReader, StreamStore, SubscriptionReader
from tallybook.stream.position import TAG_CHARS

from ..configuration.run_configuration import RunConfiguration, pick
from ..configuration.stream_configuration import LIES, StreamConfiguration
from ..deterministic import SimClock
from ..oracle.oracle import Oracle
from .producers import RecordSource, StreamProducer
from .stream_history import ReadRecord, StreamHistory, StreamReading, SubscriptionProgress

if TYPE_CHECKING:
    from .ledgers import ClientProcess, Workload

SUBSCRIPTIONS: Final = ("billing", "audit")
RESETS: Final = 0.06
"""Share of a subscriber's operations that reset or delete a subscription."""
TRUNCATIONS: Final = 0.15
"""Share of a janitor's passes after which it truncates a stream."""
DELETIONS: Final = 0.1
"""Share of a meddler's operations that delete a stream."""


class Streaming:
    """Actors that work with streams."""

    def __init__(
        self, config: RunConfiguration, streams: StreamConfiguration, workload: Workload, oracle: Oracle
    ) -> None:
        self.config = streams
        self.workload = workload
        self.oracle = oracle
        self.clock = SimClock()
        clock_faults = any(name in {"clock_jump", "offloader_clock"} for name, _ in config.faults)
        skewed = config.archive is not None and config.archive.skew_s > 0
        self.history = StreamHistory(
            self.clock.monotonic,
            retention_s=streams.retention_s,
            dedup_records=streams.dedup_records,
            clocks_agree=not clock_faults and not skewed,
            bookies_lie=LIES in dict(config.faults),
        )
        self.all_ended = False
        """Whether every stream was ended, after healing."""
        self._cluster = config
        self._sources: dict[tuple[str, str], RecordSource] = {}
        self._names = [f"s{number}" for number in range(streams.streams)]

    def start_actors(self) -> None:
        """Start all actors."""
        config, workload = self.config, self.workload
        workload.start_actors("producer", config.producers, self._produce)
        workload.start_actors("follower", config.followers, self._follow)
        workload.start_actors("subscriber", config.subscribers, self._subscribe)
        workload.start_actors("keeper", config.janitors, self._keep)
        workload.start_actors("meddler", config.meddlers, self._meddle)

    def source(self, slot: str, tag: str) -> RecordSource:
        """Record source of a producer for one stream."""
        return self._sources.setdefault((slot, tag), RecordSource(slot))

    def expected(self, actor: str, error: TallybookError) -> None:
        """Record a violation if the error is a defect."""
        if is_defect(error):
            self.oracle.violated("defect", f"{actor} met {error!r}")

    @asynccontextmanager
    async def streams(self, client: ClientProcess) -> AsyncIterator[StreamStore]:
        """A stream store over this client. A TallybookError ends the block and is counted as a coverage mark."""
        store = StreamStore(client.client, name=client.name)
        try:
            yield store
        except TallybookError as error:
            self.expected(client.name, error)
            self.oracle.mark(f"{client.name.partition('-')[0]}: {type(error).__name__}")
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
            facts = self.history.facts_of(writer.stream_id[:TAG_CHARS])
            self.oracle.expect(not facts.ended, "S4", f"{client.name} is the writer of stream {name}, which has ended")
            session = self.history.writer_session(client.name, facts.tag, asked_at)
            await StreamProducer(self, client, writer, session, facts).work()

    async def create(self, client: ClientProcess, streams: StreamStore, name: str) -> None:
        """Create a stream unless it exists.

        Raises:
            TallybookError: it may not exist.
        """
        quorum = self._cluster.quorum(client.rng)
        try:
            await streams.create(
                name,
                ensemble=quorum.ensemble,
                write_quorum=quorum.write_quorum,
                ack_quorum=quorum.ack_quorum,
                **self.config.policy(),
            )
        except StreamExists:
            return
        self.oracle.mark("streams: created one")

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
                async with self.workload.read_timeout(0.5 + 6.0 * rng.random()):
                    await self.read_on(client, reader, reading)
            except TimeoutError:
                self.oracle.mark("follower: gone before the end")

    async def read_on(self, client: ClientProcess, reader: StreamReader, reading: StreamReading) -> None:
        """Read to the end; after an error continue from the reader's position.

        Raises:
            TallybookError: the stream does not exist, or no longer.
        """
        while True:
            try:
                async with aclosing(reader.batches()) as batches:
                    async for batch in batches:
                        reading.saw(batch)
                return  # noqa: TRY300 - an else branch would be far away
            except StreamGap as error:
                if isinstance(error.gap, Gap):
                    reading.saw(error.gap)
            except (NoSuchStream, InvalidArgument):
                raise
            except TallybookError as error:
                self.expected(client.name, error)
                self.oracle.mark(f"reader of a stream: {type(error).__name__}")
                await self._pause(client, 0.2)

    def _start(self, client: ClientProcess) -> Start:
        """Draw a start position: earliest, latest, or one of a record that a reader has seen."""
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

    def _known(self, client: ClientProcess, part: float = 1.0) -> tuple[str, ReadRecord] | None:
        """Draw tag and record of a recent reading, from the first ``part`` of its records."""
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
                await self._reset(client, streams, name)
                return
            promised = {tag: facts.advances(name).promised() for tag, facts in self.history.facts_by_tag.items()}
            handle = await streams.subscribe(
                self._name(client), name, wait_s=pick(rng, (None, None, 2.0)), gaps="yield"
            )
            cursor = handle.cursor
            tag = cursor.position.tag
            advances = self.history.facts_of(tag).advances(name)
            # The deletion of a stream also deletes its subscriptions and their cursor ledgers.
            deleted = self.history.facts_of(tag).deleted
            before = promised.get(tag, advances.promised())
            problem = "" if deleted else advances.problem(before, cursor)
            self.oracle.expect(not problem, "S9", f"subscription {name} of stream {tag}, for {client.name}, {problem}")
            epoch = before.epoch
            advances.advance_stored(cursor, epoch)
            start = cursor.start if cursor.after or advances.epoch else Start.earliest()
            reading = self.history.reading(client.name, start)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5 + 3.0 * rng.random()):
                    await self._advance(client, handle, reading, advances, epoch)
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
        advances: SubscriptionProgress,
        epoch: int,
    ) -> None:
        rng = client.rng
        async with aclosing(handle.batches()) as batches:
            async for batch in batches:
                reading.saw(batch)
                if isinstance(batch, Gap) or rng.random() < 0.3:
                    continue
                position = pick(rng, batch).position
                cursor = Cursor(position, after=True)
                advances.advance_requested(cursor)
                if rng.random() < 0.3:
                    handle.advance_nowait(position)
                    continue
                await handle.advance(position)
                advances.advance_stored(cursor, epoch)
                self.oracle.mark("subscriber: an advance is stored")

    async def _reset(self, client: ClientProcess, streams: StreamStore, name: str) -> None:
        """Reset a subscription to another position, or delete it."""
        stream, rng = self._name(client), client.rng
        self.history.facts_of((await streams.info(stream)).stream_id[:TAG_CHARS])
        # For all streams, because the name may belong to another stream by the time of the reset.
        facts_by_tag = [(facts, facts.advances(name)) for facts in self.history.facts_by_tag.values()]
        epochs = [advances.begin_reset() for _, advances in facts_by_tag]
        done, cursor = False, None
        try:
            if rng.random() < 0.3:
                await streams.unsubscribe(stream, name)
                self.oracle.mark("subscriber: deleted a subscription")
            else:
                cursor = (await streams.reset_subscription(stream, name, self._start(client))).cursor
                self.oracle.mark("subscriber: set a subscription anew")
            done = True
        finally:
            for (facts, advances), epoch in zip(facts_by_tag, epochs, strict=True):
                other = cursor is not None and cursor.position.tag != facts.tag
                advances.end_reset(epoch, done=done, cursor=advances.stored if other else cursor)

    # -- janitors and meddlers ---------------------------------------------------------------------------------------

    async def _keep(self, client: ClientProcess) -> None:
        await self._pause(client, 0.7)
        async with self.streams(client) as streams:
            failed = await streams.keep()
            self.oracle.mark("keeper: a round of all" if not failed else "keeper: some are left for later")
            if client.rng.random() < TRUNCATIONS:
                await self._truncate(client, streams)

    async def _truncate(self, client: ClientProcess, streams: StreamStore) -> None:
        known = self._known(client, part=client.rng.random() ** 3)
        if known is None:
            return
        tag, record = known
        facts = self.history.facts_of(tag)
        facts.truncated_before = max(facts.truncated_before, record.sequence)
        by_number = client.rng.random() < 0.3
        before = Start.sequence(record.sequence) if by_number else Position(*record.place, tag=tag)
        # A sequence number does not identify the stream, and another one may have the name by now.
        for other in self.history.facts_by_tag.values() if by_number else ():
            other.truncated_before = max(other.truncated_before, record.sequence)
        await streams.truncate(self._name(client), before=before)
        self.oracle.mark("keeper: truncated a stream")

    async def _meddle(self, client: ClientProcess) -> None:
        await self._pause(client, 1.0)
        rng, name = client.rng, self._name(client)
        async with self.streams(client) as streams:
            draw = rng.random()
            if draw < DELETIONS:
                await self.delete(streams, name)
            elif draw < 0.2:
                await streams.rename(name, pick(rng, (f"{name}x", name.rstrip("x"))))
                self.oracle.mark("meddler: renamed a stream")
            elif draw < 0.35:
                await streams.set_policy(name, roll_bytes=pick(rng, (1024, 4096)))
            elif draw < 0.45:
                await self._list(streams, name)
            else:
                await self._recover(client)

    async def _recover(self, client: ClientProcess) -> None:
        """Recover a segment that is being written, so that its writer must continue in a new one."""
        segments = [
            ledger_id
            for ledger_id, known in self.oracle.ledgers.items()
            if STREAM in known.metadata.custom and known.metadata.state is LedgerState.OPEN
        ]
        if segments:
            await client.client.recover_ledger(pick(client.rng, segments[-3:]))
            self.oracle.mark("meddler: recovered a segment that is being written")

    async def _list(self, streams: StreamStore, name: str) -> None:
        async for each in streams.list():
            if each == name:
                async for _ in streams.subscriptions(name):
                    self.oracle.mark("meddler: looked at subscriptions")

    async def delete(self, streams: StreamStore, name: str) -> None:
        """Delete a stream.

        Raises:
            TallybookError: all or a part of it may still exist.
        """
        self.history.deletions = True
        self.history.facts_of((await streams.info(name)).stream_id[:TAG_CHARS]).deleted = True
        await streams.delete(name)
        self.oracle.mark("meddler: deleted a stream")

"""Streams with bookies that crash, a metadata store that loses answers, and writers that take streams over.

Confirmed records exist exactly once, in the order of each writer; all readers see the same; and hardly any orphan
ledger is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import TallybookError, is_defect
from tallybook.metadata.store import MetadataStore
from tallybook.sim.deterministic import World, run_seed
from tallybook.stream import Gap, Position, StreamStore, StreamWriter
from tallybook.stream.catalog import head

from ..sampling import sample
from ..simulated import on_stage, world_alone
from ..support.faulty_metadata import FaultyMetadataStore, MetadataFault, RandomMetadataFaults
from ..support.ledger_scenario import SMALL
from ..support.memory_cluster import MemoryCluster
from ..support.streams import catalog_of, head_of
from .parts import restart

RATES = {
    MetadataFault.UNAVAILABLE: 0.03,
    MetadataFault.UNKNOWN_APPLIED: 0.05,
    MetadataFault.UNKNOWN_LOST: 0.05,
    MetadataFault.UNKNOWN_LATE: 0.05,
}
WRITERS = 3
PRODUCED = 120
"""Records of each producer."""


def expected(error: TallybookError) -> None:
    """Ignore all errors but defects."""
    if is_defect(error):
        raise error


class Play:
    """One seed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng.fork("play")
        self.cluster = MemoryCluster(world, bookies=5)
        self.calm = False
        self.confirmed: dict[bytes, Position] = {}
        self.takeovers = 0
        self.processes = 0
        self.chapters = 0

    @asynccontextmanager
    async def process(self, name: str) -> AsyncIterator[StreamStore]:
        """A process with a faulty metadata store."""
        self.processes += 1
        faults = RandomMetadataFaults(self.world.rng.fork(f"weather {self.processes}"), RATES)
        calm = self

        class Weather:
            def next(self, operation: str) -> MetadataFault | None:
                return None if calm.calm else faults.next(operation)

        def seen_through(store: MetadataStore) -> FaultyMetadataStore:
            return FaultyMetadataStore(store, Weather(), self.world.clock)

        client: Client = self.cluster.client(SMALL, seen_through=seen_through)
        store = StreamStore(client, name=name)
        try:
            yield store
        finally:
            await store.close()
            await client.close()

    async def produce(self, name: str) -> None:
        """Append records with dedup ids until each is confirmed, taking the stream over again and again."""
        left = [f"{name} {index}".encode() for index in range(PRODUCED)]
        while left:
            async with self.process(name) as streams:
                try:
                    writer = await streams.writer("s")
                    self.takeovers += 1
                    left = await self.append(writer, left)
                    if self.rng.random() < 0.5:
                        await writer.close()
                except TallybookError as error:
                    expected(error)
            await self.world.clock.sleep(self.rng.random() * 2)

    async def append(self, writer: StreamWriter, left: list[bytes]) -> list[bytes]:
        """Append the remaining records until another writer takes the stream over; return the rest."""
        while left:
            some = left[: self.rng.randint(1, 10)]
            pending = [writer.append_nowait(each, dedup_id=each) for each in some]
            for payload, each in zip(some, pending, strict=True):
                try:
                    position = await each
                except TallybookError as error:
                    expected(error)
                    return left
                known = self.confirmed.setdefault(payload, position)
                assert known == position, "the same record was confirmed at two positions"
                left = left[1:]
            if self.rng.random() < 0.1:
                await self.world.clock.sleep(self.rng.random())
        return left

    async def follow(self, name: str) -> list[tuple[Position, bytes]]:
        """Read the whole stream, with retries."""
        seen: list[tuple[Position, bytes]] = []
        async with self.process(name) as streams:
            reader = streams.reader("s", gaps="yield", slow="catch_up")
            while True:
                try:
                    async with aclosing(reader.batches()) as batches:
                        async for batch in batches:
                            assert not isinstance(batch, Gap), str(batch)
                            seen += [(record.position, record.payload) for record in batch]
                except TallybookError as error:
                    expected(error)
                    await self.world.clock.sleep(0.2)
                else:
                    return seen

    async def recover_behind_its_back(self, client: Client, streams: StreamStore) -> None:
        """Recover the open segment of the stream, so that its writer must continue in a new ledger."""
        try:
            for segment in (await head_of(streams)).open_segments:
                await client.recover_ledger(segment.ledger_id)
        except TallybookError as error:
            expected(error)

    async def nemesis(self, client: Client, streams: StreamStore) -> None:
        """Kill and restart bookies, and recover ledgers that are being written."""
        down: list[str] = []
        while not self.calm:
            await self.world.clock.sleep(self.rng.random() * 4)
            if down and self.rng.random() < 0.7:
                name = down.pop()
                await restart(self.cluster, name)
            elif not down:
                name = f"bookie-{self.rng.randint(0, 4)}"
                self.cluster.die(name)
                down.append(name)
            if self.rng.random() < 0.5:
                await self.recover_behind_its_back(client, streams)
        for name in down:
            await restart(self.cluster, name)

    async def run(self) -> None:
        await self.cluster.start()
        async with self.cluster.client(SMALL) as client, StreamStore(client, name="calm") as streams:
            await streams.create("s", roll_bytes=2048, dedup_records=100_000)
            following = [asyncio.ensure_future(self.follow(f"reader-{index}")) for index in range(2)]
            nemesis = asyncio.ensure_future(self.nemesis(client, streams))
            await asyncio.gather(*(self.produce(f"producer-{index}") for index in range(WRITERS)))
            self.calm = True
            await nemesis
            writer = await streams.writer("s")
            await writer.seal()
            seen = [await each for each in following]
            final = [(record.position, record.payload) async for record in streams.reader("s", follow=False)]
            assert await streams.keep() == 0
            self.audit(final, seen)
            await self.audit_ledgers(client, streams)
        await self.cluster.stop()

    def audit(self, final: list[tuple[Position, bytes]], seen: list[list[tuple[Position, bytes]]]) -> None:
        positions = [position for position, _ in final]
        assert positions == sorted(set(positions))
        payloads = [payload for _, payload in final]
        assert len(payloads) == len(set(payloads)) == WRITERS * PRODUCED, "nothing lost, nothing twice"
        assert {payload: position for position, payload in final} == self.confirmed
        for producer in range(WRITERS):
            mine = [payload for payload in payloads if payload.startswith(b"producer-%d " % producer)]
            assert mine == [b"producer-%d %d" % (producer, index) for index in range(PRODUCED)]
        for each in seen:
            assert each == final, "every reader sees the same"

    async def audit_ledgers(self, client: Client, streams: StreamStore) -> None:
        """Each process that died leaves at most one orphan ledger."""
        found = await head_of(streams)
        self.chapters = len(found.chapters)
        chapters = [await catalog_of(streams).chapter(found.stream_id, chapter) for chapter in found.chapters]
        named = {segment.ledger_id for listed in (*chapters, found.segments) for segment in listed}
        unnamed = {ledger_id async for ledger_id in client.list_ledgers()} - named
        assert len(unnamed) <= self.takeovers


@pytest.fixture(autouse=True)
def small_chapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads with so little space that a few segments are moved to chapters."""
    monkeypatch.setattr(head, "MAX_SEGMENTS", 6)
    monkeypatch.setattr(head, "CHAPTER_SEGMENTS", 4)


@pytest.mark.parametrize("seed", [*sample(range(60))])
def test_confirmed_records_exist_once_and_in_order(seed: int) -> None:
    run_seed(seed, lambda world: Play(world).run(), deadline_seconds=20_000)


@on_stage(world_alone, deadline_seconds=20000)
async def test_the_faults_of_these_seeds_do_happen(world: World) -> None:
    """Each seed has at least one takeover, otherwise it would prove nothing."""
    found = Play(world)
    await found.run()
    assert found.takeovers > WRITERS
    assert found.chapters > 0

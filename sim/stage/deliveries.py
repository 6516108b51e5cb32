"""A driver that brings batches into a stream as Spark does: it stages and delivers them, and may be cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from tallybook.client.client import Client
from tallybook.metadata.commits import note_attempt
from tallybook.metadata.store import MetadataStore
from tallybook.metadata.transactions import names
from tallybook.metadata.update import LedgerUpdater
from tallybook.runtime.rng import SystemRng
from tallybook.spark.records.staging import Staging
from tallybook.stream import StreamStore
from tallybook.stream.deliveries import Deliveries
from tallybook.stream.delivery_record import PART, staging

from .cluster import MemoryCluster
from .scenario import SMALL


def rows(count: int, of: str = "row") -> list[bytes]:
    """Payloads that tell which row of what they are."""
    return [f"{of} {number}".encode() for number in range(count)]


@dataclass
class Driver:
    """A process that delivers, with a client of its own, which may end anywhere."""

    cluster: MemoryCluster
    client: Client
    streams: StreamStore
    stream_id: str = ""
    staged: list[int] = field(default_factory=list)

    @classmethod
    async def start(cls, cluster: MemoryCluster) -> Driver:
        """One that writes to the stream ``s``, if that is there."""
        client = cluster.client(SMALL)
        driver = cls(cluster, client, StreamStore(client))
        if await driver.streams.exists("s"):
            driver.stream_id = (await driver.streams.info("s")).stream_id
        return driver

    @property
    def store(self) -> MetadataStore:
        """The metadata store, as this process sees it."""
        return self.client.world.store

    @property
    def updater(self) -> LedgerUpdater:
        """Changes ledgers."""
        return LedgerUpdater(self.store, self.cluster.world.clock, SystemRng())

    @property
    def deliveries(self) -> Deliveries:
        """What it delivers by."""
        return Deliveries(self.streams, self.client, self.updater, "s", self.stream_id)

    async def stage(
        self, number: int, *parts: Sequence[bytes], sink: str = "sales", owner: str = "", txids: Sequence[int] = ()
    ) -> list[int]:
        """The ledgers of a batch, the last part first, three rows in an entry."""
        transaction, found = staging(self.stream_id, sink, number, owner), []
        for part, payloads in reversed(list(enumerate(parts))):
            custom = {**transaction.marks, PART: b"%d" % part}
            ledger = await self.client.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2, custom=custom)
            await note_attempt(self.store, transaction, ledger.id)
            staging_ = Staging(ledger.id, self.client.max_entry_bytes, lambda: 17)
            for at in range(0, len(payloads), 3):
                columns: dict[str, list[object]] = {"payload": list(payloads[at : at + 3])}
                if txids:
                    columns["txid"] = list(txids[at : at + 3])
                await ledger.append_many(list(staging_.envelopes(pa.RecordBatch.from_pydict(columns))))
            await ledger.close()
            found.append(ledger.id)
        return found

    async def deliver(
        self, number: int, ledger_ids: Sequence[int], *, sink: str = "sales", owner: str = "",
        txids: Sequence[tuple[int, int]] = (),
    ) -> bool:  # fmt: skip
        """Bring a batch that was staged into the stream."""
        return await self.deliveries.deliver(sink, staging(self.stream_id, sink, number, owner), ledger_ids, txids)

    async def cut_off_after(self, seconds: float, work: asyncio.Task[bool]) -> bool:
        """Let work go on for so long; whether it was done by then. What it holds is dropped, as by a crash."""
        await asyncio.wait([work], timeout=seconds)
        done = work.done()
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        return done

    async def payloads(self) -> list[bytes]:
        """All records that readers see."""
        return [record.payload async for record in self.streams.reader("s", follow=False)]

    async def words(self, prefix: str) -> list[str]:
        """The names of records in the metadata store."""
        return [name async for name in names(self.store, prefix)]

    async def close(self) -> None:
        """Leave the cluster."""
        await self.streams.close()
        await self.client.close()

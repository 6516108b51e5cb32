"""A driver that delivers batches to a stream as Spark does: it stages and delivers them, and may die at any point."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from tallybook.client.client import Client
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.records.listing import record_names
from tallybook.metadata.store import MetadataStore
from tallybook.metadata.transactions import record_attempt
from tallybook.runtime.rng import SystemRng
from tallybook.spark.streams.staging import EnvelopeStager
from tallybook.stream import StreamStore
from tallybook.stream.catalog.delivery_record import PART, staging
from tallybook.stream.deliveries import Deliveries

from .ledger_scenario import SMALL
from .memory_cluster import MemoryCluster


def rows(count: int, of: str = "row") -> list[bytes]:
    """Payloads that contain their row number."""
    return [f"{of} {number}".encode() for number in range(count)]


@dataclass
class DeliveryDriver:
    """A delivering process with its own client."""

    cluster: MemoryCluster
    client: Client
    streams: StreamStore
    stream_id: str = ""
    staged: list[int] = field(default_factory=list)

    @classmethod
    async def start(cls, cluster: MemoryCluster) -> DeliveryDriver:
        """Start a driver for the stream ``s``, which need not exist yet."""
        client = cluster.client(SMALL)
        driver = cls(cluster, client, StreamStore(client))
        if await driver.streams.exists("s"):
            driver.stream_id = (await driver.streams.info("s")).stream_id
        return driver

    @property
    def store(self) -> MetadataStore:
        """The metadata store of this process."""
        return self.client.world.store

    @property
    def updater(self) -> LedgerUpdater:
        """Updater of ledger metadata."""
        return LedgerUpdater(self.store, self.cluster.world.clock, SystemRng())

    @property
    def deliveries(self) -> Deliveries:
        """Deliveries to the stream ``s``."""
        return Deliveries(self.streams, self.client, self.updater, "s", self.stream_id)

    async def stage(
        self, number: int, *parts: Sequence[bytes], sink: str = "sales", owner: str = "", txids: Sequence[int] = ()
    ) -> list[int]:
        """Stage a batch, three rows per entry; return its ledgers, the last part first."""
        transaction, found = staging(self.stream_id, sink, number, owner), []
        for part, payloads in reversed(list(enumerate(parts))):
            custom = {**transaction.marks, PART: b"%d" % part}
            ledger = await self.client.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2, custom=custom)
            await record_attempt(self.updater, transaction, ledger.id)
            staging_ = EnvelopeStager(ledger.id, self.client.max_entry_bytes, lambda: 17)
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
        """Deliver a staged batch to the stream."""
        return await self.deliveries.deliver(sink, staging(self.stream_id, sink, number, owner), ledger_ids, txids)

    async def cut_off_after(self, seconds: float, work: asyncio.Task[bool]) -> bool:
        """Cancel ``work`` after ``seconds``, as a crash would; return whether it was done by then."""
        await asyncio.wait([work], timeout=seconds)
        done = work.done()
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        return done

    async def payloads(self) -> list[bytes]:
        """Payloads of all records of the stream."""
        return [record.payload async for record in self.streams.reader("s", follow=False)]

    async def record_names(self, prefix: str) -> list[str]:
        """Names of records in the metadata store."""
        return [name async for name in record_names(self.store, prefix)]

    async def close(self) -> None:
        """Close stream store and client."""
        await self.streams.close()
        await self.client.close()

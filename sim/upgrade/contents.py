"""Fills a cluster with everything that a later version must be able to read. A program; see the package.

    python -P contents.py METADATA settled      closed ledgers and streams, in entry logs and partly in the archive
    python -P contents.py METADATA recent       open ledgers and streams, mostly in journals only

It prints one JSON line, the manifest; ``recent`` then waits to be killed. When another process must do something first
it prints ``{"wants": "..."}`` and waits for a line.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from tallybook.client import Client
from tallybook.core.ranges import LedgerEntryRange
from tallybook.metadata.ledger.model import DigestType
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.transactions import PENDING, Transaction, commit, record_attempt
from tallybook.spark.ledgers.offset import StreamOffset
from tallybook.spark.query.id_ranges import IdRanges
from tallybook.spark.query.snapshot import Snapshot
from tallybook.spark.streams.offsets import RecordOffset, StreamProgress
from tallybook.spark.streams.staging import EnvelopeStager
from tallybook.stream import StreamStore
from tallybook.stream.catalog.delivery_record import Delivery, deliveries_of, staging
from tallybook.stream.deliveries import Deliveries

PASSWORD: Final = b"correct horse"
MADE_BY: Final = b"\x00an earlier version"
STREAM: Final = "orders/eu"
ENDED_STREAM: Final = "audit"
SUBSCRIPTION: Final = "billing"
DOOMED: Final = "doomed"
"""Custom metadata key of the ledger that is deleted after bookies have it in their indexes."""
SINK: Final = "sales"
DELIVERED_STREAM: Final = "delivered"
DELIVERED_RECORDS: Final = 40
"""Records in each of two batches; the second one is committed, but not delivered to the stream yet."""
NAMESPACE: Final = "sensors"
LONG_STREAM: Final = "long"
LONG_SEGMENTS: Final = 202
"""So many segments that the older ones are in a chapter."""
MADE_IN: Final = "an earlier version"
SETTLED_RECORDS: Final = 600
RECENT_RECORDS: Final = 120
BIRTH_MS: Final = 1_790_000_000_000
"""Timestamp of the first record; each next one is a second later."""


def payloads(tag: str, count: int, first: int = 0) -> list[bytes]:
    """Entries of the ledger, or records of the stream, called ``tag``."""
    return [f"{tag} {number} ".encode() + b"tally" * (number * 37 % 40) for number in range(first, first + count)]


def checksum(found: Iterable[bytes]) -> str:
    """SHA-256 of payloads and their lengths."""
    digest = hashlib.sha256()
    for payload in found:
        digest.update(len(payload).to_bytes(4, "little") + payload)
    return digest.hexdigest()


def manifest_of(ledger_id: int, tag: str, count: int, **more: object) -> dict[str, object]:
    """Manifest entry of a ledger with ``count`` confirmed entries."""
    return {"id": ledger_id, "entries": count, "sha256": checksum(payloads(tag, count)), **more}


def wanted(what: str) -> None:
    """Request something from the controlling process and wait for its answer."""
    _say({"wants": what})
    sys.stdin.readline()


def _say(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


# --- settled ----------------------------------------------------------------------------------------------------------


async def to_be_archived(client: Client, ledgers: dict[str, Any]) -> None:
    """Ledgers for the archive: one in an object of its own, some in a set object, one with digest and password.

    The later ones are archived after encryption was enabled.
    """
    await archived_by(client, ledgers, (("archived", 400), ("small-1", 20), ("small-2", 1), ("small-3", 30)))
    async with await client.create_ledger(password=PASSWORD, digest=DigestType.HMAC_SHA256) as writer:
        await writer.append_many(payloads("signed-archived", 60))
    ledgers["signed-archived"] = manifest_of(
        writer.id, "signed-archived", 60, state="closed", archived=True, password=PASSWORD.decode()
    )
    wanted("archive")
    await archived_by(client, ledgers, (("sealed", 380), ("sealed-small-1", 25), ("sealed-small-2", 2)))
    wanted("sealed archive")


async def archived_by(client: Client, ledgers: dict[str, Any], counts: Iterable[tuple[str, int]]) -> None:
    """Create closed ledgers, by tag and number of entries, which the next offloader run archives."""
    for tag, count in counts:
        async with await client.create_ledger() as writer:
            await writer.append_many(payloads(tag, count))
        ledgers[tag] = manifest_of(writer.id, tag, count, state="closed", archived=True)


async def closed(client: Client, ledgers: dict[str, Any]) -> None:
    """Closed ledgers that stay on the bookies."""
    async with await client.create_ledger() as writer:
        for entry in payloads("closed", 300):
            await writer.append(entry)
    ledgers["closed"] = manifest_of(writer.id, "closed", 300, state="closed")
    async with await client.create_ledger(password=PASSWORD, digest=DigestType.HMAC_SHA256) as writer:
        await writer.append_many(payloads("signed", 80))
    ledgers["signed"] = manifest_of(writer.id, "signed", 80, state="closed", password=PASSWORD.decode())
    async with await client.create_ledger(write_quorum=2, ack_quorum=2, stripe_entries=16) as writer:
        await writer.append_many(payloads("striped", 200))
    ledgers["striped"] = manifest_of(writer.id, "striped", 200, state="closed")
    async with await client.create_ledger(custom={"made-by": MADE_BY}) as writer:
        chosen = writer.with_chosen_ids()
        entries = payloads("chosen", 40)
        await asyncio.gather(*(chosen.append(number, entries[number]) for number in reversed(range(40))))
    ledgers["chosen"] = manifest_of(writer.id, "chosen", 40, state="closed", custom={"made-by": MADE_BY.hex()})
    async with await client.create_ledger(deferred_sync=True) as writer:
        await writer.append_many(payloads("deferred", 50))
        await writer.force()
    ledgers["deferred"] = manifest_of(writer.id, "deferred", 50, state="closed")
    async with await client.create_ledger() as writer:
        await writer.append_many(payloads("empty", 0))
    ledgers["empty"] = manifest_of(writer.id, "empty", 0, state="closed")
    async with await client.create_ledger() as writer:
        await writer.append_many(payloads("deleted", 70))
    await client.delete_ledger(writer.id)
    ledgers["deleted"] = manifest_of(writer.id, "deleted", 70, state="deleted")
    async with await client.create_ledger(custom={DOOMED: b"1"}) as writer:
        await writer.append_many(payloads("dropped", 50))
    ledgers["dropped"] = manifest_of(writer.id, "dropped", 50, state="deleted")
    writer = await client.create_ledger()
    await writer.append_many(payloads("recovered", 90))
    await client.recover_ledger(writer.id)
    ledgers["recovered"] = manifest_of(writer.id, "recovered", 90, state="closed")


async def one_bookie_short(client: Client, ledgers: dict[str, Any]) -> None:
    """A ledger with a missed range in its metadata."""
    writer = await client.create_ledger()
    await writer.append_many(payloads("missed", 30))
    wanted("one bookie less")
    for entry in payloads("missed", 30, 30):
        await writer.append(entry)
    wanted("all bookies")
    await writer.close()
    ledgers["missed"] = manifest_of(writer.id, "missed", 60, state="closed")


async def streams_of(client: Client) -> None:
    """A stream of several segments with a subscription in the middle, and a stream that has ended."""
    async with StreamStore(client, name=MADE_IN) as streams:
        await streams.create(STREAM, roll_bytes="16KiB", compression="zstd")
        async with await streams.writer(STREAM) as writer:
            for number, record in enumerate(payloads(STREAM, SETTLED_RECORDS)):
                pending = writer.append_nowait(
                    record,
                    timestamp_ms=BIRTH_MS + 1000 * number,
                    key=b"%d" % (number % 7),
                    dedup_id=f"order-{number}",
                    txid=number,
                )
                if number % 50 == 49:
                    await pending
            await writer.commit()
        await streams.create(ENDED_STREAM, compression="lz4")
        async with await streams.writer(ENDED_STREAM) as writer:
            await writer.append_many(payloads(ENDED_STREAM, 90))
            await writer.seal()
        await advance(streams, SETTLED_RECORDS // 3)


async def transactions(client: Client, ledgers: dict[str, Any]) -> None:
    """A sink with two transactions and an uncommitted third one, and a sink with a single transaction."""
    updater = LedgerUpdater(client.world.store, client.world.clock, client.world.rng)
    for tag, transaction in (
        ("sold-1", Transaction(SINK, 1, MADE_IN)),
        ("sold-2", Transaction(SINK, 2, MADE_IN)),
        ("sold-3", Transaction(SINK, 3, MADE_IN)),
        ("sold-once", Transaction.once("0d3f1a52-6b0c-4f59-9f43-0c1b5b0a7e11")),
    ):
        async with await client.create_ledger(custom=transaction.marks) as writer:
            await record_attempt(updater, transaction, writer.id)
            await writer.append_many(payloads(tag, 30))
        if tag != "sold-3":
            await commit(updater, transaction, [writer.id])
        custom = {key: value.hex() for key, value in (await client.ledger_metadata(writer.id)).custom.items()}
        seen = PENDING not in custom
        ledgers[tag] = manifest_of(writer.id, tag, 30, state="closed", custom=custom, seen=seen)


async def long_stream(client: Client) -> dict[str, Any]:
    """A stream in its own namespace, with so many segments that the older ones are in a chapter."""
    count = segments = 0
    async with StreamStore(client, namespace=NAMESPACE, name=MADE_IN) as streams:
        await streams.create_namespace(roll_bytes="1KiB", dedup_records=0)
        await streams.create(LONG_STREAM)
        async with await streams.writer(LONG_STREAM) as writer:
            while segments < LONG_SEGMENTS:
                await writer.append_many(payloads(LONG_STREAM, 16, count))
                count += 16
                # The next segment is created in the background.
                await asyncio.sleep(0.02)
                segments = (await streams.info(LONG_STREAM)).segments
    records = payloads(LONG_STREAM, count)
    return {"namespace": NAMESPACE, "records": count, "sha256": checksum(records), "subscriptions": {}}


async def deliveries(client: Client) -> None:
    """A stream with a delivered batch, and one whose driver died between commit and delivery."""
    store, updater = client.world.store, LedgerUpdater(client.world.store, client.world.clock, client.world.rng)
    async with StreamStore(client, name=MADE_IN) as streams:
        await streams.create(DELIVERED_STREAM)
        stream_id = (await streams.info(DELIVERED_STREAM)).stream_id
        bringing = Deliveries(streams, client, updater, DELIVERED_STREAM, stream_id)
        await bringing.deliver(SINK, staging(stream_id, SINK, 0), [await staged(client, stream_id, 0)])
        async with await streams.writer(DELIVERED_STREAM) as writer:
            since = writer.next_sequence
        name = deliveries_of(stream_id) + SINK
        known = await store.read_record(name, linearizable=True)
        await store.write_record(name, Delivery(1, since).encode(), known.version if known else None)
        await commit(updater, staging(stream_id, SINK, 1), [await staged(client, stream_id, 1)])


async def staged(client: Client, stream_id: str, number: int) -> int:
    """Stage a batch; return its ledger id."""
    transaction = staging(stream_id, SINK, number)
    async with await client.create_ledger(custom=transaction.marks) as writer:
        updater = LedgerUpdater(client.world.store, client.world.clock, client.world.rng)
        await record_attempt(updater, transaction, writer.id)
        rows = payloads(DELIVERED_STREAM, DELIVERED_RECORDS, number * DELIVERED_RECORDS)
        entries = EnvelopeStager(writer.id, client.max_entry_bytes, lambda: BIRTH_MS)
        for first in range(0, DELIVERED_RECORDS, 10):
            batch = pa.RecordBatch.from_pydict({"payload": rows[first : first + 10]})
            await writer.append_many(list(entries.envelopes(batch)))
    return writer.id


async def spark_texts(client: Client, ledgers: dict[str, Any]) -> dict[str, Any]:
    """Texts that Spark users keep: offsets in query checkpoints, and a snapshot."""
    cluster_id, ledger_id = await client.world.store.cluster_id(), ledgers["closed"]["id"]
    read = LedgerEntryRange(ledger_id, 0, 99)
    async with StreamStore(client) as streams:
        stream_id = (await streams.info(STREAM)).stream_id
    return {
        "ledgers": StreamOffset(
            cluster_id, IdRanges.of([0, 1, 3]), LedgerEntryRange(ledger_id, 100, 299), (read,)
        ).json(),
        "streams": RecordOffset(cluster_id, {stream_id: StreamProgress(STREAM, (2, 0, 1), 17)}).json(),
        "snapshot": str(Snapshot(cluster_id, (read,))),
    }


async def advance(streams: StreamStore, number: int) -> None:
    """Advance the subscription past the record with this sequence number."""
    async with await streams.subscribe(STREAM, SUBSCRIPTION, follow=False) as reader:
        async for record in reader:
            if record.sequence == number:
                await reader.advance(record.position)
                return


async def settled(client: Client) -> dict[str, Any]:
    """Create all settled contents; return the manifest."""
    ledgers: dict[str, Any] = {}
    await to_be_archived(client, ledgers)
    await closed(client, ledgers)
    await one_bookie_short(client, ledgers)
    await transactions(client, ledgers)
    await streams_of(client)
    long = await long_stream(client)
    await deliveries(client)
    return {"ledgers": ledgers, "streams": {LONG_STREAM: long}, "spark": await spark_texts(client, ledgers)}


# --- recent -----------------------------------------------------------------------------------------------------------


async def recent(client: Client) -> dict[str, Any]:
    """A ledger whose writer will be killed, one with a recovery in progress, and a stream with its writer."""
    ledgers: dict[str, Any] = {}
    async for ledger_id in client.list_ledgers():
        if DOOMED in (await client.ledger_metadata(ledger_id)).custom:
            await client.delete_ledger(ledger_id)
    wanted("a collection")
    writer = await client.create_ledger()
    for entry in payloads("open", 250):
        await writer.append(entry)
    ledgers["open"] = manifest_of(writer.id, "open", 250, state="open")
    writer = await client.create_ledger(password=PASSWORD)
    await writer.append_many(payloads("open-with-password", 50))
    password = PASSWORD.decode()
    ledgers["open-with-password"] = manifest_of(writer.id, "open-with-password", 50, state="open", password=password)
    writer = await client.create_ledger()
    await writer.append_many(payloads("fenced", 120))
    for bookie in writer.metadata.last_fragment.bookies[:2]:
        await (await client.world.connections.get(bookie)).fence(writer.id, b"")
    ledgers["fenced"] = manifest_of(writer.id, "fenced", 120, state="open")
    streams = await StreamStore(client, name=MADE_IN).__aenter__()
    await advance(streams, SETTLED_RECORDS // 2)
    stream = await streams.writer(STREAM)
    for number, record in enumerate(payloads(STREAM, RECENT_RECORDS, SETTLED_RECORDS), SETTLED_RECORDS):
        await stream.append(record, timestamp_ms=BIRTH_MS + 1000 * number, dedup_id=f"order-{number}", txid=number)
    return {
        "ledgers": ledgers,
        "streams": {
            STREAM: {
                "records": SETTLED_RECORDS + RECENT_RECORDS,
                "sha256": checksum(payloads(STREAM, SETTLED_RECORDS + RECENT_RECORDS)),
                "first_timestamp_ms": BIRTH_MS,
                "subscriptions": {SUBSCRIPTION: SETTLED_RECORDS // 2 + 1},
            },
            ENDED_STREAM: {"records": 90, "sha256": checksum(payloads(ENDED_STREAM, 90)), "subscriptions": {}},
            DELIVERED_STREAM: {
                "records": 2 * DELIVERED_RECORDS,
                "sha256": checksum(payloads(DELIVERED_STREAM, 2 * DELIVERED_RECORDS)),
                "subscriptions": {},
            },
        },
    }


async def main(metadata: str, phase: str) -> None:
    """Create the contents of one phase."""
    client = await Client(metadata).__aenter__()
    if phase == "settled":
        _say(await settled(client))
        await client.close()
    else:
        _say(await recent(client))
        wanted("a kill")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

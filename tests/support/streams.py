"""The metadata of streams as the store has them, an outage of the store for changes, and processes that die."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tallybook.client.client import Client
from tallybook.core.errors import MetadataUnavailable
from tallybook.metadata.records.update import RecordUpdater
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng
from tallybook.stream import StreamStore
from tallybook.stream.catalog.catalog import StreamCatalog
from tallybook.stream.catalog.head import Head


def catalog_of(streams: StreamStore) -> StreamCatalog:
    """A catalog of the same metadata, as another process would have it."""
    store = streams.metadata_store
    return StreamCatalog(store, RecordUpdater(store, RealClock(), SystemRng()))


async def head_of(streams: StreamStore, name: str = "s") -> Head:
    """The current head of a stream."""
    return await catalog_of(streams).find(streams.namespace, name)


@contextmanager
def updates_refused(client: Client) -> Iterator[None]:
    """Let the metadata store of this client refuse changes of ledgers and records."""

    async def unavailable(*_: object) -> None:
        raise MetadataUnavailable("away")

    store = client.world.store
    update, write = store.update_ledger, store.write_record
    store.update_ledger = store.write_record = unavailable
    try:
        yield
    finally:
        store.update_ledger, store.write_record = update, write


async def fall_silent(streams: StreamStore) -> None:
    """Let a process renew its session no more."""
    await streams._tasks.close()


async def kill(streams: StreamStore) -> None:
    """Kill a process: its session is not renewed, and its connections break."""
    await fall_silent(streams)
    await streams._client.world.connections.close()

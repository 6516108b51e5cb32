"""The stream stores of a gateway: one per namespace in use.

A store has a session and caches shared by its readers, so all calls of a namespace use the same store. A store is
closed when no call uses it: clients may name any number of namespaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tallybook.client.client import Client
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing.port import Tracer
from tallybook.stream import StreamStore
from tallybook.stream.load import StreamLoad
from tallybook.stream.names import DEFAULT_NAMESPACE
from tallybook.stream.records.dedup import DedupMemory


@dataclass(slots=True)
class _StoreUse:
    store: StreamStore
    users: int = 0


class StreamStores:
    """Stream stores by namespace.

    Args:
        name: name of this gateway, shown as the owner of a stream.
        tasks: closes unused stores.
        max_id_bytes: memory for the deduplication ids of all writers together.
    """

    def __init__(self, client: Client, name: str, tasks: Tasks, max_id_bytes: int) -> None:
        self._client = client
        self._name = name
        self._tasks = tasks
        self.ids = DedupMemory(max_id_bytes)
        """Memory of deduplication ids."""
        self.load = StreamLoad()
        """Load counters of all writers."""
        self.default = self._new_store(DEFAULT_NAMESPACE)
        """The store of the default namespace; open as long as the gateway."""
        self._others: dict[str, _StoreUse] = {}

    @property
    def tracer(self) -> Tracer:
        """The tracer of the client."""
        return self._client.world.tracer

    @contextmanager
    def of(self, namespace: str) -> Iterator[StreamStore]:
        """The store of a namespace, while the block lasts.

        Args:
            namespace: empty: the default namespace.

        Raises:
            InvalidArgument: invalid namespace.
        """
        if namespace in {"", DEFAULT_NAMESPACE}:
            yield self.default
            return
        store_use = self._others.get(namespace)
        if store_use is None:
            store_use = self._others[namespace] = _StoreUse(self._new_store(namespace))
        store_use.users += 1
        try:
            yield store_use.store
        finally:
            store_use.users -= 1
            if not store_use.users and self._others.get(namespace) is store_use:
                del self._others[namespace]
                # In a task: the task of this call may be cancelled.
                self._tasks.spawn(store_use.store.close(), name=f"close-{namespace}")

    def _new_store(self, namespace: str) -> StreamStore:
        return StreamStore(self._client, namespace=namespace, name=self._name, ids=self.ids, load=self.load)

    async def close(self) -> None:
        """Close all stores."""
        others, self._others = list(self._others.values()), {}
        for store in (*(store_use.store for store_use in others), self.default):
            await store.close()

"""The stream stores of a gateway: one for each namespace that somebody uses just now.

A store keeps a session, and what its readers share, so there is to be one for all calls that mean the same namespace;
and what clients name without end must not stay here, so there is none for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tallybook.client.client import Client
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing import Tracer
from tallybook.stream import StreamStore
from tallybook.stream.dedup import IdRoom
from tallybook.stream.load import StreamLoad
from tallybook.stream.names import DEFAULT_NAMESPACE


@dataclass(slots=True)
class _Held:
    store: StreamStore
    users: int = 0


class Stores:
    """Stream stores by namespace.

    Args:
        name: of this gateway, as others see who owns a stream.
        tasks: where stores are closed that nobody uses any more.
        max_id_bytes: what the writers of all streams may remember of ids together.
    """

    def __init__(self, client: Client, name: str, tasks: Tasks, max_id_bytes: int) -> None:
        self._client = client
        self._name = name
        self._tasks = tasks
        self.ids = IdRoom(max_id_bytes)
        """What they remember of ids."""
        self.load = StreamLoad()
        """What the writers of all streams do."""
        self.default = self._made(DEFAULT_NAMESPACE)
        """Of the default namespace; there as long as the gateway is."""
        self._others: dict[str, _Held] = {}

    @property
    def tracer(self) -> Tracer:
        """That of the client."""
        return self._client.world.tracer

    @contextmanager
    def of(self, namespace: str) -> Iterator[StreamStore]:
        """The store of a namespace, for as long as the block lasts.

        Args:
            namespace: empty for the default one.

        Raises:
            InvalidArgument: nothing can have that name.
        """
        if namespace in {"", DEFAULT_NAMESPACE}:
            yield self.default
            return
        held = self._others.get(namespace)
        if held is None:
            held = self._others[namespace] = _Held(self._made(namespace))
        held.users += 1
        try:
            yield held.store
        finally:
            held.users -= 1
            if not held.users and self._others.get(namespace) is held:
                del self._others[namespace]
                # Not here: the call may be over, and its task cancelled.
                self._tasks.spawn(held.store.close(), name=f"close-{namespace}")

    def _made(self, namespace: str) -> StreamStore:
        store = StreamStore(self._client, namespace=namespace, name=self._name)
        store.bound_ids(self.ids)
        store.count_in(self.load)
        return store

    async def close(self) -> None:
        """Close all of them."""
        others, self._others = list(self._others.values()), {}
        for store in (*(held.store for held in others), self.default):
            await store.close()

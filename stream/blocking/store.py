"""The blocking store of streams: drives the asyncio store on the loop of its blocking client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from tallybook.client.sync import Client
from tallybook.core.errors import HandleClosed, StreamClosed
from tallybook.runtime.blocking.handle import BlockingHandle
from tallybook.runtime.blocking.iteration import Halt, LoopIterator

from .. import streams as asyncio_streams
from ..names import DEFAULT_NAMESPACE
from ..subscription import handle as reading
from ..writer import handle as writing

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", writing.StreamWriter, reading.SubscriptionReader)


class StreamStoreBase(BlockingHandle):
    """Streams by their names, for callers that block.

    Args:
        client: an open client; the caller closes it, after this store.
        namespace: the namespace of the names. Streams with the same name in two namespaces are independent.
        name: name of this process, shown to others as the owner of its streams.

    Raises:
        InvalidArgument: the client is not open; or invalid namespace or name.
    """

    def __init__(self, client: Client, *, namespace: str = DEFAULT_NAMESPACE, name: str = "") -> None:
        of_loop, self._appends = client.asyncio_client()
        super().__init__(self._appends.loop)
        self._client = client
        self._closed = Halt()
        """Halts all readers."""
        self._engine = self._loop.call(asyncio_streams.StreamStore, of_loop, namespace=namespace, name=name)
        self.namespace = self._engine.namespace
        client.add_close_callback(self._end)

    def _close(self) -> None:
        """End background work, and abandon open writers; their streams stay as they are.

        Pending appends fail with ``StreamClosed``, outcome unknown; so does every waiting and every later call. Closing
        the client closes the store, too.

        Raises:
            InvalidArgument: called on the client's own thread.
        """
        if not self._loop.closed:
            self._appends.run(self._end)
            self._client.remove_close_callback(self._end)

    async def _end(self) -> None:
        self._closed.call(StreamClosed("the store of streams was closed meanwhile"))
        await self._engine.close()

    def _check_open(self) -> None:
        if self._closed.called:
            raise StreamClosed("the store of streams is closed")

    def _run(self, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        self._check_open()
        return super()._run(work, *args, **kwargs)

    def _iterate(self, source: Callable[P, AsyncIterator[T]], *args: P.args, **kwargs: P.kwargs) -> LoopIterator[T]:
        self._check_open()
        return super()._iterate(source, *args, **kwargs)

    def _handle(self, make: Callable[[], Coroutine[Any, Any, H]]) -> H:
        """Create a handle with ``make``; abandon it if the caller is interrupted before it gets the handle."""
        made: list[H] = []

        async def making() -> H:
            made.append(await make())
            return made[0]

        def abandon() -> None:
            for found in made:
                found.abandon()

        try:
            return self._run(making)
        except BaseException:
            with suppress(HandleClosed):  # a closed client has abandoned it already
                self._loop.call_soon(abandon)
            raise

    def _writer(self, name: str, *, wait_s: float | None, accept_loss: bool) -> writing.StreamWriter:
        return self._handle(partial(self._engine.writer, name, wait_s=wait_s, accept_loss=accept_loss))

    def _subscribe(self, name: str, subscription: str, **how: Any) -> reading.SubscriptionReader:
        return self._handle(partial(self._engine.subscribe, name, subscription, **how))

"""The blocking client: opens and closes the asyncio client on a loop in a thread of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Self

from tallybook.core.errors import InvalidArgument
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.runtime.blocking.handle import BlockingHandle
from tallybook.runtime.blocking.loop_thread import LoopThread

from ..budget import SharedByteBudget
from ..client import Client as AsyncioClient
from ..ports import ClientWorld
from ..reader import handle
from .thread_handoff import AppendHandOff, append_handoff


class _Engine(AsyncioClient):
    """The asyncio client with a budget that other threads may use."""

    budget_type = SharedByteBudget


class ClientBase(BlockingHandle):
    """Access to the ledgers of one cluster, for callers that block.

    Args:
        cluster: URI of the metadata store, or a ready-made world (for tests).
        settings: timeouts, limits and policies of the client.

    Raises:
        NoSuchCluster: on opening: there is no cluster at the URI.
        InvalidConfig: on opening: the URI names no metadata store, or needs a library that is not installed.
        MetadataUnavailable: on opening: the store does not answer within ``metadata_timeout_ms``.
        DamagedFile, DiskFailed: on opening: the file of a SQLite store cannot be used.
    """

    def __init__(self, cluster: str | ClientWorld, settings: ClientSettings | None = None) -> None:
        self._engine = _Engine(cluster, settings)
        self._opened: tuple[LoopThread, AppendHandOff] | None = None
        self._close_callbacks: list[Callable[[], Coroutine[Any, Any, object]]] = []

    def __enter__(self) -> Self:
        if self._opened is not None:
            raise InvalidArgument("the client was opened before: create another one")
        loop = LoopThread("tallybook client")
        self._opened = loop, append_handoff(loop)
        try:
            loop.run(self._engine.__aenter__())
        except BaseException:
            self._close()
            raise
        return self

    @property
    def _running(self) -> tuple[LoopThread, AppendHandOff]:
        if self._opened is None:
            raise InvalidArgument("the client is not open: use it in a 'with' block")
        return self._opened

    @property
    def _loop(self) -> LoopThread:
        return self._running[0]

    @property
    def _hand_over(self) -> AppendHandOff:
        return self._running[1]

    def asyncio_client(self) -> tuple[AsyncioClient, AppendHandOff]:
        """The asyncio client and the append hand-off to its loop, for libraries built on the client.

        Raises:
            HandleClosed: the client is closed.
        """
        loop, appends = self._running
        loop.check_open()
        return self._engine, appends

    def add_close_callback(self, end: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Register ``end``, which the client runs on the loop before it closes."""
        self._close_callbacks.append(end)

    def remove_close_callback(self, end: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Unregister ``end``; a no-op if it is not registered."""
        if end in self._close_callbacks:
            self._close_callbacks.remove(end)

    def standing(self) -> tuple[AsyncioClient, AppendHandOff]:
        """Deprecated name of ``asyncio_client``, for one release."""
        warnings.warn("standing is now called asyncio_client", DeprecationWarning, stacklevel=2)
        return self.asyncio_client()

    def carry(self, end: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Deprecated name of ``add_close_callback``, for one release."""
        warnings.warn("carry is now called add_close_callback", DeprecationWarning, stacklevel=2)
        self.add_close_callback(end)

    def put_down(self, end: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Deprecated name of ``remove_close_callback``, for one release."""
        warnings.warn("put_down is now called remove_close_callback", DeprecationWarning, stacklevel=2)
        self.remove_close_callback(end)

    def _close(self) -> None:
        """Close connections and stop background work. Open ledgers stay open until they are recovered.

        Pending appends fail with ``LedgerClosed``, outcome unknown. Every other waiting call, and every later call,
        fails with ``HandleClosed``. An interrupted close (Ctrl-C) still releases everything.

        Raises:
            InvalidArgument: called on the client's own thread.
        """
        if self._opened is None:
            return
        loop, appends = self._opened

        async def last() -> None:
            async with AsyncExitStack() as stack:
                # Last, after the writers have ended, so that appends handed over before fail with their error.
                stack.callback(appends.close)
                stack.push_async_callback(self._engine.close)
                for end in self._close_callbacks:
                    stack.push_async_callback(end)

        loop.close(last)

    def _copying_reader(self, metadata: LedgerMetadata, *, archive_first: bool) -> handle.LedgerReader:
        return self._loop.call(self._engine.copying_reader, metadata, archive_first=archive_first)

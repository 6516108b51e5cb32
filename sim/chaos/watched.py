"""Connections that record what bookies promise: acked adds and acked fences.

A bookie must keep both through any end of its process (I12, I13), even if the ledger continues without it. Each
promise is recorded before the client gets the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from tallybook.client.connection.port import AddInFlight, BookieConnection
from tallybook.client.ports import Connections
from tallybook.core.answers import AddAnswer, AddCallback, FenceAnswer
from tallybook.core.batch import decode_header
from tallybook.core.errors import OK_CODE

Note = Callable[[str, str, int, int, int], None]
"""Called with each promise: "acked" or "fenced", bookie, ledger, first entry and number of entries."""


class WatchedConnections:
    """The connections of one client."""

    def __init__(self, connections: Connections, note: Note) -> None:
        self._connections = connections
        self._note = note

    async def get(self, bookie_id: str) -> BookieConnection:
        """See the port."""
        return cast(BookieConnection, _Watched(await self._connections.get(bookie_id), self._note))

    async def close(self) -> None:
        """See the port."""
        await self._connections.close()


class _Watched:
    """One connection; other calls are passed through."""

    def __init__(self, connection: BookieConnection, note: Note) -> None:
        self._connection = connection
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def add(self, batch: bytes, key: bytes, on_answer: AddCallback, **more: Any) -> AddInFlight:
        """See the port. A deferred add promises nothing."""

        def answered(answer: AddAnswer) -> None:
            if answer.code == OK_CODE and not more.get("deferred"):
                self._acked(batch)
            on_answer(answer)

        return self._connection.add(batch, key, answered, **more)

    async def recovery_add(self, batch: bytes, key: bytes, **more: Any) -> None:
        """See the port."""
        await self._connection.recovery_add(batch, key, **more)
        self._acked(batch)

    async def fence(self, ledger_id: int, key: bytes, **more: Any) -> FenceAnswer:
        """See the port."""
        answer = await self._connection.fence(ledger_id, key, **more)
        self._note("fenced", self._connection.bookie_id, ledger_id, 0, 0)
        return answer

    def _acked(self, batch: bytes) -> None:
        header = decode_header(batch)
        self._note("acked", self._connection.bookie_id, header.ledger_id, header.first_entry_id, header.entry_count)

"""Connections that note what bookies promise: each add that was acked, each fence that was answered.

A bookie must keep both whatever happens to its process (I12, I13), even where the ledger goes
on without it. What it answers is noted before the client hears of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from tallybook.client.bookie_port import AddCallback, BookieConnection, Sending
from tallybook.client.ports import Connections
from tallybook.core.answers import AddAnswer, FenceAnswer
from tallybook.core.batch import decode_header
from tallybook.core.errors import OK_CODE

Note = Callable[[str, str, int, int, int], None]
"""Told of a promise: "acked" or "fenced", bookie, ledger, first entry and number of entries."""


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
    """One connection; what is not watched goes straight to it."""

    def __init__(self, connection: BookieConnection, note: Note) -> None:
        self._connection = connection
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def add(self, batch: bytes, key: bytes, on_answer: AddCallback, **more: Any) -> Sending:
        """See the port. An add whose durability is deferred promises nothing."""

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

"""Ledgers: a list in pages, one of them, where the copies of one entry are, and the end of a ledger."""

from __future__ import annotations

import asyncio
from typing import Final

from tallybook.client.client import Client
from tallybook.core.errors import DamagedFile, InvalidArgument, NewerFormat, NoSuchLedger, PeerError, Unauthorized
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import MAX_PASSWORD_BYTES
from tallybook.metadata.describe import describe
from tallybook.metadata.model import LedgerMetadata
from tallybook.repair.entry_trace import trace_entry
from tallybook.repair.told import trace_told
from tallybook.runtime.http_api import Asked

PAGE: Final = 50
MOST: Final = 500


class Ledgers:
    """What the endpoints below ``/api/v1/ledgers`` do."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self, asked: Asked) -> object:
        """Ledgers above an id; ``next`` is where to go on, if there are more."""
        after = asked.count("after", -1, MAX_ID)
        page = await self._client.world.store.list_ledgers(after, asked.count("limit", PAGE, MOST) or PAGE)
        rows = await asyncio.gather(*map(self._row, page.ledger_ids))
        return {
            "ledgers": [row for row in rows if row is not None],
            "next": page.next_after(),
        }

    async def _row(self, ledger_id: int) -> dict[str, object] | None:
        try:
            return describe((await self._client.world.store.read_ledger(ledger_id)).value)
        except NoSuchLedger:
            # Deleted since the listing named it.
            return None
        except (DamagedFile, NewerFormat) as error:
            return {"ledger_id": ledger_id, "state": "unreadable", "why": error.message}

    async def one(self, asked: Asked) -> object:
        """One of them, with the last entry that readers see."""
        found = await self._client.ledger_metadata(asked.id("ledger"))
        return {**describe(found), "last_add_confirmed": await self._last_add_confirmed(found)}

    async def _last_add_confirmed(self, found: LedgerMetadata) -> int | None:
        if found.closed:
            return found.last_entry_id
        try:
            return (await self._client.open_ledger(found.ledger_id, recover=False)).last_add_confirmed
        except (Unauthorized, PeerError):
            # It takes a password, or bookies that answer. The rest is known without them.
            return None

    async def trace(self, asked: Asked) -> object:
        """Every copy of one entry."""
        return trace_told(await trace_entry(self._client.world, asked.id("ledger"), asked.id("entry")))

    async def delete(self, asked: Asked) -> object:
        """Delete one, with its password if it has one."""
        password = asked.body.get("password", "")
        if not isinstance(password, str) or len(password.encode()) > MAX_PASSWORD_BYTES:
            raise InvalidArgument(f"a password is a text of up to {MAX_PASSWORD_BYTES} bytes")
        ledger_id, force = asked.id("ledger"), asked.body.get("force", False)
        if not isinstance(force, bool):
            raise InvalidArgument("force is true or false")
        await self._client.delete_ledger(ledger_id, password=password.encode(), force=force)
        return {"deleted": ledger_id}

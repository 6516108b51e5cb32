"""Endpoints on ledgers: list, details, trace of an entry, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from tallybook.client.client import Client
from tallybook.core.errors import DamagedFile, InvalidArgument, NewerFormat, NoSuchLedger, PeerError, Unauthorized
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import MAX_PASSWORD_BYTES
from tallybook.metadata.ledger.describe import describe
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.repair.status.entry_trace import trace_entry
from tallybook.repair.status.report import trace_json
from tallybook.runtime.http.endpoints import EndpointRequest

from .cluster_view import ClusterView

PAGE: Final = 50
MAX_PAGE: Final = 500


class ConsoleLedgerEndpoints:
    """The endpoints below ``/api/v1/ledgers``."""

    def __init__(self, client: Client, view: ClusterView) -> None:
        self._client = client
        self._view = view

    async def list(self, request: EndpointRequest) -> object:
        """A page of ledgers: by id after an id, read now; with ``sort``, in that order, as of the last census.

        ``next``: the ``after``, or the ``offset``, of the next page.
        """
        limit = request.count("limit", PAGE, MAX_PAGE) or PAGE
        sort = request.query.get("sort", "")
        if sort:
            return await self._sorted(request, sort, limit)
        if {"state", "search", "offset"} & request.query.keys():
            raise InvalidArgument("state, search and offset need a sort order")
        page = await self._client.world.store.list_ledgers(request.count("after", -1, MAX_ID), limit)
        return {"ledgers": await self._rows(page.ledger_ids), "next": page.next_after()}

    async def _sorted(self, request: EndpointRequest, sort: str, limit: int) -> object:
        if "after" in request.query:
            raise InvalidArgument("a sorted list is paged by offset, not by after")
        offset = request.count("offset", 0, MAX_ID)
        index, age = await self._view.ledgers()
        found = index.find(sort, request.query.get("state", ""), request.query.get("search", "").strip())
        return {
            "ledgers": await self._rows([each.ledger_id for each in found[offset : offset + limit]]),
            "next": offset + limit if offset + limit < len(found) else None,
            "matches": len(found),
            "indexed": len(index),
            "total": index.total,
            **age,
        }

    async def _rows(self, ledger_ids: Iterable[int]) -> Sequence[dict[str, object]]:
        return [row for row in await asyncio.gather(*map(self._row, ledger_ids)) if row is not None]

    async def _row(self, ledger_id: int) -> dict[str, object] | None:
        try:
            return describe((await self._client.world.store.read_ledger(ledger_id)).value)
        except NoSuchLedger:
            # Deleted after it was listed.
            return None
        except (DamagedFile, NewerFormat) as error:
            return {"ledger_id": ledger_id, "state": "unreadable", "why": error.message}

    async def details(self, request: EndpointRequest) -> object:
        """One ledger, with its last add confirmed."""
        found = await self._client.ledger_metadata(request.path_number("ledger", MAX_ID))
        return {**describe(found), "last_add_confirmed": await self._last_add_confirmed(found)}

    async def _last_add_confirmed(self, found: LedgerMetadata) -> int | None:
        if found.closed:
            return found.last_entry_id
        try:
            return (await self._client.open_ledger(found.ledger_id, recover=False)).last_add_confirmed
        except (Unauthorized, PeerError):
            # Needs the password and responding bookies; the metadata is shown without them.
            return None

    async def trace(self, request: EndpointRequest) -> object:
        """All copies of one entry."""
        ledger_id, entry_id = request.path_number("ledger", MAX_ID), request.path_number("entry", MAX_ID)
        return trace_json(await trace_entry(self._client.world, ledger_id, entry_id))

    async def delete(self, request: EndpointRequest) -> object:
        """Delete a ledger; the body has its password if it has one."""
        password = request.body.get("password", "")
        if not isinstance(password, str) or len(password.encode()) > MAX_PASSWORD_BYTES:
            raise InvalidArgument(f"password must be a string of at most {MAX_PASSWORD_BYTES} bytes")
        ledger_id, force = request.path_number("ledger", MAX_ID), request.body.get("force", False)
        if not isinstance(force, bool):
            raise InvalidArgument("force must be true or false")
        await self._client.delete_ledger(ledger_id, password=password.encode(), force=force)
        return {"deleted": ledger_id}

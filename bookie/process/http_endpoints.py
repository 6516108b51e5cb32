"""HTTP endpoints of a bookie, besides health and metrics.

GET  /api/v1/bookie/state                    status of the bookie
GET  /api/v1/bookie/gc                       results of garbage collection
POST /api/v1/bookie/gc                       start a pass now
POST /api/v1/bookie/gc/approve_store         trust a metadata store that was found to be behind
POST /api/v1/bookie/gc/approve_drop          start a pass now that also drops what waits for an operator
POST /api/v1/bookie/gc/suspend_compaction    suspend compaction
POST /api/v1/bookie/gc/resume_compaction     resume compaction
GET  /api/v1/bookie/config                   the settings in force
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tallybook.core.access import Permission
from tallybook.core.errors import BookieUnavailable, InvalidConfig, Outcome
from tallybook.core.settings import BookieSettings
from tallybook.runtime.http.endpoints import Endpoint, EndpointRequest, Handler

from ..bookie import Bookie

_GC_NUMBERS: Final = (
    "collector_rounds_total",
    "ledgers_dropped_total",
    "ledgers_deleted",
    "ledgers_missing",
    "collection_held",
    "metadata_behind",
    "leftovers_dropped_total",
    "entry_logs_removed_total",
    "entry_log_bytes_removed_total",
    "compacted_bytes_total",
    "index_compactions_total",
)


class BookieEndpoints:
    """Handlers of the endpoints.

    Args:
        why_not_ready: the reason that ``/readyz`` reports.
        bookie: the bookie; ``None`` while it boots, and the endpoints answer 503.
    """

    def __init__(
        self, settings: BookieSettings, why_not_ready: Callable[[], str | None], bookie: Callable[[], Bookie | None]
    ) -> None:
        self._settings = settings
        self._why_not_ready = why_not_ready
        self._bookie = bookie

    def table(self) -> list[Endpoint]:
        """All endpoints."""
        return [
            Endpoint("GET", "/api/v1/bookie/state", Permission.READ, self._state),
            Endpoint("GET", "/api/v1/bookie/gc", Permission.READ, self._gc),
            _change("gc", self._collect, "collect garbage"),
            _change("gc/approve_store", self._approve_store, "approve an older metadata store"),
            _change("gc/approve_drop", self._approve_drop, "approve dropping deleted and missing ledgers"),
            _change("gc/suspend_compaction", self._suspend, "suspend compaction"),
            _change("gc/resume_compaction", self._resume, "resume compaction"),
            Endpoint("GET", "/api/v1/bookie/config", Permission.ADMINISTER, self._config),
        ]

    def _there(self) -> Bookie:
        bookie = self._bookie()
        if bookie is None:
            raise BookieUnavailable("the bookie is starting", outcome=Outcome.NOT_DONE)
        return bookie

    async def _state(self, asked: EndpointRequest) -> object:
        bookie = self._there()
        status = await bookie.status()
        return {
            "bookie_id": bookie.bookie_id,
            "boot": bookie.incarnation.boot,
            "not_ready": self._why_not_ready(),
            **status._asdict(),
            "directories": [directory._asdict() for directory in status.directories],
        }

    async def _gc(self, asked: EndpointRequest) -> object:
        return self._collected()

    async def _collect(self, asked: EndpointRequest) -> object:
        bookie = self._with_rounds()
        before = self._collected()
        bookie.request_collection()
        return {"requested": True, **before}

    async def _approve_store(self, asked: EndpointRequest) -> object:
        await self._there().approve_store()
        return {"approved": True, **self._collected()}

    async def _approve_drop(self, asked: EndpointRequest) -> object:
        bookie = self._with_rounds()
        before = self._collected()
        await bookie.approve_drop()
        return {"requested": True, **before}

    def _with_rounds(self) -> Bookie:
        bookie = self._there()
        if not self._settings.collection.interval_ms:
            raise InvalidConfig("garbage collection is disabled: collection.interval_ms is 0")
        return bookie

    async def _suspend(self, asked: EndpointRequest) -> object:
        self._there().suspend_compaction(True)
        return self._collected()

    async def _resume(self, asked: EndpointRequest) -> object:
        self._there().suspend_compaction(False)
        return self._collected()

    def _collected(self) -> Mapping[str, object]:
        bookie = self._there()
        numbers = bookie.stats()
        found = {name.removesuffix("_total"): numbers[name] for name in _GC_NUMBERS}
        return {**found, "compaction_suspended": bookie.compaction_suspended}

    async def _config(self, asked: EndpointRequest) -> object:
        return self._settings.model_dump(mode="json")


def _change(path: str, handler: Handler, action: str) -> Endpoint:
    return Endpoint("POST", f"/api/v1/bookie/{path}", Permission.ADMINISTER, handler, action=action)

"""What a bookie says and does over its own HTTP port, beside health and numbers.

GET  /api/v1/bookie/state                    how it is
GET  /api/v1/bookie/gc                       what its collector of garbage has done
POST /api/v1/bookie/gc                       have a round of it now
POST /api/v1/bookie/gc/approve_store         go on with a metadata store that was found behind
POST /api/v1/bookie/gc/approve_drop          have a round now that also drops what waits for an operator
POST /api/v1/bookie/gc/suspend_compaction    let it compact nothing
POST /api/v1/bookie/gc/resume_compaction     let it compact again
GET  /api/v1/bookie/config                   the settings in force
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tallybook.core.access import Permission
from tallybook.core.config import BookieSettings
from tallybook.core.errors import BookieUnavailable, InvalidConfig, Outcome
from tallybook.runtime.http_api import Asked, Endpoint, Handler

from .bookie import Bookie

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
    """What the endpoints do. The port is served before there is a bookie: until then they say so.

    Args:
        why_not_ready: as ``/readyz`` has it.
    """

    def __init__(self, settings: BookieSettings, why_not_ready: Callable[[], str | None]) -> None:
        self._settings = settings
        self._why_not_ready = why_not_ready
        self.bookie: Bookie | None = None

    def table(self) -> list[Endpoint]:
        """All of them."""
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
        if self.bookie is None:
            raise BookieUnavailable("the bookie is starting", outcome=Outcome.NOT_DONE)
        return self.bookie

    async def _state(self, asked: Asked) -> object:
        bookie = self._there()
        status = await bookie.status()
        return {
            "bookie_id": bookie.bookie_id,
            "boot": bookie.incarnation.boot,
            "not_ready": self._why_not_ready(),
            **status._asdict(),
            "directories": [directory._asdict() for directory in status.directories],
        }

    async def _gc(self, asked: Asked) -> object:
        return self._collected()

    async def _collect(self, asked: Asked) -> object:
        bookie = self._with_rounds()
        before = self._collected()
        bookie.request_collection()
        return {"requested": True, **before}

    async def _approve_store(self, asked: Asked) -> object:
        await self._there().approve_store()
        return {"approved": True, **self._collected()}

    async def _approve_drop(self, asked: Asked) -> object:
        bookie = self._with_rounds()
        before = self._collected()
        await bookie.approve_drop()
        return {"requested": True, **before}

    def _with_rounds(self) -> Bookie:
        bookie = self._there()
        if not self._settings.collection.interval_ms:
            raise InvalidConfig("there are no rounds of this collector: collection.interval_ms is 0")
        return bookie

    async def _suspend(self, asked: Asked) -> object:
        self._there().suspend_compaction(True)
        return self._collected()

    async def _resume(self, asked: Asked) -> object:
        self._there().suspend_compaction(False)
        return self._collected()

    def _collected(self) -> Mapping[str, object]:
        bookie = self._there()
        numbers = bookie.stats()
        found = {name.removesuffix("_total"): numbers[name] for name in _GC_NUMBERS}
        return {**found, "compaction_suspended": bookie.compaction_suspended}

    async def _config(self, asked: Asked) -> object:
        return self._settings.model_dump(mode="json")


def _change(path: str, handler: Handler, action: str) -> Endpoint:
    return Endpoint("POST", f"/api/v1/bookie/{path}", Permission.ADMINISTER, handler, action=action)

"""The table of all console endpoints with the permission that each requires. Unauthenticated callers get no data."""

from __future__ import annotations

from typing import Final

from tallybook.core.access import Permission
from tallybook.runtime.http.endpoints import Endpoint

from .bookies import ConsoleBookieEndpoints
from .ledgers import ConsoleLedgerEndpoints
from .maintenance import ConsoleMaintenanceEndpoints
from .streams import ConsoleStreamEndpoints

_READ: Final = Permission.READ
_ADMINISTER: Final = Permission.ADMINISTER


def endpoints(
    bookies: ConsoleBookieEndpoints,
    ledgers: ConsoleLedgerEndpoints,
    streams: ConsoleStreamEndpoints,
    maintenance: ConsoleMaintenanceEndpoints,
) -> list[Endpoint]:
    """The table of endpoints."""
    return [
        Endpoint("GET", "/api/v1/overview", _READ, maintenance.overview),
        Endpoint("GET", "/api/v1/diagnosis", _READ, maintenance.diagnosis),
        Endpoint("GET", "/api/v1/bookies", _READ, bookies.list),
        Endpoint("GET", "/api/v1/bookies/{bookie}", _READ, bookies.details),
        Endpoint(
            "POST",
            "/api/v1/bookies/{bookie}/{mode}",
            _ADMINISTER,
            bookies.switch,
            fields=("force",),
            action="switch bookie",
        ),
        Endpoint(
            "GET", "/api/v1/ledgers", _READ, ledgers.list, ("after", "limit", "sort", "state", "search", "offset")
        ),
        Endpoint("GET", "/api/v1/ledgers/{ledger}", _READ, ledgers.details),
        Endpoint(
            "DELETE",
            "/api/v1/ledgers/{ledger}",
            _ADMINISTER,
            ledgers.delete,
            (),
            ("password", "force"),
            "delete ledger",
        ),
        Endpoint("GET", "/api/v1/ledgers/{ledger}/entries/{entry}/trace", _READ, ledgers.trace),
        Endpoint("GET", "/api/v1/namespaces", _READ, streams.namespaces, ("after", "limit")),
        Endpoint("GET", "/api/v1/streams", _READ, streams.list, ("namespace", "prefix", "search", "after", "limit")),
        Endpoint("GET", "/api/v1/streams/{namespace}/{stream}", _READ, streams.details, ("after", "limit")),
        Endpoint("GET", "/api/v1/streams/{namespace}/{stream}/segments", _READ, streams.segments, ("after", "limit")),
        Endpoint("GET", "/api/v1/under-replicated", _READ, maintenance.under_replicated, ("after", "limit")),
        Endpoint("GET", "/api/v1/auditor", _READ, maintenance.auditor),
        Endpoint("POST", "/api/v1/auditor/run", _ADMINISTER, maintenance.audit, action="audit copies"),
        Endpoint("GET", "/api/v1/repair", _READ, maintenance.repair, ("after", "limit")),
        Endpoint("POST", "/api/v1/repair/{switch}", _ADMINISTER, maintenance.switch, action="switch repair"),
        Endpoint("GET", "/api/v1/offload", _READ, maintenance.offload),
        Endpoint("GET", "/api/v1/config", _ADMINISTER, maintenance.config),
    ]

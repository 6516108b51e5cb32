"""Every endpoint of the console: what it takes to call it, and what does it. Who may nothing is told nothing."""

from __future__ import annotations

from typing import Final

from tallybook.core.access import Permission
from tallybook.runtime.http_api import Endpoint

from .bookies import Bookies
from .ledgers import Ledgers
from .streams import Streams
from .upkeep import Upkeep

_READ: Final = Permission.READ
_ADMINISTER: Final = Permission.ADMINISTER


def endpoints(bookies: Bookies, ledgers: Ledgers, streams: Streams, upkeep: Upkeep) -> list[Endpoint]:
    """The table."""
    return [
        Endpoint("GET", "/api/v1/overview", _READ, upkeep.overview),
        Endpoint("GET", "/api/v1/diagnosis", _READ, upkeep.diagnosis),
        Endpoint("GET", "/api/v1/bookies", _READ, bookies.list),
        Endpoint("GET", "/api/v1/bookies/{bookie}", _READ, bookies.one),
        Endpoint(
            "POST",
            "/api/v1/bookies/{bookie}/{mode}",
            _ADMINISTER,
            bookies.switch,
            fields=("force",),
            action="switch bookie",
        ),
        Endpoint("GET", "/api/v1/ledgers", _READ, ledgers.list, ("after", "limit")),
        Endpoint("GET", "/api/v1/ledgers/{ledger}", _READ, ledgers.one),
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
        Endpoint("GET", "/api/v1/streams", _READ, streams.list, ("namespace", "prefix", "after", "limit")),
        Endpoint("GET", "/api/v1/streams/{namespace}/{stream}", _READ, streams.one, ("after", "limit")),
        Endpoint("GET", "/api/v1/streams/{namespace}/{stream}/segments", _READ, streams.segments, ("after", "limit")),
        Endpoint("GET", "/api/v1/under-replicated", _READ, upkeep.under_replicated, ("after", "limit")),
        Endpoint("GET", "/api/v1/auditor", _READ, upkeep.auditor),
        Endpoint("POST", "/api/v1/auditor/run", _ADMINISTER, upkeep.audit, action="audit copies"),
        Endpoint("GET", "/api/v1/repair", _READ, upkeep.repair, ("after", "limit")),
        Endpoint("POST", "/api/v1/repair/{switch}", _ADMINISTER, upkeep.switch, action="switch repair"),
        Endpoint("GET", "/api/v1/offload", _READ, upkeep.offload),
        Endpoint("GET", "/api/v1/config", _ADMINISTER, upkeep.config),
    ]

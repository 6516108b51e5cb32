"""The numbers of a client, combined from its parts; each is declared where it is counted."""

from __future__ import annotations

from typing import Final, NamedTuple

from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.runtime.metrics.usage import MetricValue

from . import budget, load, recovery_counters
from .budget import ByteBudget
from .load import ClientLoad
from .recovery_counters import RecoveryCounters


class ClientNumbers(NamedTuple):
    """The parts of a client that count, and what is measured on request."""

    budget: ByteBudget
    counters: RecoveryCounters
    quarantined: int

    def readings(self, connections: ClientLoad | None) -> dict[str, MetricValue]:
        """All readings; without ``connections`` those of a client that was not opened."""
        return {**_OWN.readings(self), **({} if connections is None else load.METRICS.readings(connections))}


_OWN: Final = (
    PartMetrics[ClientNumbers]()
    .of(budget.METRICS, lambda client: client.budget)
    .of(recovery_counters.METRICS, lambda client: client.counters)
    .gauge(
        "client_quarantined",
        "tallybook_client_quarantined_bookies",
        "Bookies that failed recently and are avoided by new ensembles.",
        lambda client: client.quarantined,
    )
)

CLIENT_METRICS: Final = (*_OWN.catalog, *load.METRICS.catalog)

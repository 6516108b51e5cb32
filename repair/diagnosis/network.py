"""A rule that finds a slow network between bookies and their clients. Pure.

Tallybook's own processes (gateways, repairs, offloaders) measure how long each add takes; bookies measure how long it
takes inside. The difference, less the lag of both event loops, is network time. A client does not measure it for each
bookie, so it is compared with the slowest bookie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .causes import BottleneckFinding, Cause, Evidence
from .samples import ProcessKind, SampleDelta

FAR_SECONDS: Final = 0.01
"""In a data centre a message takes less than a millisecond; this is longer than most journals take for a write."""

MAINLY: Final = 0.5
"""More than half of the time that a client waits."""


def network_findings(changes: Sequence[SampleDelta]) -> list[BottleneckFinding]:
    """One finding for each process with a slow network."""
    bookies = [change for change in changes if change.kind is ProcessKind.BOOKIE]
    clients = [change for change in changes if change.kind is not ProcessKind.BOOKIE]
    if not any(bookie.count("tallybook_bookie_add_seconds") > 0 for bookie in bookies):
        return []
    inside = max(bookie.mean("tallybook_bookie_add_seconds") for bookie in bookies)
    late = max(bookie.mean("tallybook_process_loop_lag_seconds") for bookie in bookies)
    found = [_between(client, inside, late) for client in clients]
    return [finding for finding in found if finding is not None]


def _between(client: SampleDelta, inside: float, late: float) -> BottleneckFinding | None:
    outside = client.mean("tallybook_client_add_seconds")
    # Each message waits for both event loops, there and back.
    late += client.mean("tallybook_process_loop_lag_seconds")
    way = outside - inside - 2 * late
    if way < FAR_SECONDS or way < MAINLY * outside:
        return None
    return BottleneckFinding(
        Cause.NETWORK,
        client.name,
        min(1.0, way / outside),
        (
            Evidence("an add in the network, both ways", way, "s", FAR_SECONDS),
            Evidence("an add, as this client sees it", outside, "s"),
            Evidence("an add, in the slowest bookie", inside, "s"),
            Evidence("delay of event loops", late, "s"),
        ),
    )

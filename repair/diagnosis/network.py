"""What is neither in a bookie nor in its client: the time between the two. Pure.

Clients that Tallybook runs itself (gateways, repairs, offloaders) tell how long each add was away; bookies tell how
long they had it. What is left over, and is not that one of them was late, was spent on the way. A client does not tell
which bookie it waited for, so it is compared with the slowest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .causes import Cause, Evidence, Finding
from .samples import Change, ProcessKind

FAR_SECONDS: Final = 0.01
"""Within a data centre a message takes less than a millisecond; ten of them are more than most journals take."""

MAINLY: Final = 0.5
"""More than half of the time that a client waits."""


def network_findings(changes: Sequence[Change]) -> list[Finding]:
    """All that is found."""
    bookies = [change for change in changes if change.kind is ProcessKind.BOOKIE]
    clients = [change for change in changes if change.kind is not ProcessKind.BOOKIE]
    if not any(bookie.count("tallybook_bookie_add_seconds") > 0 for bookie in bookies):
        return []
    inside = max(bookie.mean("tallybook_bookie_add_seconds") for bookie in bookies)
    late = max(bookie.mean("tallybook_process_loop_lag_seconds") for bookie in bookies)
    found = [_between(client, inside, late) for client in clients]
    return [finding for finding in found if finding is not None]


def _between(client: Change, inside: float, late: float) -> Finding | None:
    outside = client.mean("tallybook_client_add_seconds")
    # A message waits for both loops, there and back.
    late += client.mean("tallybook_process_loop_lag_seconds")
    way = outside - inside - 2 * late
    if way < FAR_SECONDS or way < MAINLY * outside:
        return None
    return Finding(
        Cause.NETWORK,
        client.name,
        min(1.0, way / outside),
        (
            Evidence("an add on its way, there and back", way, "s", FAR_SECONDS),
            Evidence("an add, as this client sees it", outside, "s"),
            Evidence("an add, in the slowest bookie", inside, "s"),
            Evidence("how late event loops were", late, "s"),
        ),
    )

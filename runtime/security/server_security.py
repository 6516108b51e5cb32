"""The security of a process that others call: open, kept fresh, and among its metrics."""

from __future__ import annotations

from ..clock import Clock
from ..metrics import Metrics
from ..tasks import Tasks
from .security import SECURITY_METRICS, Security, open_security


def security_of_server(directory: str, clock: Clock, tasks: Tasks, metrics: Metrics) -> Security | None:
    """What ``directory`` says, always as it is now; ``None`` if it is empty: no security.

    Args:
        tasks: where it is kept fresh.
        metrics: where it is shown.

    Raises:
        InvalidConfig: the directory does not say it, does not say who may do what, or says what cannot be.
    """
    security = open_security(directory, serves=True)
    if security is not None:
        tasks.spawn(security.keep_fresh(clock), name="security", essential=True)
        metrics.add(SECURITY_METRICS, security.numbers)
    return security

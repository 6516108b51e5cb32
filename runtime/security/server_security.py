"""Loads the security of a server, reloads it in the background and adds its metrics."""

from __future__ import annotations

from ..clock import Clock
from ..metrics.registry import Metrics
from ..tasks import Tasks
from .process_security import SECURITY_METRICS, Security, open_security


def security_of_server(directory: str, clock: Clock, tasks: Tasks, metrics: Metrics) -> Security | None:
    """Load the security directory of a server; ``None`` if ``directory`` is an empty string: no security.

    Args:
        tasks: run the reload task.
        metrics: registry for ``SECURITY_METRICS``.

    Raises:
        InvalidConfig: a required file, such as the access rules, is missing or invalid.
    """
    security = open_security(directory, serves=True)
    if security is not None:
        tasks.spawn(security.reload_periodically(clock), name="security", essential=True)
        metrics.add_part(SECURITY_METRICS, security)
    return security

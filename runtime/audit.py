"""The audit log: destructive operations, changes of how the cluster runs, and denied requests.

Each is one line of the part ``audit`` among the other lines of the process, at every log level:

    {"part": "audit", "event": "delete ledger", "principal": "writers", "identity": "tallybook://writer/orders",
     "peer": "ipv4:...", "ledger_id": 7, ...}

The process that gets the request writes the line before it begins. The outcome is in its answer only.
"""

from __future__ import annotations

from tallybook.core.access import Principal
from tallybook.core.errors import TallybookError

from .logging import logger

_log = logger("audit")


def audit(action: str, principal: Principal, peer: str, **what: object) -> None:
    """Log one operation.

    Args:
        action: a verb and its object; one of a small number of fixed texts.
        peer: address of the client's end of the connection.
        what: ids and names of the object.
    """
    _log.info(action, principal=principal.name, identity=principal.identity, peer=peer, **what)


def audit_denial(error: TallybookError, principal: str, identity: str, peer: str, method: str, suppressed: int) -> None:
    """Log a denied request. ``DenialLog`` limits the number of these lines.

    Args:
        suppressed: how many denials were not logged since the last line.
    """
    _log.warning(
        "refused",
        principal=principal,
        identity=identity,
        peer=peer,
        method=method,
        error_type=type(error).__name__,
        error=error.message,
        untold_count=suppressed,
    )

"""The audit log: who did what cannot be undone, or changes how the cluster runs.

One line for each, of the part ``audit``, among the other lines of the process, whatever the level of its log:

    {"part": "audit", "event": "delete ledger", "principal": "writers", "identity": "tallybook://writer/orders",
     "peer": "ipv4:...", "ledger_id": 7, ...}

It is written when the thing is begun, by whoever was asked to do it. What became of it is in the answer.
"""

from __future__ import annotations

from tallybook.core.access import Principal
from tallybook.core.errors import TallybookError

from .logging import logger

_log = logger("audit")


def audit(action: str, principal: Principal, peer: str, **what: object) -> None:
    """Note one thing.

    Args:
        action: a verb and what it is done to; one of a small number of fixed texts.
        peer: the connection that it was asked on.
        what: which one: ids and names.
    """
    _log.info(action, principal=principal.name, identity=principal.identity, peer=peer, **what)


def refused(error: TallybookError, principal: str, identity: str, peer: str, method: str, untold: int) -> None:
    """Note that somebody was refused: see ``refusals``, which keeps these lines few.

    Args:
        untold: how often somebody was, without a line, since the last one.
    """
    _log.warning(
        "refused",
        principal=principal,
        identity=identity,
        peer=peer,
        method=method,
        error_type=type(error).__name__,
        error=error.message,
        untold_count=untold,
    )

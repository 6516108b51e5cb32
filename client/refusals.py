"""What it means that bookies do not let this client in.

A bookie that refuses a client, for its role, for want of a certificate that counts, or because it is of another
cluster, will go on to do so: unlike one that is away, it is not worth waiting for. And it says why, which is what the
user has to hear, rather than that there were too few bookies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tallybook.core.errors import AccessDenied, InvalidConfig, TallybookError, Unauthenticated

_REFUSALS: Final = (AccessDenied, Unauthenticated, InvalidConfig)


def is_refusal(error: TallybookError | None) -> bool:
    """Whether ``error``, met on the way to a bookie, says that this client is not let in."""
    return isinstance(error, _REFUSALS)


def refusal_of_all(errors: Sequence[TallybookError | None], what: str) -> TallybookError | None:
    """What to tell the user if every one of these refuses; ``None`` if there is none, or one that does not.

    Args:
        what: was wanted, with the ledger concerned.
    """
    first = next(iter(errors), None)
    if first is None or not all(map(is_refusal, errors)):
        return None
    return type(first)(f"{what}: its bookies refuse this client: {first.message}")

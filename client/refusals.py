"""Recognizes errors by which a bookie refuses this client, and lists the answers of bookies for messages.

A bookie that refuses a client (wrong role, no valid certificate, another cluster) will go on to refuse it: unlike an
unavailable bookie, it is not worth waiting for. The user must see the reason rather than "too few bookies".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tallybook.core.errors import AccessDenied, InvalidConfig, TallybookError, Unauthenticated

_REFUSALS: Final = (AccessDenied, Unauthenticated, InvalidConfig)


def is_refusal(error: TallybookError | None) -> bool:
    """Whether ``error`` of a connection attempt means that the bookie refuses this client."""
    return isinstance(error, _REFUSALS)


def refusal_of_all(errors: Sequence[TallybookError | None], what: str) -> TallybookError | None:
    """The error to report if all of ``errors`` are refusals; ``None`` if there are none, or one is not a refusal.

    Args:
        what: the operation and its ledger, for the message.
    """
    first = next(iter(errors), None)
    if first is None or not all(map(is_refusal, errors)):
        return None
    return type(first)(f"{what}: its bookies refuse this client: {first.message}")


def listed(answers: Mapping[str, str]) -> str:
    """Names with their answers, for a message: ``bookie-1 (EntryAbsent), bookie-2 (BookieUnavailable)``."""
    return ", ".join(f"{name} ({answer})" for name, answer in answers.items())

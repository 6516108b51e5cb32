"""How far a subscription is behind the end of its stream."""

from __future__ import annotations

from typing import NamedTuple

from tallybook.core.errors import TallybookError, is_defect
from tallybook.stream import StreamStore, SubscriptionInfo


class Lag(NamedTuple):
    """How far it is behind."""

    records: int | None
    """``None``: it cannot be told."""
    why: str
    """For what reason, if so."""


async def lag_of(store: StreamStore, stream: str, found: SubscriptionInfo, end: int | None) -> Lag:
    """The lag of a subscription.

    Args:
        end: number of the record that comes next; ``None``: it is not known.
    """
    if found.cursor is None:
        return Lag(None, "how far it has come is lost: reset it")
    if end is None:
        return Lag(None, "the end of the stream is not known")
    try:
        return Lag(max(0, end - await store.sequence_of(stream, found.cursor)), "")
    except TallybookError as error:
        raise_defect(error)
        return Lag(None, error.message)


def raise_defect(error: TallybookError) -> None:
    """What cannot be told now is left out; a defect is not."""
    if is_defect(error):
        raise error

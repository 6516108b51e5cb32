"""What bookies answer, as both sides speak of it.

These are plain values: ``bookie/service`` turns them into wire messages, ``client/bookie_rpc``
turns messages back into them, and an in-memory bookie hands them over directly. An answer
that reports a failure of the bookie itself is not a value but an error from ``errors``.
"""

from __future__ import annotations

from typing import NamedTuple

from .batch import Buffer
from .errors import OK_CODE


class AddAnswer(NamedTuple):
    """The fate of one batch at one bookie. ``code`` is a wire code of ``errors``, 0 for acked."""

    ledger_id: int
    first_entry_id: int
    entry_count: int
    code: int = OK_CODE
    retry_after_ms: int = 0


class FenceAnswer(NamedTuple):
    """The ledger is fenced, durably. ``lac`` is what recovery starts from; ``last_held`` is a hint."""

    lac: int
    last_held: int


class LacAnswer(NamedTuple):
    """The highest LAC a bookie saw of a ledger, and whether a recovery has fenced it.

    ``batches``: what a long poll was asked to bring along; whole, in order and without a gap. None is as good.
    """

    lac: int
    fenced: bool
    batches: tuple[Buffer, ...] = ()


class ReadAnswer(NamedTuple):
    """Whole batches, in order and without a gap; the first one holds the entry asked for."""

    batches: tuple[Buffer, ...]
    lac: int


class Incarnation(NamedTuple):
    """One life of one bookie: the uuid of its directories, and how often they were booted."""

    directory_uuid: str
    boot: int

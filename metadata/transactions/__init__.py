"""Transactions: sets of ledgers written in parallel that become visible together.

This file is the entrance: it exports what other rooms use. ``commit_protocol`` publishes the ledgers of a transaction,
or abandons them; ``model`` has the marks on ledgers and the visibility rule, ``sink_record`` the record of a sink,
``abandoned`` the clean-up by the offloader. Nothing here reads or writes entries.
"""

from .abandoned import delete_abandoned
from .commit_protocol import abandon, commit, discard, forget, record_attempt, renew, was_committed
from .model import (
    EVERYTHING,
    PENDING,
    SINK,
    STAGED,
    Transaction,
    View,
    is_pending,
    is_staged,
    last_committed,
    read_sink,
    read_view,
    unmarked,
)
from .sink_record import ATTEMPTS, ATTEMPTS_ONCE, CLOCK, SINKS, SinkRecord, attempt_of

__all__ = [
    "ATTEMPTS",
    "ATTEMPTS_ONCE",
    "CLOCK",
    "EVERYTHING",
    "PENDING",
    "SINK",
    "SINKS",
    "STAGED",
    "SinkRecord",
    "Transaction",
    "View",
    "abandon",
    "attempt_of",
    "commit",
    "delete_abandoned",
    "discard",
    "forget",
    "is_pending",
    "is_staged",
    "last_committed",
    "read_sink",
    "read_view",
    "record_attempt",
    "renew",
    "unmarked",
    "was_committed",
]

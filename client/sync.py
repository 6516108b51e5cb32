"""The blocking client, for programs without asyncio: the calls of ``tallybook.client``, which block for the result.

    with Client("sqlite:////var/lib/tallybook/metadata.db") as client, client.create_ledger() as ledger:
        ledger.append(b"hello")

It runs the asyncio client in a thread of its own (docs/use/ledgers.md, docs/understand/architecture.md). Guarantees,
errors, deadlines and limits are those of ``tallybook.client``.

Any number of threads may share a client and its handles. Ctrl-C in a waiting thread cancels the call it waits for; the
client stays usable. After a fork, the child must open a client of its own: it has neither the parent's thread nor its
connections, and calls fail.
"""

from __future__ import annotations

from tallybook.core.batch import Entry
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.model import DigestType, LedgerMetadata, LedgerState

from .blocking.generated import ChosenIdsWriter, Client, LedgerReader, LedgerWriter
from .blocking.writer import PendingAppend

__all__ = [
    "ChosenIdsWriter",
    "Client",
    "ClientSettings",
    "DigestType",
    "Entry",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerState",
    "LedgerWriter",
    "PendingAppend",
]

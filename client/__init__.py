"""The ledger client: writes, reads and recovers ledgers that are replicated on several bookies.

    client.py                   ``Client``, the entrance; ``sync.Client`` is the same for programs without asyncio
    writer/ reader/ recovery/   a pure state machine each, and a driver that performs its actions
    connection/                 streams to bookies, one connection per bookie
    placement/                  which bookies a new ensemble has, and which one replaces a failed member
    cluster_archive.py          the archive as a source of reads
    blocking/                   the handles of ``sync``

A program that moves much data should call ``tallybook.runtime.tuning.tune_process`` first, and import this package
before gRPC: it sets ``GRPC_EXPERIMENTS`` and ``GRPC_VERBOSITY`` for the process unless they are set.
"""

from tallybook.core.batch import Entry
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.model import DigestType, LedgerMetadata, LedgerState

from .client import Client
from .ports import ClientWorld
from .reader.handle import LedgerReader
from .writer.appends import PendingAppend
from .writer.chosen_ids import ChosenIdsWriter
from .writer.handle import LedgerWriter

__all__ = [
    "ChosenIdsWriter",
    "Client",
    "ClientSettings",
    "ClientWorld",
    "DigestType",
    "Entry",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerState",
    "LedgerWriter",
    "PendingAppend",
]

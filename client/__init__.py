"""The ledger client: writes, reads and recovers ledgers that are replicated on several bookies.

Entrance: ``Client``; programs without asyncio use ``tallybook.client.sync.Client``, which has the same calls.
``writer/``, ``reader/`` and ``recovery/`` each hold a pure state machine and a driver that performs its actions.
Nothing here imports the bookie, the stream library or the gateway.

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

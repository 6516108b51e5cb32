"""The quorum client: writes, reads and recovers ledgers over several bookies.

Start at ``Client``; a program without asyncio at ``tallybook.client.sync.Client``, which has the
same calls. ``writer/``, ``reader/`` and ``recovery/`` each hold a pure machine with the rules and a
driver that does what it says. A program that moves much data does well to call
``tallybook.runtime.tuning.tune_process`` first, and to import this before gRPC: loading it sets
``GRPC_EXPERIMENTS`` and ``GRPC_VERBOSITY`` for the process, unless they are set.
"""

from tallybook.core.batch import Entry
from tallybook.core.config import ClientSettings
from tallybook.metadata.model import DigestType, LedgerMetadata, LedgerState

from .client import Client
from .ports import ClientWorld
from .reader.handle import LedgerReader
from .writer.chosen_ids import ChosenIdsWriter
from .writer.handle import LedgerWriter
from .writer.pending import PendingAppend

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

"""Named streams of records over ledgers: unbounded, with one writer at a time and any number of readers.

    streams.py         `StreamStore`, the entrance; `sync.StreamStore` (blocking/) is the same without asyncio
    writer/ reader/    records into segments, and out of them; a segment is a ledger
    subscription/      stored cursors, each with one reader at a time
    catalog/           the records of streams in the metadata store; `head` has the rules of segments and owners
    records/           encoding of records; `record_kinds` lists the metadata records for fsck
    retention/         the janitor, which `service` runs where it leads; restore/ after a loss of metadata
    deliveries.py      batches that are appended exactly once, for Spark and the gateway

docs/use/streams.md is the guide for users. The stream library is a client of ledgers: nothing here talks to bookies,
except through `tallybook.client`, and nothing knows repair or the archive.
"""

from .catalog.subscription_record import Cursor
from .gaps import Gap, GapReason
from .info import NamespaceInfo, SegmentInfo, StreamInfo, SubscriptionInfo, SubscriptionLag
from .policy import StreamPolicy
from .position import Position
from .reader.handle import StreamReader
from .records.envelope import Record
from .records.record import Outgoing, Payload
from .service import keep_for_ever, run_janitor
from .start import Start
from .streams import StreamStore
from .subscription.handle import SubscriptionReader
from .writer.handle import StreamWriter
from .writer.pending import PendingRecord

__all__ = [
    "Cursor",
    "Gap",
    "GapReason",
    "NamespaceInfo",
    "Outgoing",
    "Payload",
    "PendingRecord",
    "Position",
    "Record",
    "SegmentInfo",
    "Start",
    "StreamInfo",
    "StreamPolicy",
    "StreamReader",
    "StreamStore",
    "StreamWriter",
    "SubscriptionInfo",
    "SubscriptionLag",
    "SubscriptionReader",
    "keep_for_ever",
    "run_janitor",
]

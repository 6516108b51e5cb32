"""Named streams of records over ledgers: unbounded, with one writer at a time and any number of readers.

Entrance: `StreamStore`; programs without asyncio use `tallybook.stream.sync.StreamStore`, which has the same calls.
docs/use/streams.md is the guide for users; `head` has the rules of segments and owners.
The stream library is a client of ledgers: nothing here talks to bookies, except through `tallybook.client`.
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

"""Named streams of records over ledgers: unbounded, with one writer at a time and any number of readers.

`StreamStore` is where to begin; a program without asyncio does so at `tallybook.stream.sync.StreamStore`, which has
the same calls. docs/streams.md is for users; `head` has the rules of segments and owners.
"""

from .envelope import Record
from .gaps import Gap, GapReason
from .info import SegmentInfo, StreamInfo, SubscriptionInfo
from .keeping_rounds import keep_for_ever
from .policy import StreamPolicy
from .position import Position
from .reader.handle import StreamReader
from .record import Outgoing, Payload
from .start import Start
from .streams import StreamStore
from .subscription.handle import SubscriptionReader
from .subscription.record import Cursor
from .writer.handle import StreamWriter
from .writer.pending import PendingRecord

__all__ = [
    "Cursor",
    "Gap",
    "GapReason",
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
    "SubscriptionReader",
    "keep_for_ever",
]

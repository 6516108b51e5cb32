"""Blocking streams, for programs without asyncio: the calls of ``tallybook.stream``, which block for the result.

    with Client("sqlite:////var/lib/tallybook/metadata.db") as client, StreamStore(client) as streams:
        with streams.writer("orders/eu") as writer:
            position = writer.append(b"...", key=b"42")

They run the asyncio streams in the thread of one ``tallybook.client.sync.Client`` (docs/use/streams.md). Guarantees,
errors, deadlines and limits are those of ``tallybook.stream``.

Any number of threads may share a store and its writers. A reader is used by one thread at a time; any thread may close
it. Ctrl-C in a waiting thread cancels the call it waits for; the handles stay usable.
"""

from __future__ import annotations

from .blocking.generated import StreamReader, StreamStore, StreamWriter, SubscriptionReader
from .blocking.writer import PendingRecord
from .catalog.subscription_record import Cursor
from .gaps import Gap, GapReason
from .info import NamespaceInfo, SegmentInfo, StreamInfo, SubscriptionInfo, SubscriptionLag
from .policy import StreamPolicy
from .position import Position
from .records.envelope import Record
from .records.record import Outgoing, Payload
from .start import Start

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
]

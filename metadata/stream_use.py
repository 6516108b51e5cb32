"""Which part of a living stream a ledger is: deleting the ledger by itself would lose records of the stream."""

from __future__ import annotations

import json
import re
from typing import Final

from .model import LedgerMetadata
from .record_json import NOT_UNDERSTOOD
from .store import MetadataStore
from .transactions import SINK, STAGED

STREAM: Final = "tallybook.stream"
"""Key, among a ledger's custom metadata, of the stream that it is a segment of."""
CURSOR: Final = "tallybook.cursor"
"""Key, among a ledger's custom metadata, of the subscription whose cursor ledger it is."""
HEADS: Final = "stream-heads/"

_STREAM_ID: Final = re.compile("[0-9a-f]{32}")
_SEGMENT: Final = re.compile("(?P<stream>[0-9a-f]{32})/(?P<number>[1-9][0-9]{0,17})")


def head_record(stream_id: str) -> str:
    """Name of the record that has all that is known of a stream."""
    # Two levels: ZooKeeper cannot list a folder of more than some ten thousand.
    return f"{HEADS}{stream_id[:2]}/{stream_id}"


async def use_of(store: MetadataStore, ledger: LedgerMetadata) -> str | None:
    """What a ledger is to the stream that it was made for, in words; ``None`` if there is no such stream any more.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    made_for = _made_for(ledger)
    if made_for is None or _STREAM_ID.fullmatch(made_for[0]) is None:
        return None
    stream_id, part = made_for
    head = await store.read_record(head_record(stream_id), linearizable=True)
    return None if head is None else f"{part} of {stream_of(stream_id, head.value)}"


def _made_for(ledger: LedgerMetadata) -> tuple[str, str] | None:
    marks = {key: ledger.custom.get(key, b"").decode(errors="replace") for key in (STREAM, CURSOR, SINK)}
    if marks[STREAM]:
        stream_id, _, number = marks[STREAM].partition("/")
        return stream_id, f"segment {number}"
    if marks[CURSOR]:
        stream_id, _, name = marks[CURSOR].partition("/")
        return stream_id, f"the cursor of subscription {name!r}"
    if marks[SINK].startswith(STAGED):
        stream_id, _, sink = marks[SINK].removeprefix(STAGED).partition(".")
        return stream_id, f"a delivery of sink {sink.rpartition('/')[0]!r}"
    return None


def is_of_stream(ledger: LedgerMetadata, stream_id: str) -> bool:
    """Whether a ledger was made for that stream."""
    made_for = _made_for(ledger)
    return made_for is not None and made_for[0] == stream_id


def segment_of(ledger: LedgerMetadata) -> tuple[str, int] | None:
    """The id of the stream that a ledger was made for as a segment, and the number of that; ``None`` if it was not."""
    match = _SEGMENT.fullmatch(ledger.custom.get(STREAM, b"").decode(errors="replace"))
    return match and (match["stream"], int(match["number"]))


def stream_of(stream_id: str, head: bytes) -> str:
    """The stream in words: its name, or its id if its head cannot be understood."""
    try:
        found = json.loads(head)
        return f"stream {found['name']!r} in namespace {found['namespace']!r}"
    except NOT_UNDERSTOOD:
        # A stream whose head is damaged needs its ledgers all the more.
        return f"stream {stream_id}"

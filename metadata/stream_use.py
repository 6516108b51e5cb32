"""Finds the stream that a ledger is part of. Deleting such a ledger separately would lose records of the stream."""

from __future__ import annotations

import json
import re
from typing import Final

from .ledger.model import LedgerMetadata
from .records.json_errors import DECODE_ERRORS
from .store import MetadataStore
from .transactions import SINK, STAGED

STREAM: Final = "tallybook.stream"
"""Key in a ledger's custom metadata: the stream that it is a segment of."""
CURSOR: Final = "tallybook.cursor"
"""Key in a ledger's custom metadata: the subscription whose cursor ledger it is."""
HEADS: Final = "stream-heads/"

_STREAM_ID: Final = re.compile("[0-9a-f]{32}")
_SEGMENT: Final = re.compile("(?P<stream>[0-9a-f]{32})/(?P<number>[1-9][0-9]{0,17})")


def head_record(stream_id: str) -> str:
    """Name of the head record of a stream."""
    # Two levels: ZooKeeper cannot list a node with more than some ten thousand children.
    return f"{HEADS}{stream_id[:2]}/{stream_id}"


async def describe_stream_use(store: MetadataStore, ledger: LedgerMetadata) -> str | None:
    """Describe the ledger's part in its stream; ``None`` if the stream does not exist any more.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    made_for = _stream_of(ledger)
    if made_for is None or _STREAM_ID.fullmatch(made_for[0]) is None:
        return None
    stream_id, part = made_for
    head = await store.read_record(head_record(stream_id), linearizable=True)
    return None if head is None else f"{part} of {stream_of(stream_id, head.value)}"


def _stream_of(ledger: LedgerMetadata) -> tuple[str, str] | None:
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


def belongs_to_stream(ledger: LedgerMetadata, stream_id: str) -> bool:
    """Whether the ledger was created for that stream."""
    made_for = _stream_of(ledger)
    return made_for is not None and made_for[0] == stream_id


def segment_of(ledger: LedgerMetadata) -> tuple[str, int] | None:
    """Stream id and segment number of a ledger that is a segment; ``None`` otherwise."""
    match = _SEGMENT.fullmatch(ledger.custom.get(STREAM, b"").decode(errors="replace"))
    return match and (match["stream"], int(match["number"]))


def stream_of(stream_id: str, head: bytes) -> str:
    """Describe the stream: its name, or its id if its head is unreadable."""
    try:
        found = json.loads(head)
        return f"stream {found['name']!r} in namespace {found['namespace']!r}"
    except DECODE_ERRORS:
        # A stream with a damaged head needs its ledgers all the more.
        return f"stream {stream_id}"

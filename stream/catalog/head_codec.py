"""Encoding of heads and chapters for the metadata store: readable JSON; see docs/reference/formats/metadata.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from tallybook.core.ids import MAX_ID, NO_ENTRY
from tallybook.metadata.records.format import json_text, load_json, reporting_damage

from ..policy import StreamPolicy
from ..records.envelope import StreamMarks
from .head import Chapter, Head, Owner, SegmentEnd, StreamSegment, Truncation

FORMAT: Final = 2
"""The newest format, for heads with limits in bytes. Other heads, and chapters, are written in the first one, so that
earlier versions read them."""
FIRST_FORMAT: Final = 1


def encode_head(head: Head) -> bytes:
    """Encode a head for the metadata store."""
    found: dict[str, object] = {
        "format": FORMAT if head.policy.has_limits else FIRST_FORMAT,
        "id": head.stream_id,
        "namespace": head.namespace,
        "name": head.name,
        "created_ms": head.created_at_ms,
        "policy": head.policy.model_dump(mode="json", exclude_defaults=True),
        "epoch": head.epoch,
        "next": head.next_segment,
        "marks": list(head.settled_marks),
        "segments": [_row(segment) for segment in head.segments],
    }
    optional: dict[str, object] = {
        "owner": head.owner and [head.owner.token, head.owner.session, head.owner.name],
        "chapters": [
            [each.number, each.first_segment, each.last_segment, *each.marks, each.ended_at_ms]
            for each in head.chapters
        ],
        "making": head.making,
        "begins": None if head.truncation == Truncation() else [*head.truncation.place, head.truncation.sequence],
        "last": head.last_place,
        "named": head.named,
        "ended": head.ended,
        "deleting": head.deleting,
        "doomed": head.doomed,
        "renaming": head.renaming,
        "former": head.former,
    }
    found |= {key: value for key, value in optional.items() if value is not None and value is not False and value != []}
    if not head.doomed:
        del found["doomed"]
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()


def decode_head(record: str, value: bytes) -> Head:
    """Decode a head from the metadata store.

    Args:
        record: name of the record, for messages.

    Raises:
        DamagedFile, NewerFormat: it cannot be decoded.
    """
    found = load_json(record, value, FORMAT, oldest=FIRST_FORMAT)
    with reporting_damage(record):
        owner, begins = found.get("owner"), found.get("begins")
        return Head(
            stream_id=json_text(found["id"]),
            namespace=json_text(found["namespace"]),
            name=json_text(found["name"]),
            created_at_ms=_number(found["created_ms"]),
            policy=StreamPolicy.model_validate(found["policy"]),
            epoch=_number(found["epoch"]),
            owner=None if owner is None else Owner(*map(json_text, owner)),
            segments=tuple(map(_segment, found["segments"])),
            chapters=tuple(_chapter(row) for row in found.get("chapters", ())),
            next_segment=_number(found["next"]),
            making=_number(found["making"]) if "making" in found else None,
            truncation=Truncation() if begins is None else Truncation(*map(_number, begins)),
            settled_marks=_marks(list(map(_number, found["marks"]))),
            last_place=_place(found["last"]) if "last" in found else None,
            named=found.get("named", False) is True,
            ended=found.get("ended", False) is True,
            deleting=found.get("deleting", False) is True,
            doomed=tuple(map(_number, found.get("doomed", ()))),
            renaming=json_text(found["renaming"]) if "renaming" in found else None,
            former=json_text(found["former"]) if "former" in found else None,
        )


def encode_chapter(segments: Sequence[StreamSegment]) -> bytes:
    """Encode a chapter for the metadata store."""
    rows = [_row(segment) for segment in segments]
    return json.dumps({"format": FIRST_FORMAT, "segments": rows}, separators=(",", ":")).encode()


def decode_chapter(record: str, value: bytes) -> tuple[StreamSegment, ...]:
    """Decode a chapter from the metadata store.

    Raises:
        DamagedFile, NewerFormat: it cannot be decoded.
    """
    found = load_json(record, value, oldest=FIRST_FORMAT)
    with reporting_damage(record):
        return tuple(map(_segment, found["segments"]))


def _row(segment: StreamSegment) -> list[int]:
    row = [segment.number, segment.ledger_id, segment.began_at_ms]
    if segment.end is not None:
        row += [segment.end.last_entry, *segment.end.marks, segment.end.payload_bytes, segment.end.ended_at_ms]
    return row


def _segment(row: Any) -> StreamSegment:
    number, ledger_id, began, *end = map(_number, row)
    if not end:
        return StreamSegment(number, ledger_id, began)
    last_entry, *marks, payload_bytes, ended = end
    if last_entry < NO_ENTRY:
        raise ValueError(f"{last_entry} is not a valid last entry of a segment")
    return StreamSegment(number, ledger_id, began, SegmentEnd(last_entry, _marks(marks), payload_bytes, ended))


def _chapter(row: Any) -> Chapter:
    number, first, last, *marks, ended = map(_number, row)
    return Chapter(number, first, last, _marks(marks), ended)


def _place(numbers: Any) -> tuple[int, int, int]:
    segment, entry, slot = map(_number, numbers)
    return segment, entry, slot


def _marks(numbers: list[int]) -> StreamMarks:
    sequence, time, txid, ids_before = numbers
    if sequence < 0:
        raise ValueError(f"{sequence} is not a valid record number")
    return StreamMarks(sequence, time, txid, ids_before)


def _number(value: Any) -> int:
    if type(value) is not int or not -MAX_ID - 1 <= value <= MAX_ID:
        raise TypeError(f"{value!r} is not a 64-bit number")
    return value

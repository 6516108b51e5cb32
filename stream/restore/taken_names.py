"""Gives a restored stream another name, if its own refers to another stream by now."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tallybook.core.errors import InvalidArgument, MetadataConflict, MetadataOutcomeUnknown
from tallybook.metadata.store import BadVersion, MetadataStore, Unknown
from tallybook.metadata.stream_use import head_record

from ..catalog.catalog import decode_name, encode_name
from ..catalog.head import Head
from ..catalog.head_codec import decode_head, encode_head
from ..names import check_stream_name, name_record

_ID_CHARS: Final = 8


def name_beside(head: Head) -> str:
    """The replacement name of a stream whose own name is taken.

    Raises:
        InvalidArgument: it would be too long.
    """
    try:
        return check_stream_name(f"{head.name}.restored-{head.stream_id[:_ID_CHARS]}")
    except InvalidArgument as error:
        ledgers = ", ".join(str(each.ledger_id) for each in head.segments)
        raise InvalidArgument(
            f"another stream has the name {head.name!r} now, which is too long for a suffix: the records of the "
            f"restored stream are in the ledgers {ledgers or 'of its chapters'}"
        ) from error


async def enter_beside(metadata: MetadataStore, record: str, stream_id: str) -> str | None:
    """Give a stream, whose head exists, another name than that of ``record``; return the new name.

    ``None`` if it has another name already, or does not exist. A repeated call continues.

    Raises:
        InvalidArgument: the new name would be too long.
        MetadataConflict: it was changed meanwhile.
        MetadataUnavailable, MetadataOutcomeUnknown: the metadata store failed.
        DamagedFile, NewerFormat: a record cannot be decoded.
    """
    where = head_record(stream_id)
    found = await metadata.read_record(where, linearizable=True)
    head = None if found is None else decode_head(where, found.value)
    if found is None or head is None or head.deleting:
        return None
    if name_record(head.namespace, head.name) == record:
        head = replace(head, name=name_beside(head), renaming=None, former=None)
        await _write(metadata, where, encode_head(head), found.version)
    elif not head.name.endswith(f".restored-{stream_id[:_ID_CHARS]}"):
        return None
    beside = name_record(head.namespace, head.name)
    leads_to = await metadata.read_record(beside, linearizable=True)
    if leads_to is not None and decode_name(beside, leads_to.value) == stream_id:
        return None
    await _write(metadata, beside, encode_name(stream_id), None)
    return head.name


async def _write(metadata: MetadataStore, record: str, value: bytes, version: int | None) -> None:
    result = await metadata.write_record(record, value, version)
    if isinstance(result, Unknown):
        raise MetadataOutcomeUnknown(f"{record} may have been restored: {result.reason}; run it again")
    if isinstance(result, BadVersion):
        raise MetadataConflict(f"{record} was changed while it was restored: run it again")

"""A ledger's metadata as JSON for people and programs, without secrets."""

from __future__ import annotations

from tallybook.core.calendar import utc_datetime

from .model import LedgerMetadata


def describe(metadata: LedgerMetadata) -> dict[str, object]:
    """A ledger's metadata without its secrets."""
    created = utc_datetime(metadata.created_at_ms)
    return {
        "ledger_id": metadata.ledger_id,
        "state": metadata.state.value,
        "entries": metadata.last_entry_id + 1 if metadata.closed else None,
        "bytes": metadata.length if metadata.closed else None,
        "last_entry_id": metadata.last_entry_id if metadata.closed else None,
        "ensemble": metadata.quorum.ensemble,
        "write_quorum": metadata.quorum.write_quorum,
        "ack_quorum": metadata.quorum.ack_quorum,
        "created_at": created.isoformat(timespec="milliseconds"),
        "owned": metadata.writer_token is not None,
        "password": bool(metadata.key_verifier),
        "digest": metadata.digest.value,
        "fragments": [
            {"first_entry_id": fragment.first_entry_id, "bookies": list(fragment.bookies)}
            for fragment in metadata.fragments
        ],
        "missed": [
            {"bookie_id": gap.bookie_id, "first_entry_id": gap.first_entry_id, "last_entry_id": gap.last_entry_id}
            for gap in metadata.missed
        ],
        "archive": _describe_archive(metadata),
        "custom": {name: value.decode(errors="replace") for name, value in metadata.custom.items()},
    }


def _describe_archive(metadata: LedgerMetadata) -> dict[str, object] | None:
    receipt = metadata.archived
    if receipt is None:
        return None
    archived_at = utc_datetime(receipt.archived_at_ms)
    return {
        "object": receipt.key,
        "object_bytes": receipt.object_bytes,
        "sha256": receipt.object_sha256.hex(),
        "archived_at": archived_at.isoformat(timespec="seconds"),
        "copies_released": metadata.copies_released,
    }

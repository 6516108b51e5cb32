"""Copies of a simulated metadata store, as operators keep them, and putting one in the place of the store."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

from tallybook.metadata.store import Deletion, Versioned

from .metadata import SimMetadata


class MetadataCopy(NamedTuple):
    """What a store held, apart from who was alive."""

    id_counter: int
    ledgers: dict[int, Any]
    deletions: dict[int, Deletion]
    cookies: dict[str, bytes]
    records: dict[str, Any]
    versions: dict[int, list[Versioned]]


def copy_of(metadata: SimMetadata) -> MetadataCopy:
    """What the store holds now."""
    shared = metadata.shared
    held = (shared.id_counter, shared.ledgers, shared.deletions, shared.cookies, shared.records)
    return deepcopy(MetadataCopy(*held, metadata.versions))


def put_back(metadata: SimMetadata, copy: MetadataCopy) -> None:
    """Make the store an older copy of itself. To be called while no process runs."""
    found, shared = deepcopy(copy), metadata.shared
    shared.id_counter, shared.ledgers, shared.deletions = found.id_counter, found.ledgers, found.deletions
    shared.cookies, shared.records, metadata.versions = found.cookies, found.records, found.versions

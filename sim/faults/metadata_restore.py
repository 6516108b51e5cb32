"""Copies a simulated metadata store and restores it from a copy, as an operator would."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

from tallybook.metadata.store import Deletion, Versioned

from ..cluster.metadata import SimMetadata


class MetadataCopy(NamedTuple):
    """Contents of a metadata store, without registrations."""

    id_counter: int
    ledgers: dict[int, Any]
    deletions: dict[int, Deletion]
    cookies: dict[str, bytes]
    records: dict[str, Any]
    versions: dict[int, list[Versioned]]


def copy_of(metadata: SimMetadata) -> MetadataCopy:
    """Copy the present contents of the store."""
    shared = metadata.shared
    held = (shared.id_counter, shared.ledgers, shared.deletions, shared.cookies, shared.records)
    return deepcopy(MetadataCopy(*held, metadata.versions))


def put_back(metadata: SimMetadata, copy: MetadataCopy) -> None:
    """Replace the contents of the store by ``copy``. Call it while no process runs."""
    found, shared = deepcopy(copy), metadata.shared
    shared.id_counter, shared.ledgers, shared.deletions = found.id_counter, found.ledgers, found.deletions
    shared.cookies, shared.records, metadata.versions = found.cookies, found.records, found.versions

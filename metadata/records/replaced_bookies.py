"""Records of bookies that got a new, empty directory and have not yet received all their copies again:
``bookies/replaced/BOOKIE``, with the uuid of the new directory.

While such a bookie does not answer, only this record tells that its copies are lost. The auditor removes it once no
ledger lacks copies in that directory, or when the bookie registers with another directory: the replacement was
interrupted before it discarded anything.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tallybook.core.errors import MetadataConflict, MetadataOutcomeUnknown

from ..store import BadVersion, MetadataStore, Unknown
from .listing import record_names

PREFIX: Final = "bookies/replaced/"
_ATTEMPTS: Final = 3


class Replacement(NamedTuple):
    """A decoded record, and the version for its conditional removal."""

    directory: str
    """The uuid of the new directory; empty in a record of an earlier version."""
    version: int


async def record_replacement(store: MetadataStore, bookie_id: str, directory_uuid: str) -> None:
    """Record that all data of a bookie is discarded. Call it before, and again after.

    Each call gives the record a new version, so that an auditor that read the earlier version, and the registration of
    that time, does not remove it.

    Args:
        directory_uuid: of the new directory.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown, MetadataConflict: it was not recorded, or may not have been; call
            again.
    """
    name = PREFIX + bookie_id
    for _ in range(_ATTEMPTS):
        record = await store.read_record(name, linearizable=True)
        result = await store.write_record(name, directory_uuid.encode(), None if record is None else record.version)
        if isinstance(result, Unknown):
            raise MetadataOutcomeUnknown(f"the note that bookie {bookie_id} is replaced: {result.reason}")
        if not isinstance(result, BadVersion):
            return
    raise MetadataConflict(f"the record {name}: other processes keep changing it: try again")


async def remove_replacement(store: MetadataStore, bookie_id: str, known: Replacement) -> None:
    """Remove a record, unless it was written again since it was read.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown: it may still exist.
    """
    name = PREFIX + bookie_id
    result = await store.delete_record(name, known.version)
    if isinstance(result, Unknown):
        raise MetadataOutcomeUnknown(f"the removal of the record {name}: {result.reason}")


async def read_replacements(store: MetadataStore) -> dict[str, Replacement]:
    """All records, by bookie; includes all changes made before the call.

    Raises:
        MetadataUnavailable: the store does not answer completely.
    """
    found: dict[str, Replacement] = {}
    async for name in record_names(store, PREFIX):
        record = await store.read_record(name, linearizable=True)
        if record is not None:
            directory = "" if record.value == _WITHOUT_DIRECTORY else record.value.decode(errors="replace")
            found[name.removeprefix(PREFIX)] = Replacement(directory, record.version)
    return found


_WITHOUT_DIRECTORY: Final = b"not started"
"""Value written by an earlier version, whose bookies remove the record when they start."""

"""Notes of bookies that were given a new, empty directory and have not got back all that they held:
``bookies/replaced/BOOKIE``, which holds the uuid of the new directory.

While such a bookie does not answer, nothing else tells that its copies are lost. The auditor removes the note once no
ledger lacks anything at that directory.
"""

from __future__ import annotations

from typing import Final

from tallybook.core.errors import MetadataConflict, MetadataOutcomeUnknown

from .store import BadVersion, MetadataStore, Unknown
from .transactions import names

PREFIX: Final = "bookies/replaced/"
_ATTEMPTS: Final = 3


async def note_replaced(store: MetadataStore, bookie_id: str, directory_uuid: str) -> None:
    """Note that everything a bookie held is given up. To be called before it is.

    Args:
        directory_uuid: of its new directory.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown, MetadataConflict: it was not noted, or may not have been; the same
            call settles it.
    """
    name, value = PREFIX + bookie_id, directory_uuid.encode()
    for _ in range(_ATTEMPTS):
        record = await store.read_record(name, linearizable=True)
        if record is not None and record.value == value:
            return
        result = await store.write_record(name, value, None if record is None else record.version)
        if isinstance(result, Unknown):
            raise MetadataOutcomeUnknown(f"the note that bookie {bookie_id} is replaced: {result.reason}")
        if not isinstance(result, BadVersion):
            return
    raise MetadataConflict(f"the record {name} is changed by others all the time")


async def forget_replaced(store: MetadataStore, bookie_id: str, directory_uuid: str) -> None:
    """Remove the note: the bookie has got everything back in this directory. A note of a later one stays.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown, MetadataConflict: it may be there still.
    """
    name = PREFIX + bookie_id
    record = await store.read_record(name, linearizable=True)
    if record is None or _directory(record.value) not in ("", directory_uuid):
        return
    result = await store.delete_record(name, record.version)
    if isinstance(result, Unknown):
        raise MetadataOutcomeUnknown(f"the removal of the record {name}: {result.reason}")
    if isinstance(result, BadVersion) and await store.read_record(name, linearizable=True) is not None:
        raise MetadataConflict(f"the record {name} changed while it was removed")


async def replaced_bookies(store: MetadataStore) -> dict[str, str]:
    """Bookies that were replaced and have not got everything back, each with the uuid of its new directory.

    The uuid is empty in a note of an earlier version.

    Raises:
        MetadataUnavailable: the store does not tell all of them.
    """
    found: dict[str, str] = {}
    async for name in names(store, PREFIX):
        record = await store.read_record(name)
        if record is not None:
            found[name.removeprefix(PREFIX)] = _directory(record.value)
    return found


def _directory(value: bytes) -> str:
    """The directory in a note; empty where it tells none."""
    return "" if value == _WITHOUT_DIRECTORY else value.decode(errors="replace")


_WITHOUT_DIRECTORY: Final = b"not started"
"""The value of an earlier version, whose bookies remove it when they start."""

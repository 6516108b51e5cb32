"""Notes of bookies that were given a new, empty directory and have not got back all that they held:
``bookies/replaced/BOOKIE``, which holds the uuid of the new directory.

While such a bookie does not answer, nothing else tells that its copies are lost. The auditor removes the note once no
ledger lacks anything at that directory, or when the bookie is registered with another one: a replacement was cut off
before it gave anything up.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tallybook.core.errors import MetadataConflict, MetadataOutcomeUnknown

from .store import BadVersion, MetadataStore, Unknown
from .transactions import names

PREFIX: Final = "bookies/replaced/"
_ATTEMPTS: Final = 3


class Replacement(NamedTuple):
    """What a note says, and the version that its removal must name."""

    directory: str
    """The uuid of the new directory; empty in a note of an earlier version."""
    version: int


async def note_replaced(store: MetadataStore, bookie_id: str, directory_uuid: str) -> None:
    """Note that everything a bookie held is given up. To be called before it is, and again afterwards.

    The note gets a new version each time, so that an auditor which read it before, and what the bookie was registered
    with then, does not remove it.

    Args:
        directory_uuid: of its new directory.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown, MetadataConflict: it was not noted, or may not have been; the same
            call settles it.
    """
    name = PREFIX + bookie_id
    for _ in range(_ATTEMPTS):
        record = await store.read_record(name, linearizable=True)
        result = await store.write_record(name, directory_uuid.encode(), None if record is None else record.version)
        if isinstance(result, Unknown):
            raise MetadataOutcomeUnknown(f"the note that bookie {bookie_id} is replaced: {result.reason}")
        if not isinstance(result, BadVersion):
            return
    raise MetadataConflict(f"the record {name} is changed by others all the time")


async def forget_replaced(store: MetadataStore, bookie_id: str, known: Replacement) -> None:
    """Remove a note, unless it was written again since.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown: it may be there still.
    """
    name = PREFIX + bookie_id
    result = await store.delete_record(name, known.version)
    if isinstance(result, Unknown):
        raise MetadataOutcomeUnknown(f"the removal of the record {name}: {result.reason}")


async def noted_replacements(store: MetadataStore) -> dict[str, Replacement]:
    """What the notes say, by bookie, as of now at least.

    Raises:
        MetadataUnavailable: the store does not tell all of them.
    """
    found: dict[str, Replacement] = {}
    async for name in names(store, PREFIX):
        record = await store.read_record(name, linearizable=True)
        if record is not None:
            directory = "" if record.value == _WITHOUT_DIRECTORY else record.value.decode(errors="replace")
            found[name.removeprefix(PREFIX)] = Replacement(directory, record.version)
    return found


_WITHOUT_DIRECTORY: Final = b"not started"
"""The value of an earlier version, whose bookies remove it when they start."""

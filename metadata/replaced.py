"""Notes of bookies that were given a new, empty directory and have not started since: ``bookies/replaced/BOOKIE``.

Until such a bookie starts and says itself what it may lack, nobody else can tell that what it held is lost.
"""

from __future__ import annotations

from typing import Final

from tallybook.core.errors import MetadataConflict, MetadataOutcomeUnknown

from .store import BadVersion, MetadataStore, Unknown
from .transactions import names

PREFIX: Final = "bookies/replaced/"
_VALUE: Final = b"not started"


async def note_replaced(store: MetadataStore, bookie_id: str) -> None:
    """Note that all that a bookie held is given up. To be called before it is.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown: it was not noted, or may not have been; the same call settles it.
    """
    name = PREFIX + bookie_id
    if await store.read_record(name, linearizable=True) is None:
        # Where another process was first, it is noted all the same.
        result = await store.write_record(name, _VALUE, None)
        if isinstance(result, Unknown):
            raise MetadataOutcomeUnknown(f"the note that bookie {bookie_id} is replaced: {result.reason}")


async def forget_replaced(store: MetadataStore, bookie_id: str) -> None:
    """Remove the note: the bookie is there, and says itself what it may lack. Nothing happens where there is none.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown, MetadataConflict: it may be there still.
    """
    name = PREFIX + bookie_id
    record = await store.read_record(name, linearizable=True)
    if record is None:
        return
    result = await store.delete_record(name, record.version)
    if isinstance(result, Unknown):
        raise MetadataOutcomeUnknown(f"the removal of the record {name}: {result.reason}")
    if isinstance(result, BadVersion) and await store.read_record(name, linearizable=True) is not None:
        raise MetadataConflict(f"the record {name} changed while it was removed")


async def replaced_bookies(store: MetadataStore) -> list[str]:
    """Bookies that were replaced and have not started since.

    Raises:
        MetadataUnavailable: the store does not tell all of them.
    """
    return [name.removeprefix(PREFIX) async for name in names(store, PREFIX)]

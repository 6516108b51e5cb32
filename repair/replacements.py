"""Bookies that were replaced and have not got back all that they held, by the notes that count.

A note is written before the bookie is registered with its new directory (``bookie init --replace``). Where it is
registered with another one, the replacement was cut off in between, and the old directory may be back with all data.
"""

from __future__ import annotations

from collections.abc import Mapping

from tallybook.bookie.cookie import decode_cookie
from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.metadata.replaced import Replacement, forget_replaced, noted_replacements
from tallybook.metadata.store import MetadataStore


async def replacements(store: MetadataStore) -> dict[str, str]:
    """Those bookies, each with the uuid of its new directory; empty where a note of an earlier version does not say it.

    Raises:
        MetadataUnavailable: the store does not tell all of them.
    """
    noted = await noted_replacements(store)
    return {name: note.directory for name, note in noted.items() if not await _is_cut_off(store, name, note)}


async def forget_replacements(store: MetadataStore, whole: Mapping[str, str]) -> None:
    """Remove the notes of replacements that were cut off, and of bookies that have got everything back.

    Args:
        whole: those that have, each with the uuid of the directory where; the note of a later one stays.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown: some may be there still.
    """
    for name, note in (await noted_replacements(store)).items():
        is_whole = name in whole and note.directory in ("", whole[name])
        if is_whole or await _is_cut_off(store, name, note):
            await forget_replaced(store, name, note)


async def _is_cut_off(store: MetadataStore, bookie_id: str, note: Replacement) -> bool:
    """Whether the bookie is registered with another directory. One whose registration cannot be read may not be."""
    # After the note, which is written again once the cookie names its directory.
    cookie = await store.read_cookie(bookie_id)
    if cookie is None or not note.directory:
        return False
    try:
        return decode_cookie(cookie, f"the cookie of {bookie_id}").directory_uuid != note.directory
    except (DamagedFile, NewerFormat):
        return False

"""Bookies that were replaced (``bookie init --replace``) and have not got all their copies back.

The replacement note is written before the bookie is registered with its new directory. If it is registered with another
directory than the note's, the replacement was interrupted in between, and the old directory may be back with its data.
"""

from __future__ import annotations

from collections.abc import Mapping

from tallybook.bookie.directories.cookie import decode_cookie
from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.metadata.records.replaced_bookies import Replacement, read_replacements, remove_replacement
from tallybook.metadata.store import MetadataStore


async def replacements(store: MetadataStore) -> dict[str, str]:
    """These bookies, each with the uuid of its new directory; empty if an earlier version wrote the note without it.

    Raises:
        MetadataUnavailable: the store does not list all notes.
    """
    noted = await read_replacements(store)
    return {name: note.directory for name, note in noted.items() if not await _is_cut_off(store, name, note)}


async def forget_replacements(store: MetadataStore, restored: Mapping[str, str]) -> None:
    """Remove the notes of interrupted replacements and of bookies that have got everything back.

    Args:
        restored: bookies that have, each with the uuid of its directory. A note for a later directory stays.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown: some notes may still exist.
    """
    for name, note in (await read_replacements(store)).items():
        is_restored = name in restored and note.directory in ("", restored[name])
        if is_restored or await _is_cut_off(store, name, note):
            await remove_replacement(store, name, note)


async def _is_cut_off(store: MetadataStore, bookie_id: str, note: Replacement) -> bool:
    """Whether the bookie is registered with another directory. False if its cookie cannot be decoded."""
    # Read the cookie after the note: a retried replacement writes the note again before the cookie.
    cookie = await store.read_cookie(bookie_id)
    if cookie is None or not note.directory:
        return False
    try:
        return decode_cookie(cookie, f"the cookie of {bookie_id}").directory_uuid != note.directory
    except (DamagedFile, NewerFormat):
        return False

"""The key that the own keys of sealed copies follow from: one for the archive, kept with the metadata, wrapped.

Whoever seals plain objects must give each the key that anybody else would give it (``offload/rekey.py``), also where
two do so under different keys of ``archive_keys``, while these are rotated. So there is one key for that, which is
never changed. It is made by the first who needs it, and wrapped anew when the keys of the archive are rotated, like an
object's own key and in the same record (``archive/objects/seal_format.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tallybook.core.errors import ArchiveKeyMissing, DamagedFile, MetadataOutcomeUnknown
from tallybook.metadata.store import BadVersion, MetadataStore, Unknown
from tallybook.runtime.security.archive_keys import ArchiveKeys, ArchiveKeySource, random_bytes

from .objects.seal_format import DATA_KEY_BYTES, NONCE_BYTES, decode_key, encode_key, unwrap, wrap

RECORD: Final = "archive/copy-key"

_IDENTITY: Final = f"record {RECORD}"
"""In place of the key of an object: none has a space in it."""


@dataclass(frozen=True, slots=True)
class CopyKey:
    """The key, and the name of the one that it was wrapped with when it was looked for; empty if it was made now."""

    before: str
    key: bytes = field(repr=False)


async def find_copy_key(store: MetadataStore, source: ArchiveKeySource) -> CopyKey | None:
    """The key, and ``None`` if nobody has needed one.

    Raises:
        ArchiveKeyMissing: what it is wrapped with is not here.
        MetadataUnavailable: the metadata store does not answer.
        DamagedFile, NewerFormat: the record cannot be understood.
    """
    found = await _found(store, source)
    return None if found is None else found[0]


async def settle_copy_key(store: MetadataStore, source: ArchiveKeySource, *, make: bool) -> CopyKey | None:
    """Wrap the key with the current key of the archive, and make one if there is none and ``make`` says so.

    Raises:
        MetadataOutcomeUnknown: it may have been written; the same call finds out.
        ArchiveKeyMissing, MetadataUnavailable, DamagedFile, NewerFormat: as ``find_copy_key``.
    """
    while True:
        found, keys = await _found(store, source), await source.now()
        if found is None and not make:
            return None
        copy_key, version = found or (CopyKey("", random_bytes(DATA_KEY_BYTES)), None)
        if copy_key.before == keys.current:
            return copy_key
        result = await store.write_record(RECORD, _wrapped(copy_key.key, keys), version)
        if isinstance(result, Unknown):
            raise MetadataOutcomeUnknown(f"the key for sealed copies may have been written: {result.reason}")
        if not isinstance(result, BadVersion):
            return copy_key


async def _found(store: MetadataStore, source: ArchiveKeySource) -> tuple[CopyKey, int] | None:
    record = await store.read_record(RECORD, linearizable=True)
    if record is None:
        return None
    wrapped = decode_key(record.value, f"the record {RECORD}")
    keys = (await source.now(wanted=wrapped.wrapping)).keys
    if wrapped.wrapping not in keys:
        raise ArchiveKeyMissing(
            f"the record {RECORD} is wrapped with key {wrapped.wrapping}, and archive_keys does not have that key"
        )
    try:
        key = unwrap(wrapped, keys[wrapped.wrapping], _IDENTITY)
    except DamagedFile as error:
        raise DamagedFile(f"the record {RECORD} cannot be understood: {error.message}") from error
    return CopyKey(wrapped.wrapping, key), record.version


def _wrapped(key: bytes, keys: ArchiveKeys) -> bytes:
    nonce = random_bytes(NONCE_BYTES)
    return encode_key(wrap(key, keys.current, keys.keys[keys.current], nonce, 0, _IDENTITY))

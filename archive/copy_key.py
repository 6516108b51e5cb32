"""The archive's copy key, from which the keys of encrypted copies are derived; stored in the metadata, wrapped.

Processes that encrypt plain objects must derive the same key for each object (``offload/rekey.py``), also two that run
at once with different keys of ``archive_keys`` during a rotation. So there is one copy key that never changes. The
first process that needs it creates it. A rotation of the archive keys rewraps it, like an object's own key and in the
same format (``archive/objects/encryption/format.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tallybook.core.errors import ArchiveKeyMissing, DamagedFile, MetadataConflict, MetadataOutcomeUnknown
from tallybook.metadata.records.update import RecordUpdater
from tallybook.metadata.store import BadVersion, MetadataStore, Unknown
from tallybook.runtime.security.archive_keys import ArchiveKeys, ArchiveKeySource, random_bytes

from .objects.encryption.format import DATA_KEY_BYTES, NONCE_BYTES, decode_key, encode_key, unwrap, wrap

RECORD: Final = "archive/copy-key"

_IDENTITY: Final = f"record {RECORD}"
"""Stands for an object key; no object key has a space."""


@dataclass(frozen=True, slots=True)
class CopyKey:
    """The copy key, and the name of the key that it was wrapped with when it was read; empty if it is new."""

    before: str
    key: bytes = field(repr=False)


async def find_copy_key(store: MetadataStore, source: ArchiveKeySource) -> CopyKey | None:
    """Read the copy key; ``None`` if it was never created.

    Raises:
        ArchiveKeyMissing: the wrapping key is missing here.
        MetadataUnavailable: the metadata store does not answer.
        DamagedFile, NewerFormat: the record is unreadable.
    """
    found = await _found(store, source)
    return None if found is None else found[0]


async def ensure_copy_key(updater: RecordUpdater, source: ArchiveKeySource, *, make: bool) -> CopyKey | None:
    """Rewrap the copy key with the current archive key; with ``make``, create it if it does not exist.

    Raises:
        MetadataOutcomeUnknown: it may have been written; repeat the call.
        MetadataConflict: other processes keep rewrapping it.
        ArchiveKeyMissing, MetadataUnavailable, DamagedFile, NewerFormat: as ``find_copy_key``.
    """
    store = updater.store
    async for _ in updater.tries():
        found, keys = await _found(store, source), await source.now()
        if found is None and not make:
            return None
        copy_key, version = found or (CopyKey("", random_bytes(DATA_KEY_BYTES)), None)
        if copy_key.before == keys.current:
            return copy_key
        result = await store.write_record(RECORD, _wrapped(copy_key.key, keys), version)
        if isinstance(result, Unknown):
            raise MetadataOutcomeUnknown(f"the key for encrypted copies may have been written: {result.reason}")
        if not isinstance(result, BadVersion):
            return copy_key
    raise MetadataConflict(f"the record {RECORD}: other processes keep changing it: try again")


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
        raise DamagedFile(f"the record {RECORD} cannot be decoded: {error.message}") from error
    return CopyKey(wrapped.wrapping, key), record.version


def _wrapped(key: bytes, keys: ArchiveKeys) -> bytes:
    nonce = random_bytes(NONCE_BYTES)
    return encode_key(wrap(key, keys.current, keys.keys[keys.current], nonce, 0, _IDENTITY))

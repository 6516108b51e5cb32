"""Fuzz target: encrypted objects (the wrapped key, and the frames) in a bucket that others may write to."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from crc32c import crc32c
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tallybook.archive.objects.encryption.format import (
    FRAME_BYTES,
    RECORD_BYTES,
    decode_key,
    encode_key,
    encrypt_frames,
    encrypted_bytes,
    frames_of,
    open_frames,
    plain_bytes_of,
    unwrap,
    wrap,
)
from tallybook.archive.objects.encryption.store import EncryptedStore
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.core.errors import ArchiveKeyMissing, DamagedFile, NewerFormat, ObjectDamaged
from tallybook.runtime.clock import RealClock
from tallybook.runtime.security.archive_keys import KEY_BYTES, ArchiveKeys
from tallybook.runtime.tasks import InlineWorkers

from ..harness import REFUSED, Target, attempt, finished, same

TARGET = Target("encrypted_objects", words=(b"TBSK", b"\x01\x01\x10", b"k1", bytes(16)))

KEY = "ledgers/a.parquet"
DATA_KEY = bytes(range(32))
WRAPPING = b"\x01" * KEY_BYTES


class OneKey:
    """An ``ArchiveKeySource`` of one key."""

    async def now(self, *, wanted: str = "") -> ArchiveKeys:
        return ArchiveKeys("k1", {"k1": WRAPPING})


HELD = OneKey()
PLAIN = bytes(range(256)) * 3


@cache
def some_record() -> bytes:
    """The wrapped key of an object."""
    return encode_key(wrap(DATA_KEY, "k1", WRAPPING, b"n" * 12, len(PLAIN), KEY))


@cache
def some_frame() -> bytes:
    """The only frame of that object."""
    return encrypt_frames(AESGCM(DATA_KEY), KEY, 0, PLAIN, ends=True)


def some_records() -> Iterator[bytes]:
    """A valid key record, and others with a right checksum."""
    good = some_record()
    yield good
    for at, value in ((0, 0), (4, 2), (4, 0), (5, 2), (6, 17), (7, 0), (7, 33), (8, 0xFF), (47, 0xFF), (60, 1)):
        changed = bytearray(good[:-4])
        changed[at] = value
        yield bytes(changed) + crc32c(bytes(changed)).to_bytes(4, "little")


@TARGET.decoder("archive/objects/encryption/format.py:decode_key", seeds=some_records)
def wrapped_keys(data: bytes) -> None:
    """The key record of an object, as it is and with a right checksum: only the original one can be unwrapped."""
    mended = data[: RECORD_BYTES - 4]
    for record in (data, mended + crc32c(mended).to_bytes(4, "little")):
        found = attempt((DamagedFile, NewerFormat), decode_key, record, "place")
        if found is not REFUSED:
            same(encode_key(found), record, "record")
            opened = attempt(DamagedFile, unwrap, found, WRAPPING, KEY)
            same(opened is REFUSED or record == some_record(), True, "who opens is who was written")


def some_frames() -> Iterator[bytes]:
    """The object, and changes of it."""
    yield some_frame()
    yield some_frame()[:-1]
    yield some_frame() * 2
    yield b""


@TARGET.decoder(
    "archive/objects/encryption/format.py:open_frames",
    "archive/objects/encryption/format.py:plain_bytes_of",
    "archive/objects/encryption/store.py:EncryptedStore._decoded",
    seeds=some_frames,
)
def frames(data: bytes) -> None:
    """The frames of an object, with a valid key: reads return exactly the plaintext, or nothing."""
    size = plain_bytes_of(len(data))
    if encrypted_bytes(size) == len(data):
        same(frames_of(size), max(1, -(-size // FRAME_BYTES)), "frames")
    found = attempt(DamagedFile, open_frames, AESGCM(DATA_KEY), KEY, range(1), len(PLAIN), data)
    same(found is REFUSED or found == PLAIN, True, "plaintext")
    attempt((ObjectDamaged, ArchiveKeyMissing, NewerFormat), finished, _read(some_record(), data))
    attempt((ObjectDamaged, ArchiveKeyMissing, NewerFormat), finished, _read(data, some_frame()))


async def _read(record: bytes, stored: bytes) -> None:
    below = MemoryObjectStore(RealClock())
    await below.put(f"sealed/keys/{KEY}", record)
    await below.put(f"sealed/objects/{KEY}", stored)
    store = EncryptedStore(below, InlineWorkers(), HELD)
    same(await store.read(KEY, 5, 300), PLAIN[5:305], "a range")

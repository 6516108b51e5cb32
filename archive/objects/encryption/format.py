"""How a sealed object is laid out: frames, and the wrapped key beside them (docs/formats/sealed-object.md).

An object of plaintext is cut into frames of 64 KiB, the last one shorter, and each is sealed on its own with
AES-256-GCM under a key that is the object's alone. The number of the frame, and whether it is the last, are its nonce;
the object's key in the store is authenticated with it. So no frame can be moved, left out, taken from another object,
or stand for the end, without being found out; and a range is read by opening the frames that it touches.

The object's own key lies beside it, wrapped under one of the keys of ``archive_keys``, which the record names. To give
an object another such key is to write these 112 bytes anew.

An object that is written sealed has a random key. The sealed copy of one that was plain has a key that follows from
what is in it, so that whoever makes such a copy, and however late a part of one arrives, it is the same copy.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tallybook.core.batch import Buffer
from tallybook.core.errors import DamagedFile, NewerFormat

VERSION: Final = 1
MAGIC: Final = b"TBSK"
FRAME_LOG2: Final = 16
FRAME_BYTES: Final = 1 << FRAME_LOG2
"""Of plaintext."""
TAG_BYTES: Final = 16
SEALED_FRAME_BYTES: Final = FRAME_BYTES + TAG_BYTES
NONCE_BYTES: Final = 12
DATA_KEY_BYTES: Final = 32
MAX_PLAIN_BYTES: Final = 1 << 48

_AES_256_GCM: Final = 1
_HEAD: Final = struct.Struct("<4s4B32sQ")
"""Magic, version, algorithm, log2 of the bytes in a frame, length of the key's name; that name; bytes of plaintext."""
_WRAPPED_BYTES: Final = DATA_KEY_BYTES + TAG_BYTES
_CRC: Final = struct.Struct("<I")
RECORD_BYTES: Final = _HEAD.size + NONCE_BYTES + _WRAPPED_BYTES + _CRC.size

_NONCE: Final = struct.Struct(">QI")
_FRAME_LABEL: Final = b"tallybook frame 1\0"
_KEY_LABEL: Final = b"tallybook key 1\0"
_COPY_LABEL: Final = b"tallybook copy 1\0"


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """What lies beside a sealed object. ``wrapping`` names the key that opens ``wrapped``, the object's own key."""

    wrapping: str
    plain_bytes: int
    nonce: bytes
    wrapped: bytes = field(repr=False)


def encode_key(key: WrappedKey) -> bytes:
    """The record of a wrapped key."""
    body = _head(key.wrapping, key.plain_bytes) + key.nonce + key.wrapped
    return body + _CRC.pack(crc32c(body))


def decode_key(record: bytes, place: str) -> WrappedKey:
    """Understand the record of a wrapped key. What it says is believed by nobody until ``unwrap``.

    Raises:
        DamagedFile: it is none.
        NewerFormat: a newer Tallybook has written it.
    """
    if len(record) < RECORD_BYTES or record[: len(MAGIC)] != MAGIC:
        raise DamagedFile(f"{place}: this is no wrapped key")
    _, version, algorithm, frame_log2, length, name, plain_bytes = _HEAD.unpack_from(record)
    (crc,) = _CRC.unpack_from(record, RECORD_BYTES - _CRC.size)
    if crc != crc32c(record[: RECORD_BYTES - _CRC.size]):
        raise DamagedFile(f"{place}: the wrapped key fails its checksum")
    if version > VERSION:
        raise NewerFormat.of(f"{place}: the wrapped key", version, VERSION)
    if len(record) > RECORD_BYTES:
        raise DamagedFile(f"{place}: the wrapped key has more than {RECORD_BYTES} bytes")
    if (version, algorithm, frame_log2) != (VERSION, _AES_256_GCM, FRAME_LOG2) or plain_bytes > MAX_PLAIN_BYTES:
        raise DamagedFile(f"{place}: the wrapped key is of a kind that never was")
    wrapping = name[:length].decode("ascii", errors="replace")
    if not 1 <= length <= len(name) or any(name[length:]) or not wrapping.isascii() or not wrapping.isprintable():
        raise DamagedFile(f"{place}: the wrapped key does not say what it is wrapped with")
    nonce = record[_HEAD.size : _HEAD.size + NONCE_BYTES]
    return WrappedKey(wrapping, plain_bytes, nonce, record[_HEAD.size + NONCE_BYTES : -_CRC.size])


def wrap(data_key: bytes, wrapping: str, key: bytes, nonce: bytes, plain_bytes: int, identity: str) -> WrappedKey:
    """Seal an object's own key.

    Args:
        wrapping: name of ``key``, under which it is sealed.
        nonce: must never come twice with the same ``key``.
        identity: the object's key in the store.
    """
    bound = _bound(wrapping, plain_bytes, identity)
    return WrappedKey(wrapping, plain_bytes, nonce, AESGCM(key).encrypt(nonce, data_key, bound))


def unwrap(wrapped: WrappedKey, key: bytes, identity: str) -> bytes:
    """The object's own key.

    Raises:
        DamagedFile: this is not how it was wrapped, not under this key, or not for this object.
    """
    bound = _bound(wrapped.wrapping, wrapped.plain_bytes, identity)
    try:
        return AESGCM(key).decrypt(wrapped.nonce, wrapped.wrapped, bound)
    except InvalidTag:
        raise DamagedFile(
            f"{identity}: its key does not open with {wrapped.wrapping}: it was changed, is of another object, or the "
            "key of that name is another one here"
        ) from None


def copy_data_key(copy_key: bytes, identity: str, digests: Sequence[bytes]) -> bytes:
    """The own key of a sealed copy. Other content has another key, so no nonce comes twice with the same one.

    Args:
        copy_key: of the archive; without it the key does not follow from content that somebody guesses.
        identity: the object's key in the store.
        digests: SHA-256 of each piece of the plaintext, all of the pieces of one size but for the last.
    """
    content = hashlib.sha256(b"".join(digests)).digest()
    return hmac.digest(copy_key, _COPY_LABEL + content + identity.encode(), "sha256")


def frames_of(plain_bytes: int) -> int:
    """How many frames an object has; an empty one has one, which is empty."""
    return max(1, -(-plain_bytes // FRAME_BYTES))


def sealed_bytes(plain_bytes: int) -> int:
    """The size of an object once it is sealed."""
    return plain_bytes + TAG_BYTES * frames_of(plain_bytes)


def plain_bytes_of(stored_bytes: int) -> int:
    """The size of an object that is sealed in ``stored_bytes``; 0 for what is no size of any."""
    return max(0, stored_bytes - TAG_BYTES * max(1, -(-stored_bytes // SEALED_FRAME_BYTES)))


def seal_frames(cipher: AESGCM, identity: str, first: int, plain: Buffer, *, ends: bool) -> bytes:
    """Seal frames, one behind the other.

    Args:
        first: number of the first one.
        plain: whole frames; if it ``ends`` the object, the last one may be shorter.
    """
    view, label = memoryview(plain).cast("B"), _label(identity)
    count = frames_of(len(view))
    sealed = []
    for at in range(count):
        nonce = _NONCE.pack(first + at, ends and at == count - 1)
        sealed.append(cipher.encrypt(nonce, view[at * FRAME_BYTES : (at + 1) * FRAME_BYTES], label))
    return b"".join(sealed)


def open_frames(
    cipher: AESGCM, identity: str, frames: range, plain_bytes: int, sealed: Buffer, *, skip: int = 0, size: int = -1
) -> bytes:
    """The plaintext of ``frames`` of an object of ``plain_bytes``: ``size`` bytes of it, ``skip`` left out before.

    Raises:
        DamagedFile: they are not the frames of this object that they should be.
    """
    view, label, last = memoryview(sealed).cast("B"), _label(identity), frames_of(plain_bytes) - 1
    plain: list[Buffer] = []
    for at, number in enumerate(frames):
        part = view[at * SEALED_FRAME_BYTES : (at + 1) * SEALED_FRAME_BYTES]
        try:
            plain.append(cipher.decrypt(_NONCE.pack(number, number == last), part, label))
        except (InvalidTag, ValueError):
            raise DamagedFile(f"{identity}: frame {number} of the sealed object is not what was written") from None
    if size < 0:
        return b"".join(plain)
    return b"".join(_cut(plain, skip, size))


def _cut(parts: list[Buffer], skip: int, size: int) -> list[Buffer]:
    """``size`` bytes of what ``parts`` are together, without copying any."""
    found: list[Buffer] = []
    for part in parts:
        piece = memoryview(part)[skip : skip + size]
        skip, size = max(0, skip - len(part)), size - len(piece)
        found.append(piece)
    return found


def _head(wrapping: str, plain_bytes: int) -> bytes:
    name = wrapping.encode("ascii")
    return _HEAD.pack(MAGIC, VERSION, _AES_256_GCM, FRAME_LOG2, len(name), name, plain_bytes)


def _bound(wrapping: str, plain_bytes: int, identity: str) -> bytes:
    return _KEY_LABEL + _head(wrapping, plain_bytes) + identity.encode()


def _label(identity: str) -> bytes:
    return _FRAME_LABEL + identity.encode()

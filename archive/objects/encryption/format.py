"""Encoding of encrypted objects: frames and wrapped keys (docs/reference/formats/sealed-object.md).

The plaintext is split into frames of 64 KiB (the last one may be shorter), each encrypted with AES-256-GCM under a key
of this object only. The nonce is the frame number and whether it is the last frame; the object's key in the store is
authenticated data. So moving, omitting, exchanging or truncating frames is detected. A range read decrypts the frames
that it touches.

The object's own key is stored beside it, wrapped with one of the keys of ``archive_keys``, whose name is in the record.
Rewrapping an object means to rewrite these 112 bytes.

An object that is written encrypted has a random key. The encrypted copy of a plain object has a key derived from its
content, so that all writers of the copy, however late, write the same bytes.
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

from tallybook.core.buffers import Buffer
from tallybook.core.errors import DamagedFile, NewerFormat

VERSION: Final = 1
MAGIC: Final = b"TBSK"
FRAME_LOG2: Final = 16
FRAME_BYTES: Final = 1 << FRAME_LOG2
"""Plaintext bytes of a frame."""
TAG_BYTES: Final = 16
ENCRYPTED_FRAME_BYTES: Final = FRAME_BYTES + TAG_BYTES
NONCE_BYTES: Final = 12
DATA_KEY_BYTES: Final = 32
MAX_PLAIN_BYTES: Final = 1 << 48

_AES_256_GCM: Final = 1
_HEAD: Final = struct.Struct("<4s4B32sQ")
"""Magic, version, algorithm, log2 of the frame size, length of the key's name; that name; plaintext bytes."""
_WRAPPED_BYTES: Final = DATA_KEY_BYTES + TAG_BYTES
_CRC: Final = struct.Struct("<I")
RECORD_BYTES: Final = _HEAD.size + NONCE_BYTES + _WRAPPED_BYTES + _CRC.size

_NONCE: Final = struct.Struct(">QI")
_FRAME_LABEL: Final = b"tallybook frame 1\0"
_KEY_LABEL: Final = b"tallybook key 1\0"
_COPY_LABEL: Final = b"tallybook copy 1\0"


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """The record of an encrypted object. ``wrapping`` names the key that unwraps ``wrapped``, its own key."""

    wrapping: str
    plain_bytes: int
    nonce: bytes
    wrapped: bytes = field(repr=False)


def encode_key(key: WrappedKey) -> bytes:
    """Encode a wrapped key."""
    body = _head(key.wrapping, key.plain_bytes) + key.nonce + key.wrapped
    return body + _CRC.pack(crc32c(body))


def decode_key(record: bytes, place: str) -> WrappedKey:
    """Decode a wrapped key. Its fields are authenticated by ``unwrap`` only.

    Raises:
        DamagedFile: it is invalid.
        NewerFormat: a newer Tallybook wrote it.
    """
    if len(record) < RECORD_BYTES or record[: len(MAGIC)] != MAGIC:
        raise DamagedFile(f"{place}: not a wrapped key")
    _, version, algorithm, frame_log2, length, name, plain_bytes = _HEAD.unpack_from(record)
    (crc,) = _CRC.unpack_from(record, RECORD_BYTES - _CRC.size)
    if crc != crc32c(record[: RECORD_BYTES - _CRC.size]):
        raise DamagedFile(f"{place}: the wrapped key fails its checksum")
    if version > VERSION:
        raise NewerFormat.of(f"{place}: the wrapped key", version, VERSION)
    if len(record) > RECORD_BYTES:
        raise DamagedFile(f"{place}: the wrapped key has more than {RECORD_BYTES} bytes")
    if (version, algorithm, frame_log2) != (VERSION, _AES_256_GCM, FRAME_LOG2) or plain_bytes > MAX_PLAIN_BYTES:
        raise DamagedFile(
            f"{place}: the wrapped key has an unsupported version ({version}), algorithm ({algorithm}), "
            f"frame size (2**{frame_log2}) or plaintext length ({plain_bytes})"
        )
    wrapping = name[:length].decode("ascii", errors="replace")
    if not 1 <= length <= len(name) or any(name[length:]) or not wrapping.isascii() or not wrapping.isprintable():
        raise DamagedFile(f"{place}: the wrapped key has no valid name of its wrapping key")
    nonce = record[_HEAD.size : _HEAD.size + NONCE_BYTES]
    return WrappedKey(wrapping, plain_bytes, nonce, record[_HEAD.size + NONCE_BYTES : -_CRC.size])


def wrap(data_key: bytes, wrapping: str, key: bytes, nonce: bytes, plain_bytes: int, identity: str) -> WrappedKey:
    """Encrypt an object's own key.

    Args:
        wrapping: name of ``key``, the wrapping key.
        nonce: must never repeat for the same ``key``.
        identity: the object's key in the store.
    """
    bound = _bound(wrapping, plain_bytes, identity)
    return WrappedKey(wrapping, plain_bytes, nonce, AESGCM(key).encrypt(nonce, data_key, bound))


def unwrap(wrapped: WrappedKey, key: bytes, identity: str) -> bytes:
    """Decrypt an object's own key.

    Raises:
        DamagedFile: it was changed, wrapped with another key, or wrapped for another object.
    """
    bound = _bound(wrapped.wrapping, wrapped.plain_bytes, identity)
    try:
        return AESGCM(key).decrypt(wrapped.nonce, wrapped.wrapped, bound)
    except InvalidTag:
        raise DamagedFile(
            f"{identity}: its key cannot be unwrapped with {wrapped.wrapping}: it was changed, belongs to another "
            "object, or the key of that name is a different one here"
        ) from None


def copy_data_key(copy_key: bytes, identity: str, digests: Sequence[bytes]) -> bytes:
    """Derive the own key of an encrypted copy. Other content gives another key, so no nonce repeats for a key.

    Args:
        copy_key: the archive's copy key; prevents derivation of the key from guessed content.
        identity: the object's key in the store.
        digests: SHA-256 of each piece of the plaintext; all pieces but the last have the same size.
    """
    content = hashlib.sha256(b"".join(digests)).digest()
    return hmac.digest(copy_key, _COPY_LABEL + content + identity.encode(), "sha256")


def frames_of(plain_bytes: int) -> int:
    """Number of frames of an object; an empty object has one empty frame."""
    return max(1, -(-plain_bytes // FRAME_BYTES))


def encrypted_bytes(plain_bytes: int) -> int:
    """Size of an object after encryption."""
    return plain_bytes + TAG_BYTES * frames_of(plain_bytes)


def plain_bytes_of(stored_bytes: int) -> int:
    """Plaintext size of an encrypted object of ``stored_bytes``; 0 for an impossible size."""
    return max(0, stored_bytes - TAG_BYTES * max(1, -(-stored_bytes // ENCRYPTED_FRAME_BYTES)))


def encrypt_frames(cipher: AESGCM, identity: str, first: int, plain: Buffer, *, ends: bool) -> bytes:
    """Encrypt consecutive frames.

    Args:
        first: number of the first frame.
        plain: whole frames; if it ``ends`` the object, the last one may be shorter.
    """
    view, label = memoryview(plain).cast("B"), _label(identity)
    count = frames_of(len(view))
    encrypted = []
    for at in range(count):
        nonce = _NONCE.pack(first + at, ends and at == count - 1)
        encrypted.append(cipher.encrypt(nonce, view[at * FRAME_BYTES : (at + 1) * FRAME_BYTES], label))
    return b"".join(encrypted)


def open_frames(
    cipher: AESGCM, identity: str, frames: range, plain_bytes: int, encrypted: Buffer, *, skip: int = 0, size: int = -1
) -> bytes:
    """Decrypt ``frames`` of an object of ``plain_bytes``; returns ``size`` bytes of the plaintext after ``skip``.

    Raises:
        DamagedFile: they are not the expected frames of this object.
    """
    view, label, last = memoryview(encrypted).cast("B"), _label(identity), frames_of(plain_bytes) - 1
    plain: list[Buffer] = []
    for at, number in enumerate(frames):
        part = view[at * ENCRYPTED_FRAME_BYTES : (at + 1) * ENCRYPTED_FRAME_BYTES]
        try:
            plain.append(cipher.decrypt(_NONCE.pack(number, number == last), part, label))
        except (InvalidTag, ValueError):
            raise DamagedFile(f"{identity}: frame {number} of the encrypted object was changed or damaged") from None
    if size < 0:
        return b"".join(plain)
    return b"".join(_cut(plain, skip, size))


def _cut(parts: list[Buffer], skip: int, size: int) -> list[Buffer]:
    """``size`` bytes of the concatenated ``parts``, without copying."""
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

"""Ledger passwords: the key derived from one, and the verifier that recognises it.

A ledger's password never leaves the client. Three values are derived from it with
HKDF-SHA-256 (RFC 5869) and a random salt that is stored with the ledger's metadata:

- the *ledger key*, which the client shows to a bookie with every kind of write;
- the *digest key*, which signs batches and never leaves the clients;
- the *verifier*, derived from the ledger key and stored in the metadata, by which a bookie
  recognises the key without being able to make it up.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from .errors import InvalidArgument
from .limits import KEY_BYTES, MAX_PASSWORD_BYTES

SALT_BYTES: Final = 16


def ledger_key(password: bytes, salt: bytes) -> bytes:
    """The key a client shows to bookies. 32 bytes.

    Raises:
        InvalidArgument: the password is longer than ``MAX_PASSWORD_BYTES``.
    """
    return _derive(password, salt, b"tallybook ledger key 1")


def digest_key(password: bytes, salt: bytes) -> bytes:
    """The key that signs batches under the HMAC digest. 32 bytes.

    Raises:
        InvalidArgument: the password is longer than ``MAX_PASSWORD_BYTES``.
    """
    return _derive(password, salt, b"tallybook digest key 1")


def key_verifier(key: bytes) -> bytes:
    """What the metadata stores to recognise ``key``. 32 bytes."""
    return _hkdf(key, b"", b"tallybook key verifier 1")


def key_fits(key: bytes, verifier: bytes) -> bool:
    """Whether ``key`` is the one ``verifier`` was made from, compared in constant time."""
    return same_secret(key_verifier(key), verifier)


def same_secret(one: bytes | bytearray | memoryview, other: bytes | bytearray | memoryview) -> bool:
    """Whether two keys, or digests made with one, are the same; how long it takes says nothing of where they differ.

    To be used wherever a secret that was shown is compared with the one that is known.
    """
    return hmac.compare_digest(one, other)


def _derive(password: bytes, salt: bytes, purpose: bytes) -> bytes:
    if len(password) > MAX_PASSWORD_BYTES:
        raise InvalidArgument(f"a password has at most {MAX_PASSWORD_BYTES} bytes")
    return _hkdf(password, salt, purpose)


def _hkdf(secret: bytes, salt: bytes, purpose: bytes) -> bytes:
    # One block of output is all that is needed: KEY_BYTES equals the hash length.
    extracted = hmac.new(salt, secret, hashlib.sha256).digest()
    return hmac.new(extracted, purpose + b"\x01", hashlib.sha256).digest()[:KEY_BYTES]

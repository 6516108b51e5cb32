"""Keys derived from ledger passwords, and the verifier stored in the metadata.

A ledger's password never leaves the client. Three values are derived from it with
HKDF-SHA-256 (RFC 5869) and a random salt that is stored with the ledger's metadata:

- the *ledger key*, which the client presents to a bookie with every kind of write;
- the *digest key*, which signs batches and never leaves the clients;
- the *verifier*, derived from the ledger key and stored in the metadata. A bookie checks a ledger key against it
  and cannot compute the key from it.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from .errors import InvalidArgument
from .limits import KEY_BYTES, MAX_PASSWORD_BYTES

SALT_BYTES: Final = 16


def ledger_key(password: bytes, salt: bytes) -> bytes:
    """The key that a client presents to bookies. 32 bytes.

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
    """The verifier of ``key``, as stored in the metadata. 32 bytes."""
    return _hkdf(key, b"", b"tallybook key verifier 1")


def key_matches(key: bytes, verifier: bytes) -> bool:
    """Whether ``verifier`` was derived from ``key``; compares in constant time."""
    return same_secret(key_verifier(key), verifier)


def same_secret(one: bytes | bytearray | memoryview, other: bytes | bytearray | memoryview) -> bool:
    """Compare two keys, or digests made with one, in constant time.

    Use it wherever a presented secret is compared with the known one.
    """
    return hmac.compare_digest(one, other)


def _derive(password: bytes, salt: bytes, purpose: bytes) -> bytes:
    if len(password) > MAX_PASSWORD_BYTES:
        raise InvalidArgument(f"a password has at most {MAX_PASSWORD_BYTES} bytes")
    return _hkdf(password, salt, purpose)


def _hkdf(secret: bytes, salt: bytes, purpose: bytes) -> bytes:
    # One block of output is enough: KEY_BYTES equals the hash length.
    extracted = hmac.new(salt, secret, hashlib.sha256).digest()
    return hmac.new(extracted, purpose + b"\x01", hashlib.sha256).digest()[:KEY_BYTES]

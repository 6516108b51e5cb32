"""Fuzz target: files of a security directory, and bearer tokens of untrusted callers."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from datetime import UTC, datetime

import jwt

from tallybook.core.access import AccessRules, Credentials
from tallybook.core.certificate_names import CertificateName
from tallybook.core.errors import AccessDenied, InvalidConfig, NewerFormat, Unauthenticated
from tallybook.runtime.security.archive_keys import parse_archive_keys
from tallybook.runtime.security.authority import STARTER
from tallybook.runtime.security.files import NAMES, PRIVATE, Files
from tallybook.runtime.security.material import parse_access, parse_material
from tallybook.runtime.security.tokens import TokenKeys

from ..harness import REFUSED, Target, attempt, same

TARGET = Target(
    "security",
    words=(
        b"[[principal]]",
        b"certificates",
        b"tallybook://",
        b"/*",
        b"*.",
        b"kid",
        b"alg",
        b"none",
        b"-----BEGIN",
        b".",
    ),
)

SHARED = b"0123456789abcdef" * 2
KEY = {"kty": "oct", "kid": "k", "alg": "HS256", "k": urlsafe_b64encode(SHARED).rstrip(b"=").decode()}
KEYS = TokenKeys.parse(json.dumps({"keys": [KEY]}).encode(), "keys")
CERTIFICATE = tuple(map(CertificateName.parse, ("b.a.b", "x://y/z", "10.0.0.1")))
LATER = datetime(2100, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 11, 1, tzinfo=UTC)


def some_rules() -> Iterator[bytes]:
    """Access rules as generated, and with every option."""
    yield STARTER.encode()
    yield (
        b'[[principal]]\nname = "p"\nroles = ["writer"]\ncertificates = ["*.a.b", "x://y/*", "10.0.0.1"]\n'
        b'tokens = ["t"]\nstreams = ["a/"]\nnamespaces = ["n"]\nledgers = ["l-"]\nmax_requests = 5\n'
        b'max_bytes = "32MiB"\n'
    )
    yield b"principal = " + b"[" * 5_000


@TARGET.decoder(
    "runtime/security/material.py:parse_access", "core/certificate_names.py:CertificateName.parse", seeds=some_rules
)
def rules(data: bytes) -> None:
    """Rules, and the principal of a caller by them."""
    found = attempt(InvalidConfig, parse_access, data, "path")
    if found is not REFUSED:
        made = AccessRules(found)
        for credentials in (Credentials(), Credentials(CERTIFICATE), Credentials(subject="t")):
            attempt((Unauthenticated, AccessDenied), made.principal, credentials)


def some_key_sets() -> Iterator[bytes]:
    """A shared secret, and a public key."""
    public = {
        "kty": "OKP",
        "crv": "Ed25519",
        "kid": "e",
        "alg": "EdDSA",
        "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
    }
    yield json.dumps({"keys": [KEY, public]}).encode()
    yield b'{"keys": ' + b"[" * 5_000


@TARGET.decoder(
    "runtime/security/tokens.py:TokenKeys.parse",
    "runtime/security/tokens.py:_key",
    "runtime/strict_json.py:loads_strict",
    seeds=some_key_sets,
)
def key_sets(data: bytes) -> None:
    """Keys for the verification of tokens."""
    attempt(InvalidConfig, TokenKeys.parse, data, "path")


def some_headers() -> Iterator[bytes]:
    """A valid token, and parts of one."""
    claims = {"sub": "app", "aud": "tallybook", "exp": LATER}
    made = jwt.encode(claims, SHARED, algorithm="HS256", headers={"kid": "k"})
    yield f"Bearer {made}".encode()
    yield f"Bearer {made.rpartition('.')[0]}.".encode()
    yield b"Basic dTpw"


@TARGET.decoder("runtime/security/tokens.py:TokenKeys.read", seeds=some_headers)
def tokens(data: bytes) -> None:
    """The value of an ``authorization`` header."""
    attempt(Unauthenticated, KEYS.read, (data.decode("latin-1"),), "tallybook")


def some_files() -> Iterator[bytes]:
    """Invalid files only: tests of the directory have valid ones."""
    yield b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    yield b"-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n"
    yield b"user:password"


@TARGET.decoder(
    "runtime/security/material.py:parse_material",
    "runtime/security/material.py:_parse_identity",
    "runtime/security/material.py:_certificates",
    "runtime/security/material.py:_zookeeper",
    seeds=some_files,
)
def directory(data: bytes) -> None:
    """A security directory in which every existing file has these bytes."""
    for missing in ((), (PRIVATE,), ("access.toml", "token-keys.json")):
        contents = {name: None if name in missing else data for name in NAMES}
        attempt(InvalidConfig, lambda contents: parse_material(Files((), contents), "path", now=NOW), contents)


def some_archive_keys() -> Iterator[bytes]:
    """Two keys, and almost valid ones."""
    key = b64encode(SHARED[:32]).decode()
    good = {"format": 1, "current": "k1", "plain": "read", "keys": {"k1": key, "k2": key}}
    yield json.dumps(good).encode()
    yield json.dumps({**good, "format": 2}).encode()
    yield json.dumps({**good, "keys": {"k1": key[:-4]}}).encode()
    yield b'{"keys": ' + b"[" * 5_000


@TARGET.decoder(
    "runtime/security/archive_keys.py:parse_archive_keys",
    "runtime/security/archive_keys.py:_key",
    seeds=some_archive_keys,
)
def archive_keys(data: bytes) -> None:
    """The keys of an encrypted archive."""
    found = attempt((InvalidConfig, NewerFormat), parse_archive_keys, data, "path")
    if found is not REFUSED:
        same(found.current in found.keys, True, "the current key")
        same({len(key) for key in found.keys.values()}, {32}, "lengths of keys")

"""Bearer tokens: valid ones, and every kind of invalid one."""

import base64
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeAlias

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tallybook.core.access import Presented, Role
from tallybook.core.certificate_names import CertificateName
from tallybook.core.errors import AccessDenied, InvalidArgument, InvalidConfig, Unauthenticated
from tallybook.runtime.security.authority import Subject
from tallybook.runtime.security.process_security import open_security
from tallybook.runtime.security.tokens import ALGORITHMS, LEEWAY_SECONDS, MAX_TOKEN_BYTES, TokenKeys

PrivateKey: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | Ed25519PrivateKey

SHARED = b"0123456789abcdef" * 4


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def key_set(*keys: dict[str, str]) -> bytes:
    return json.dumps({"keys": keys or [{"kty": "oct", "kid": "k1", "alg": "HS256", "k": b64(SHARED)}]}).encode()


KEYS = TokenKeys.parse(key_set(), "keys")


def token(kid: str | None = "k1", key: Any = SHARED, algorithm: str = "HS256", **claims: object) -> str:
    said = {"sub": "app", "aud": "tallybook", "exp": datetime.now(UTC) + timedelta(hours=1), **claims}
    said = {name: value for name, value in said.items() if value is not None}
    return jwt.encode(said, key, algorithm=algorithm, headers={} if kid is None else {"kid": kid})


def subject(*headers: str) -> str:
    return KEYS.read(headers, "tallybook").subject


def test_a_good_token_says_whose_it_is():
    assert subject(f"Bearer {token()}") == "app"
    assert subject(f"bearer   {token(aud=['other', 'tallybook'])}") == "app"


def test_a_token_counts_for_as_long_after_its_end_as_clocks_may_differ():
    for moment in (datetime.now(UTC) + timedelta(hours=1), datetime.now(UTC) - timedelta(seconds=LEEWAY_SECONDS - 5)):
        found = KEYS.read((f"Bearer {token(exp=moment)}",), "tallybook")
        assert found.until_us == (int(moment.timestamp()) + LEEWAY_SECONDS) * 1_000_000
    for odd in (10**400, 4e9):
        assert KEYS.read((f"Bearer {token(exp=odd)}",), "tallybook").until_us == (int(odd) + LEEWAY_SECONDS) * 1_000_000


def test_a_principal_of_a_token_has_its_expiry(authority, tmp_path):
    authority.issue(tmp_path / "b", Subject(Role.BOOKIE, "b", ("localhost",)), days=1)
    rules = tmp_path / "b/access.toml"
    rules.write_text('[[principal]]\nname = "app"\nroles = ["reader"]\ntokens = ["app"]\ncertificates = ["x://y"]\n')
    security = open_security(str(tmp_path / "b"), serves=True)
    made = authority.token("app", lifetime=timedelta(hours=1))
    until_us = security.principal(Presented(authorization=(f"Bearer {made}",))).until_us
    left = until_us / 1e6 - LEEWAY_SECONDS - datetime.now(UTC).timestamp()
    assert 3_590 < left <= 3_600
    assert security.principal(Presented((CertificateName.parse("x://y"),))).until_us is None


def ago(**span: float) -> datetime:
    return datetime.now(UTC) - timedelta(**span)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ("", "Bearer"),
        ("Basic YTpi", "Bearer"),
        ("Bearer", "Bearer"),
        ("Bearer ", "malformed"),
        ("Bearer x", "malformed"),
        ("Bearer a.b.c", "malformed"),
        (f"Bearer {token(exp=ago(minutes=1))}", "expired"),
        (f"Bearer {token(exp=None)}", "lacks 'exp'"),
        (f"Bearer {token(aud=None)}", "lacks 'aud'"),
        (f"Bearer {token(sub=None)}", "lacks 'sub'"),
        (f"Bearer {token(sub='')}", "subject"),
        (f"Bearer {token(aud='other')}", "audience"),
        (f"Bearer {token(aud=['other'])}", "audience"),
        (f"Bearer {token(nbf=ago(hours=-1))}", "not valid yet"),
        (f"Bearer {token(iat=ago(hours=-1))}", "not valid yet"),
        (f"Bearer {token(exp='4000000000')}", "not a number"),
        (f"Bearer {token(exp=True)}", "expired|not a number"),
        (f"Bearer {token(nbf='1')}", "not a number"),
        (f"Bearer {token(iat='1')}", "not a number|malformed"),
        (f"Bearer {token(exp=float('inf'))}", "malformed"),
        (f"Bearer {token(exp=float('nan'))}", "malformed"),
        (f"Bearer {token(kid=None)}", "no key"),
        (f"Bearer {token(kid='k2')}", "the key 'k2', which this server does not have"),
        (f"Bearer {token(kid='k' * 500)}", f"'{'k' * 64}', which"),
        (f"Bearer {token(key=SHARED[::-1])}", "not signed"),
        (f"Bearer {token(algorithm='HS512')}", "another algorithm"),
        (f"Bearer {token(key=None, algorithm='none')}", "another algorithm"),
        (f"Bearer {'x' * (MAX_TOKEN_BYTES + 1)}", "at most"),
        ("Bearer é", "ASCII"),
    ],
)
def test_an_invalid_token_is_refused_and_not_repeated_in_the_error(header, why):
    with pytest.raises(Unauthenticated, match=why) as caught:
        subject(header)
    assert header.removeprefix("Bearer ").strip()[:40] not in str(caught.value) or len(header) < 10


def test_of_several_headers_none_counts():
    with pytest.raises(Unauthenticated, match="several"):
        subject(f"Bearer {token()}", f"Bearer {token()}")


@cache
def weak() -> rsa.RSAPrivateKey:
    """An RSA key that is short enough to be broken."""
    return rsa.generate_private_key(65537, 1024)


KINDS = {"ES256": ECAlgorithm, "RS256": RSAAlgorithm, "PS256": RSAAlgorithm, "EdDSA": OKPAlgorithm}


def published(algorithm: str, key: PrivateKey) -> dict[str, str]:
    """The half of a key that checks."""
    return {**KINDS[algorithm].to_jwk(key.public_key(), as_dict=True), "kid": "k1", "alg": algorithm}


SIGNING: dict[str, Callable[[], PrivateKey]] = {
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
    "PS256": lambda: rsa.generate_private_key(65537, 2048),
    "EdDSA": Ed25519PrivateKey.generate,
}


def signing(algorithm: str) -> dict[str, str]:
    """The half of a key that signs, which is no server's."""
    return {**KINDS[algorithm].to_jwk(SIGNING[algorithm](), as_dict=True), "kid": "k1", "alg": algorithm}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_of_each_algorithm_counts_and_one_signed_by_another_key_does_not(algorithm):
    if algorithm == "HS256":
        keys, good, bad = KEYS, SHARED, SHARED[::-1]
    else:
        good, bad = SIGNING[algorithm](), SIGNING[algorithm]()
        keys = TokenKeys.parse(key_set(published(algorithm, good)), "keys")
    assert keys.read((f"Bearer {token(key=good, algorithm=algorithm)}",), "tallybook").subject == "app"
    with pytest.raises(Unauthenticated, match="not signed by the key"):
        keys.read((f"Bearer {token(key=bad, algorithm=algorithm)}",), "tallybook")


def test_a_public_key_is_not_taken_for_a_shared_secret(authority, tmp_path):
    """The public key that verifies tokens must not be usable to sign some with another algorithm."""
    authority.issue(tmp_path / "b", Subject(Role.BOOKIE, "b", ("localhost",)), days=1)
    published = (tmp_path / "b/token-keys.json").read_bytes()
    public = json.loads(published)["keys"][0]
    keys = TokenKeys.parse(published, "keys")
    for secret in (public["x"].encode(), base64.urlsafe_b64decode(public["x"] + "=")):
        with pytest.raises(Unauthenticated):
            keys.read((f"Bearer {token(kid=public['kid'], key=secret)}",), "tallybook")


@given(st.binary(max_size=60), st.integers(0, 400))
def test_a_token_with_anything_changed_does_not_count(noise, place):
    good = token()
    changed = good[: place % len(good)] + noise.decode("latin-1") + good[place % len(good) + 1 :]
    try:
        assert subject(f"Bearer {changed}") == "app"
    except Unauthenticated:
        return
    # The last character of a signature has bits that say nothing.
    assert changed == good or changed[:-1] == good[:-1]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": 1}',
        b'{"keys": [],' + key_set()[1:],
        b'{"keys": [1]}',
        b'{"keys": [{"kty": "oct"}]}',
        key_set({"kty": "oct", "kid": "", "alg": "HS256", "k": b64(SHARED)}),
        key_set({"kty": "oct", "kid": "a", "k": b64(SHARED)}),
        key_set({"kty": "oct", "kid": "a", "alg": "none", "k": b64(SHARED)}),
        key_set({"kty": "oct", "kid": "a", "alg": "RS256", "k": b64(SHARED)}),
        key_set({"kty": "oct", "kid": "a", "alg": "HS256", "k": b64(b"short")}),
        key_set({"kty": "oct", "kid": "a", "alg": "HS256"}),
        key_set(*[{"kty": "oct", "kid": "a", "alg": "HS256", "k": b64(SHARED)}] * 2),
        key_set(published("RS256", weak())),
        key_set(published("PS256", weak())),
        *(key_set(signing(algorithm)) for algorithm in ("ES256", "RS256", "PS256", "EdDSA")),
        b"[" * 100_000,
    ],
)
def test_a_key_set_that_cannot_be_meant_is_refused(content):
    with pytest.raises(InvalidConfig, match="keys-file"):
        TokenKeys.parse(content, "keys-file")


def test_keys_are_rotated_without_a_token_that_fails(authority, tmp_path):
    place = tmp_path / "b"
    authority.issue(place, Subject(Role.BOOKIE, "b", ("localhost",)), days=1)
    rules = tmp_path / "authority/access.toml"
    rules.write_text(rules.read_text().replace('tallybook://writer/*"]', 'tallybook://writer/*"]\ntokens = ["app"]'))
    authority.issue(place, Subject(Role.BOOKIE, "b", ("localhost",)), days=1)
    security = open_security(str(place), serves=True)

    def whose(made: str) -> str:
        security.refresh()
        return security.principal(Presented(authorization=(f"Bearer {made}",))).name

    old = authority.token("app", lifetime=timedelta(hours=1))
    assert whose(old) == "writers"
    [first] = authority.token_keys()
    with pytest.raises(InvalidArgument):
        authority.drop_token_key(first)
    authority.add_token_key()
    new = authority.token("app", lifetime=timedelta(hours=1))
    with pytest.raises(Unauthenticated, match="does not have"):
        whose(new)
    authority.issue(place, Subject(Role.BOOKIE, "b", ("localhost",)), days=1)
    assert (whose(old), whose(new)) == ("writers", "writers")
    authority.drop_token_key(first)
    authority.issue(place, Subject(Role.BOOKIE, "b", ("localhost",)), days=1)
    assert whose(new) == "writers"
    with pytest.raises(Unauthenticated, match="does not have"):
        whose(old)
    with pytest.raises(AccessDenied):
        whose(authority.token("another", lifetime=timedelta(hours=1)))


def test_keys_that_are_made_at_once_are_all_kept(authority):
    before = authority.token_keys()
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: authority.add_token_key(), range(24)))
    assert sorted(authority.token_keys()) == sorted([*before, *made])


def test_a_certificate_and_a_token_at_once_are_refused(authority, tmp_path):
    authority.issue(tmp_path / "b", Subject(Role.BOOKIE, "b", ("localhost",)), days=1)
    security = open_security(str(tmp_path / "b"), serves=True)
    made = authority.token("app", lifetime=timedelta(hours=1))
    with pytest.raises(Unauthenticated, match="not both"):
        security.principal(Presented((CertificateName.parse("tallybook://admin/root"),), (f"Bearer {made}",)))

"""Bearer tokens: JSON Web Tokens (RFC 7519), checked with the keys of a JSON Web Key Set (RFC 7517).

A token names the key that has signed it (``kid``). The algorithm is what the *key* is for, whatever the token says, so
nobody can have a public key taken for a shared secret, or no signature for a good one. A token has to say for whom it
is meant (``aud``), whose it is (``sub``) and until when it counts (``exp``). Keys are rotated by putting the new one
beside the old one, and taking that away when its last token has expired.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from tallybook.core.errors import InvalidConfig, Unauthenticated
from tallybook.runtime.json_once import loads_once

ALGORITHMS: Final = ("EdDSA", "ES256", "RS256", "PS256", "HS256")
MAX_TOKEN_BYTES: Final = 8 * 1024
LEEWAY_SECONDS: Final = 30
"""By which clocks may differ."""

_MIN_SHARED_BYTES: Final = 32
_MIN_RSA_BITS: Final = 2048
"""As RFC 7518 wants it: those of less may be broken by whoever has the key that checks, which is public."""
_MAX_KEYS: Final = 100
_SCHEME: Final = "bearer "
_TIMES: Final = ("exp", "nbf", "iat")
_REASONS: Final[tuple[tuple[type[jwt.PyJWTError], str], ...]] = (
    (jwt.ExpiredSignatureError, "has expired"),
    (jwt.ImmatureSignatureError, "is not valid yet"),
    (jwt.InvalidAudienceError, "is meant for others"),
    (jwt.MissingRequiredClaimError, "lacks aud, exp or sub"),
    (jwt.InvalidSignatureError, "is not signed by the key that it names"),
)


class Token(NamedTuple):
    """What a token says that counts."""

    subject: str
    """Whose it is."""
    until_us: int
    """When it counts no more, in microseconds since the epoch: clocks may differ, so that is later than it says."""


class TokenKeys:
    """The keys that tokens are checked with. Made by ``parse``."""

    def __init__(self, keys: Mapping[str, jwt.PyJWK]) -> None:
        self._keys = keys

    def __repr__(self) -> str:
        return f"TokenKeys({', '.join(self._keys)})"

    @classmethod
    def parse(cls, content: bytes, path: str) -> TokenKeys:
        """Understand a key set.

        Raises:
            InvalidConfig: it is none, or has a key without ``kid`` or ``alg``, of an algorithm that is not known, two
                of one ``kid``, a shared secret of less than 32 bytes, a key of RSA of less than 2048 bits, or the half
                of a key that signs.
        """
        try:
            found = loads_once(content)
        except (ValueError, RecursionError):
            raise InvalidConfig(f"{path} is not JSON, or has a field twice") from None
        entries = found.get("keys") if isinstance(found, dict) else None
        if not isinstance(entries, list) or len(entries) > _MAX_KEYS:
            raise InvalidConfig(f"{path} is not a key set: an object with up to {_MAX_KEYS} 'keys' is wanted")
        keys: dict[str, jwt.PyJWK] = {}
        for number, entry in enumerate(entries):
            kid, key = _key(entry, f"{path}: key {number}")
            if kid in keys:
                raise InvalidConfig(f"{path} has two keys of the kid {kid!r}")
            keys[kid] = key
        return cls(keys)

    def read(self, authorization: tuple[str, ...], audience: str) -> Token:
        """The token that came in headers of the name ``authorization``.

        Raises:
            Unauthenticated: there is not exactly one, or it is not a token that counts here and now.
        """
        if len(authorization) > 1:
            raise Unauthenticated("there are several headers 'authorization'")
        [header] = authorization
        if header[: len(_SCHEME)].lower() != _SCHEME:
            raise Unauthenticated("the header 'authorization' is to be 'Bearer' and a token")
        token = header[len(_SCHEME) :].strip()
        if len(token) > MAX_TOKEN_BYTES or not token.isascii():
            raise Unauthenticated(f"a token has at most {MAX_TOKEN_BYTES} bytes, all of them ASCII")
        try:
            kid = jwt.get_unverified_header(token).get("kid")
            key = self._keys.get(kid) if isinstance(kid, str) else None
            if key is None:
                raise Unauthenticated("the token names no key that is known here")
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm_name],
                audience=audience,
                leeway=LEEWAY_SECONDS,
                options={"require": ["aud", "exp", "sub"]},
            )
        except OverflowError:
            raise Unauthenticated("the token is malformed") from None
        except jwt.PyJWTError as error:
            reason = next((text for kind, text in _REASONS if isinstance(error, kind)), "is malformed")
            raise Unauthenticated(f"the token {reason}") from None
        subject = claims["sub"]
        if not isinstance(subject, str) or not subject:
            raise Unauthenticated("the token has no subject")
        if any(type(claims.get(name, 0)) not in (int, float) for name in _TIMES):
            # RFC 7519 wants numbers; the library takes what it can make one.
            raise Unauthenticated("the token has a time that is no number")
        return Token(subject, (int(claims["exp"]) + LEEWAY_SECONDS) * 1_000_000)


def _key(entry: Any, where: str) -> tuple[str, jwt.PyJWK]:
    if not isinstance(entry, dict) or not isinstance(entry.get("kid"), str) or not entry["kid"]:
        raise InvalidConfig(f"{where} has no 'kid'")
    if entry.get("alg") not in ALGORITHMS:
        raise InvalidConfig(f"{where} has no 'alg' out of {', '.join(ALGORITHMS)}")
    try:
        key = jwt.PyJWK.from_dict(entry)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        raise InvalidConfig(f"{where} is malformed, or not for {entry['alg']}") from None
    if isinstance(key.key, bytes) and len(key.key) < _MIN_SHARED_BYTES:
        raise InvalidConfig(f"{where} is a shared secret of less than {_MIN_SHARED_BYTES} bytes")
    if not isinstance(key.key, bytes) and "d" in entry:
        raise InvalidConfig(f"{where} is the half that signs; the public one is wanted")
    if isinstance(key.key, RSAPublicKey) and key.key.key_size < _MIN_RSA_BITS:
        raise InvalidConfig(f"{where} is a key of RSA of less than {_MIN_RSA_BITS} bits")
    return entry["kid"], key

"""Bearer tokens: JSON Web Tokens (RFC 7519), checked with the keys of a JSON Web Key Set (RFC 7517).

A token names the key that signed it (``kid``). The algorithm is that of the *key*, not of the token's header, so that
a public key cannot be used as a shared secret and an unsigned token is never valid. A token must have ``kid``, and the
claims ``aud`` (audience), ``sub`` (subject, not empty) and ``exp`` (expiry, a number). To rotate keys, add the new key
and remove the old one when its last token has expired.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from tallybook.core.errors import InvalidConfig, Unauthenticated

from ..strict_json import loads_strict

ALGORITHMS: Final = ("EdDSA", "ES256", "RS256", "PS256", "HS256")
MAX_TOKEN_BYTES: Final = 8 * 1024
LEEWAY_SECONDS: Final = 30
"""Accepted difference of clocks."""

_MIN_SHARED_BYTES: Final = 32
_MIN_RSA_BITS: Final = 2048
"""Minimum by RFC 7518: a smaller RSA key can be broken with the public key alone."""
_MAX_KEYS: Final = 100
_SCHEME: Final = "bearer "
_TIMES: Final = ("exp", "nbf", "iat")
_MALFORMED: Final = "is malformed: send 'Bearer' and a whole JSON Web Token"
_MAX_KID_CHARACTERS: Final = 64


class Token(NamedTuple):
    """The claims of a verified token that are used."""

    subject: str
    """The subject (``sub``)."""
    until_us: int
    """End of validity in microseconds since the epoch: ``exp`` plus ``LEEWAY_SECONDS``."""


class TokenKeys:
    """The keys that verify tokens. Made by ``parse``."""

    def __init__(self, keys: Mapping[str, jwt.PyJWK]) -> None:
        self._keys = keys

    def __repr__(self) -> str:
        return f"TokenKeys({', '.join(self._keys)})"

    @classmethod
    def parse(cls, content: bytes, path: str) -> TokenKeys:
        """Parse a key set.

        Raises:
            InvalidConfig: it is not a key set, or has a key without ``kid`` or ``alg``, an unknown algorithm, a
                duplicate ``kid``, a shared secret of less than 32 bytes, an RSA key of less than 2048 bits, or a
                private key.
        """
        try:
            found = loads_strict(content)
        except (ValueError, RecursionError):
            raise InvalidConfig(f"{path} is not JSON, or has a duplicate field") from None
        entries = found.get("keys") if isinstance(found, dict) else None
        if not isinstance(entries, list) or len(entries) > _MAX_KEYS:
            raise InvalidConfig(f"{path} is not a key set: it must be an object with up to {_MAX_KEYS} 'keys'")
        keys: dict[str, jwt.PyJWK] = {}
        for number, entry in enumerate(entries):
            kid, key = _key(entry, f"{path}: key {number}")
            if kid in keys:
                raise InvalidConfig(f"{path} has two keys with the kid {kid!r}")
            keys[kid] = key
        return cls(keys)

    def read(self, authorization: tuple[str, ...], audience: str) -> Token:
        """Verify the token in the headers ``authorization``.

        Raises:
            Unauthenticated: there is more than one header, or the token is not valid.
        """
        if len(authorization) > 1:
            raise Unauthenticated("there are several headers 'authorization': send one")
        [header] = authorization
        if header[: len(_SCHEME)].lower() != _SCHEME:
            raise Unauthenticated("the header 'authorization' must be 'Bearer' and a token")
        token = header[len(_SCHEME) :].strip()
        if len(token) > MAX_TOKEN_BYTES or not token.isascii():
            raise Unauthenticated(f"a token must be ASCII of at most {MAX_TOKEN_BYTES} bytes")
        try:
            kid = jwt.get_unverified_header(token).get("kid")
            key = self._key_named(kid)
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm_name],
                audience=audience,
                leeway=LEEWAY_SECONDS,
                options={"require": ["aud", "exp", "sub"]},
            )
        except OverflowError:
            raise Unauthenticated(f"the token {_MALFORMED}") from None
        except jwt.PyJWTError as error:
            raise Unauthenticated(f"the token {_reason(error, audience)}") from None
        subject = claims["sub"]
        if not isinstance(subject, str) or not subject:
            raise Unauthenticated("the token has no subject: its issuer must set 'sub'")
        if any(type(claims.get(name, 0)) not in (int, float) for name in _TIMES):
            # RFC 7519 requires numbers; the library also accepts values that it can convert to one.
            raise Unauthenticated("the token has a time that is not a number: its issuer must set exp in seconds")
        return Token(subject, (int(claims["exp"]) + LEEWAY_SECONDS) * 1_000_000)

    def _key_named(self, kid: object) -> jwt.PyJWK:
        if not isinstance(kid, str):
            raise Unauthenticated("the token names no key: its issuer must set 'kid'")
        key = self._keys.get(kid)
        if key is None:
            raise Unauthenticated(
                f"the token names the key {kid[:_MAX_KID_CHARACTERS]!r}, which this server does not have: get a new "
                "token, or give the server the newest token-keys.json"
            )
        return key


def _reason(error: jwt.PyJWTError, audience: str) -> str:
    """Return the reason for which a token is refused, and the remedy. Claims are named only after its verification."""
    match error:
        case jwt.ExpiredSignatureError():
            return "has expired: get a new one"
        case jwt.ImmatureSignatureError():
            return "is not valid yet: wait, or compare the clocks of its issuer and of this server"
        case jwt.InvalidAudienceError():
            return f"is for another audience: get one for {audience!r}"
        case jwt.MissingRequiredClaimError():
            return f"lacks {error.claim!r}: its issuer must set aud, exp and sub"
        case jwt.InvalidSignatureError():
            return "is not signed by the key that it names: get a new one, and send it unchanged"
        case jwt.InvalidAlgorithmError():
            return "has another algorithm than the key that it names: its issuer must use that of token-keys.json"
        case _:
            return _MALFORMED


def _key(entry: Any, where: str) -> tuple[str, jwt.PyJWK]:
    if not isinstance(entry, dict) or not isinstance(entry.get("kid"), str) or not entry["kid"]:
        raise InvalidConfig(f"{where} has no 'kid'")
    if entry.get("alg") not in ALGORITHMS:
        raise InvalidConfig(f"{where} must have one of these as 'alg': {', '.join(ALGORITHMS)}")
    try:
        key = jwt.PyJWK.from_dict(entry)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        raise InvalidConfig(f"{where} is malformed, or not for {entry['alg']}") from None
    if isinstance(key.key, bytes) and len(key.key) < _MIN_SHARED_BYTES:
        raise InvalidConfig(f"{where} is a shared secret of less than {_MIN_SHARED_BYTES} bytes")
    if not isinstance(key.key, bytes) and "d" in entry:
        raise InvalidConfig(f"{where} is a private key; a public key is required")
    if isinstance(key.key, RSAPublicKey) and key.key.key_size < _MIN_RSA_BITS:
        raise InvalidConfig(f"{where} is an RSA key of less than {_MIN_RSA_BITS} bits")
    return entry["kid"], key

"""An authority of one's own: a directory from which certificates and tokens come, for those who have no other.

    ca.crt, ca.key                             the authority
    access.toml                                who may do what, to be edited
    token-signing-keys.json, token-keys.json   keys of tokens: to make them, to check them

What may forge is only here: ``issue`` gives a process its own certificate and key, and a server the rules and the keys
that tokens are checked with besides. Files are made for the owner's eyes only, and replaced at once or not at all.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from jwt.algorithms import OKPAlgorithm

from tallybook.core.access import Role
from tallybook.core.errors import InvalidArgument, InvalidConfig

from .files import ACCESS, AUTHORITY, CERTIFICATE, PRIVATE, TOKEN_KEYS
from .material import parse_access
from .replacing import SECRET_MODE, changing, replace_file

AUTHORITY_PRIVATE: Final = "ca.key"
SIGNING_KEYS: Final = "token-signing-keys.json"

AUTHORITY_DAYS: Final = 3_650
_SKEW: Final = timedelta(minutes=5)
"""By which a certificate begins earlier: clocks differ."""
_ALGORITHM: Final = "EdDSA"

STARTER: Final = """\
# Who may do what. Whoever fits none of these may do nothing. docs/security.md describes every line.
audience = "tallybook"

[[principal]]
name = "cluster"
roles = ["bookie"]
certificates = ["tallybook://bookie/*"]

[[principal]]
name = "admins"
roles = ["admin"]
certificates = ["tallybook://admin/*"]

[[principal]]
name = "writers"
roles = ["writer"]
certificates = ["tallybook://writer/*"]

[[principal]]
name = "readers"
roles = ["reader"]
certificates = ["tallybook://reader/*"]
"""
"""Rules for the names that ``issue`` gives."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a certificate: ``tallybook://ROLE/NAME``, and hosts where others reach it."""

    role: Role
    name: str
    hosts: Sequence[str] = ()
    """Names and IP addresses."""

    def names(self) -> list[x509.GeneralName]:
        """As they stand in a certificate.

        Raises:
            InvalidArgument: one of them cannot.
        """
        if not self.name or not self.name.isascii() or not self.name.replace("-", "").replace(".", "").isalnum():
            raise InvalidArgument(f"{self.name!r} is not a name of ASCII letters, digits, - and .")
        uri = f"tallybook://{self.role.value}/{self.name}"
        return [x509.UniformResourceIdentifier(uri), *map(_host, self.hosts)]


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise InvalidArgument(f"{host!r} is not the name of a host in ASCII, nor an IP address") from None


class Authority:
    """The authority in a directory."""

    def __init__(self, directory: Path, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
        self._directory = directory
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, directory: Path, *, name: str = "Tallybook") -> Authority:
        """Make one.

        Raises:
            InvalidConfig: there is one in this directory already.
            OSError: the directory cannot be made or written.
        """
        if (directory / AUTHORITY_PRIVATE).exists():
            raise InvalidConfig(f"{directory} holds an authority already")
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = generate_private_key(SECP256R1())
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority {secrets.token_hex(4)}")])
        usage = _usage(key_cert_sign=True, crl_sign=True)
        certificate = (
            _builder(issuer, issuer, key, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        made = cls(directory, certificate, key)
        write_secretly(directory / AUTHORITY_PRIVATE, _pem(key))
        _write(directory / AUTHORITY, certificate.public_bytes(Encoding.PEM))
        _write(directory / ACCESS, STARTER.encode())
        made.add_token_key()
        return made

    @classmethod
    def open(cls, directory: Path) -> Authority:
        """The one that is there.

        Raises:
            InvalidConfig: there is none.
        """
        try:
            certificate = x509.load_pem_x509_certificate((directory / AUTHORITY).read_bytes())
            key = load_pem_private_key((directory / AUTHORITY_PRIVATE).read_bytes(), password=None)
        except (OSError, ValueError) as error:
            raise InvalidConfig(f"{directory} holds no authority: {error}") from None
        if not isinstance(key, EllipticCurvePrivateKey):
            raise InvalidConfig(f"{directory}/{AUTHORITY_PRIVATE} was not made here")
        return cls(directory, certificate, key)

    def issue(self, target: Path, subject: Subject, *, days: int) -> None:
        """Put what a process needs into ``target``. What is there already is replaced, as by a renewal.

        Bookies get the rules and the keys of tokens as well.

        Raises:
            InvalidArgument: the subject cannot be.
            InvalidConfig: the rules make no sense.
            OSError: the directory cannot be made or written.
        """
        names = subject.names()
        server = subject.role is Role.BOOKIE
        rules = self._rules() if server else b""
        key = generate_private_key(SECP256R1())
        common = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject.name[:64])])
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if server else [])]
        certificate = (
            _builder(common, self._certificate.subject, key, days)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._certificate.public_key()),  # type: ignore[arg-type]
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(target / AUTHORITY, self._certificate.public_bytes(Encoding.PEM))
        write_secretly(target / PRIVATE, _pem(key))
        _write(target / CERTIFICATE, certificate.public_bytes(Encoding.PEM))
        if server:
            _write(target / ACCESS, rules)
            write_secretly(target / TOKEN_KEYS, (self._directory / TOKEN_KEYS).read_bytes())

    def _rules(self) -> bytes:
        path = self._directory / ACCESS
        rules = path.read_bytes()
        parse_access(rules, str(path))
        return rules

    def add_token_key(self) -> str:
        """Make a key that tokens are signed with from now on, beside those there are; its name.

        Servers have to know it before they see such a token: ``issue`` gives it to them.

        Raises:
            InvalidConfig: somebody else is changing the keys and does not come to an end.
        """
        kid = f"{datetime.now(UTC):%Y-%m-%d}-{secrets.token_hex(3)}"
        key = Ed25519PrivateKey.generate()
        with changing(self._directory / SIGNING_KEYS):
            for name, half in ((TOKEN_KEYS, key.public_key()), (SIGNING_KEYS, key)):
                entry = {**OKPAlgorithm.to_jwk(half, as_dict=True), "kid": kid, "alg": _ALGORITHM, "use": "sig"}
                keys = [*self._keys(name), entry]
                write_secretly(self._directory / name, json.dumps({"keys": keys}, indent=2).encode())
        return kid

    def drop_token_key(self, kid: str) -> None:
        """Take a key away. Its tokens count no more, once servers have the others.

        Raises:
            InvalidArgument: there is no such key, or it is the only one.
            InvalidConfig: somebody else is changing the keys and does not come to an end.
        """
        with changing(self._directory / SIGNING_KEYS):
            left = [key for key in self._keys(SIGNING_KEYS) if key["kid"] != kid]
            if not left or len(left) == len(self._keys(SIGNING_KEYS)):
                raise InvalidArgument(f"{kid} is not one of several keys: {', '.join(self.token_keys())}")
            for name in (SIGNING_KEYS, TOKEN_KEYS):
                keys = [key for key in self._keys(name) if key["kid"] != kid]
                write_secretly(self._directory / name, json.dumps({"keys": keys}, indent=2).encode())

    def token_keys(self) -> list[str]:
        """The names of the keys, the one that signs last."""
        return [key["kid"] for key in self._keys(SIGNING_KEYS)]

    def token(self, subject: str, *, lifetime: timedelta) -> str:
        """A token of ``subject``, for the audience of the rules.

        Raises:
            InvalidArgument: the subject is empty.
            InvalidConfig: the rules make no sense.
        """
        if not subject:
            raise InvalidArgument("a token is somebody's")
        audience = parse_access(self._rules(), f"{self._directory}/{ACCESS}").audience
        signing, now = self._keys(SIGNING_KEYS)[-1], datetime.now(UTC)
        claims: dict[str, Any] = {"sub": subject, "aud": audience, "iat": now, "exp": now + lifetime}
        key = jwt.PyJWK.from_dict(dict(signing))
        return jwt.encode(claims, key.key, algorithm=_ALGORITHM, headers={"kid": signing["kid"]})

    def _keys(self, name: str) -> list[Mapping[str, Any]]:
        path = self._directory / name
        if not path.exists():
            return []
        try:
            found: list[Mapping[str, Any]] = json.loads(path.read_bytes())["keys"]
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidConfig(f"{path} is not a key set: {error}") from None
        return found


def _builder(subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(**wanted: bool) -> x509.KeyUsage:
    names = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
        *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{name: wanted.get(name, False) for name in names})


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def write_secretly(path: Path, content: bytes) -> None:
    """Replace a file at once, by one that only its owner may read, or those who could before."""
    _write(path, content, mode=SECRET_MODE)


def _write(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    replace_file(path, content, mode=mode)

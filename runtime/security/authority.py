"""A certificate authority in a directory, for clusters that have no other: issues certificates and tokens.

    ca.crt, ca.key                             certificate and key of the authority
    access.toml                                who may do what; edited by the operator
    token-signing-keys.json, token-keys.json   keys that sign tokens, keys that verify them

The signing keys stay in this directory. ``issue`` gives a process its own certificate and key, and a server also the
rules and the keys that verify tokens. Files are replaced atomically, secret ones with mode 0600.
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

from .file_replacement import SECRET_MODE, replace_file, update_lock
from .files import ACCESS, AUTHORITY, CERTIFICATE, PRIVATE, TOKEN_KEYS
from .material import parse_access

AUTHORITY_PRIVATE: Final = "ca.key"
SIGNING_KEYS: Final = "token-signing-keys.json"

AUTHORITY_DAYS: Final = 3_650
_SKEW: Final = timedelta(minutes=5)
"""How much before now a certificate becomes valid, because clocks differ."""
_ALGORITHM: Final = "EdDSA"

STARTER: Final = """\
# Who may do what. A caller that matches no principal is refused. docs/operate/access.md describes every line.
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
"""Initial rules, for the certificate names that ``issue`` uses."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a certificate: ``tallybook://ROLE/NAME``, and the hosts at which it is reached."""

    role: Role
    name: str
    hosts: Sequence[str] = ()
    """Names and IP addresses."""

    def names(self) -> list[x509.GeneralName]:
        """The alternative names of the certificate.

        Raises:
            InvalidArgument: a name is not valid in a certificate.
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
        raise InvalidArgument(f"{host!r} is neither an ASCII host name nor an IP address") from None


class Authority:
    """The authority in a directory."""

    def __init__(self, directory: Path, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
        self._directory = directory
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, directory: Path, *, name: str = "Tallybook") -> Authority:
        """Create an authority.

        Raises:
            InvalidConfig: the directory already has one.
            OSError: the directory cannot be made or written.
        """
        if (directory / AUTHORITY_PRIVATE).exists():
            raise InvalidConfig(f"{directory} already has an authority")
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
        write_secret(directory / AUTHORITY_PRIVATE, _pem(key))
        _write(directory / AUTHORITY, certificate.public_bytes(Encoding.PEM))
        _write(directory / ACCESS, STARTER.encode())
        made.add_token_key()
        return made

    @classmethod
    def open(cls, directory: Path) -> Authority:
        """Open an existing authority.

        Raises:
            InvalidConfig: there is none.
        """
        try:
            certificate = x509.load_pem_x509_certificate((directory / AUTHORITY).read_bytes())
            key = load_pem_private_key((directory / AUTHORITY_PRIVATE).read_bytes(), password=None)
        except (OSError, ValueError) as error:
            raise InvalidConfig(f"{directory} has no authority: {error}") from None
        if not isinstance(key, EllipticCurvePrivateKey):
            raise InvalidConfig(f"{directory}/{AUTHORITY_PRIVATE} is not an EC key, as tallybook makes them")
        return cls(directory, certificate, key)

    def issue(self, target: Path, subject: Subject, *, days: int) -> None:
        """Issue certificate and key of ``subject`` into the security directory ``target``, replacing older ones.

        Bookies also get the rules and the keys that verify tokens.

        Raises:
            InvalidArgument: the subject is not valid in a certificate.
            InvalidConfig: the rules are invalid.
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
        write_secret(target / PRIVATE, _pem(key))
        _write(target / CERTIFICATE, certificate.public_bytes(Encoding.PEM))
        if server:
            _write(target / ACCESS, rules)
            write_secret(target / TOKEN_KEYS, (self._directory / TOKEN_KEYS).read_bytes())

    def _rules(self) -> bytes:
        path = self._directory / ACCESS
        rules = path.read_bytes()
        parse_access(rules, str(path))
        return rules

    def add_token_key(self) -> str:
        """Add a key that signs all new tokens, and return its id.

        Servers must get the key with ``issue`` before they see a token signed with it.

        Raises:
            InvalidConfig: another process keeps the keys locked.
        """
        kid = f"{datetime.now(UTC):%Y-%m-%d}-{secrets.token_hex(3)}"
        key = Ed25519PrivateKey.generate()
        with update_lock(self._directory / SIGNING_KEYS):
            for name, half in ((TOKEN_KEYS, key.public_key()), (SIGNING_KEYS, key)):
                entry = {**OKPAlgorithm.to_jwk(half, as_dict=True), "kid": kid, "alg": _ALGORITHM, "use": "sig"}
                keys = [*self._keys(name), entry]
                write_secret(self._directory / name, json.dumps({"keys": keys}, indent=2).encode())
        return kid

    def drop_token_key(self, kid: str) -> None:
        """Remove a key. Its tokens become invalid when servers have got the remaining keys.

        Raises:
            InvalidArgument: there is no such key, or it is the only one.
            InvalidConfig: another process keeps the keys locked.
        """
        with update_lock(self._directory / SIGNING_KEYS):
            left = [key for key in self._keys(SIGNING_KEYS) if key["kid"] != kid]
            if not left or len(left) == len(self._keys(SIGNING_KEYS)):
                raise InvalidArgument(f"key {kid} is unknown or the only one: {', '.join(self.token_keys())}")
            for name in (SIGNING_KEYS, TOKEN_KEYS):
                keys = [key for key in self._keys(name) if key["kid"] != kid]
                write_secret(self._directory / name, json.dumps({"keys": keys}, indent=2).encode())

    def token_keys(self) -> list[str]:
        """The ids of the keys; the last one signs new tokens."""
        return [key["kid"] for key in self._keys(SIGNING_KEYS)]

    def token(self, subject: str, *, lifetime: timedelta) -> str:
        """Make a token for ``subject``, for the audience of the rules.

        Raises:
            InvalidArgument: the subject is empty.
            InvalidConfig: the rules are invalid.
        """
        if not subject:
            raise InvalidArgument("a token needs a subject")
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


def write_secret(path: Path, content: bytes) -> None:
    """Replace a file atomically. A new file has mode 0600; an existing one keeps owner and mode."""
    _write(path, content, mode=SECRET_MODE)


def _write(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    replace_file(path, content, mode=mode)

"""What the files of a security directory mean, once they are understood."""

from __future__ import annotations

import ssl
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from pydantic import ValidationError

from tallybook.core.access import AccessFile, AccessRules
from tallybook.core.errors import InvalidConfig

from ..identity import Identity
from ..settings import complaints
from ..tls_contexts import client_context, server_material
from .files import ACCESS, AUTHORITY, CERTIFICATE, PRIVATE, TOKEN_KEYS, ZOOKEEPER, ZOOKEEPER_READER, Files
from .tokens import TokenKeys


@dataclass(frozen=True, slots=True)
class Material:
    """All that a process needs of its directory."""

    identity: Identity
    rules: AccessRules | None
    """``None``: it is that of a client, which lets nobody in."""
    token_keys: TokenKeys | None
    zookeeper: str | None
    """USER:PASSWORD."""
    zookeeper_reader: str | None
    """USER:PASSWORD of the user who may only read."""

    def __repr__(self) -> str:
        """Without what must never be shown."""
        return f"Material({self.identity!r})"


def understand(files: Files, directory: str, *, now: datetime | None = None) -> Material:
    """Understand the files of ``directory``.

    Raises:
        InvalidConfig: one that is needed is missing; one is malformed; the key does not belong to the certificate, as
            while both are being replaced; or the certificate is not valid now.
    """
    return Material(
        identity_of(files, directory, now=now),
        rules_of(files, directory),
        token_keys_of(files, directory),
        zookeeper_of(files, directory),
        zookeeper_of(files, directory, ZOOKEEPER_READER),
    )


def identity_of(files: Files, directory: str, *, now: datetime | None = None) -> Identity:
    """Who the process is. What comes out of here is in force at once, so TLS has to be possible with it.

    Raises:
        InvalidConfig: as ``understand``, of certificates and keys.
    """
    now = now or datetime.now(UTC)
    try:
        identity = _understood(files, directory, now)
        for usable in (client_context, server_material):
            usable(identity)
    except (ValueError, TypeError, UnsupportedAlgorithm, ssl.SSLError) as error:
        # What a certificate holds is understood bit by bit, and each bit may be strange in a way of its own.
        raise InvalidConfig(f"{directory}: {CERTIFICATE} and {PRIVATE} cannot be used: {error}") from None
    return identity


def rules_of(files: Files, directory: str) -> AccessRules | None:
    """Who may do what; ``None`` where nothing is said.

    Raises:
        InvalidConfig: it cannot be understood.
    """
    content = files.found(ACCESS)
    return None if content is None else AccessRules(parse_access(content, f"{directory}/{ACCESS}"))


def token_keys_of(files: Files, directory: str) -> TokenKeys | None:
    """What tokens are checked with; ``None``: no tokens are taken.

    Raises:
        InvalidConfig: it cannot be understood.
    """
    content = files.found(TOKEN_KEYS)
    return None if content is None else TokenKeys.parse(content, f"{directory}/{TOKEN_KEYS}")


def zookeeper_of(files: Files, directory: str, name: str = ZOOKEEPER) -> str | None:
    """USER:PASSWORD for ZooKeeper in the file ``name``, if there is one.

    Raises:
        InvalidConfig: it cannot be understood.
    """
    content = files.found(name)
    return None if content is None else _zookeeper(content, f"{directory}/{name}")


def _understood(files: Files, directory: str, now: datetime) -> Identity:
    authorities, chain, secret = (files.wanted(name, directory) for name in (AUTHORITY, CERTIFICATE, PRIVATE))
    trusted = _certificates(authorities, f"{directory}/{AUTHORITY}")
    own = _certificates(chain, f"{directory}/{CERTIFICATE}")[0]
    try:
        key = load_pem_private_key(secret, password=None)
    except (ValueError, TypeError):
        raise InvalidConfig(f"{directory}/{PRIVATE} is not a private key in PEM without a password") from None
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*form) != own.public_key().public_bytes(*form):
        raise InvalidConfig(f"{directory}/{PRIVATE} is not the key of {CERTIFICATE}")
    if not own.not_valid_before_utc <= now < own.not_valid_after_utc:
        span = f"{own.not_valid_before_utc.isoformat()} to {own.not_valid_after_utc.isoformat()}"
        raise InvalidConfig(f"{directory}/{CERTIFICATE} is not valid now, but from {span}")
    # Bundles have comments, in any script, which not every library of TLS takes.
    authorities = b"".join(each.public_bytes(Encoding.PEM) for each in trusted)
    return Identity(authorities, chain, secret, alternative_names(own), own.not_valid_after_utc)


def _certificates(pem: bytes, path: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise InvalidConfig(f"{path} holds no certificates in PEM") from None


def alternative_names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Hosts, addresses and URIs that a certificate is for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    hosts, uris = names.get_values_for_type(x509.DNSName), names.get_values_for_type(x509.UniformResourceIdentifier)
    return (*hosts, *uris, *map(str, names.get_values_for_type(x509.IPAddress)))


def parse_access(content: bytes, path: str) -> AccessFile:
    """Understand an ``access.toml``.

    Raises:
        InvalidConfig: it is none; the message names the file and what is wrong.
    """
    try:
        return AccessFile.model_validate(tomllib.loads(content.decode()))
    except ValidationError as error:
        raise InvalidConfig(f"{path}: {'; '.join(complaints(error))}") from None
    except ValueError as error:
        raise InvalidConfig(f"{path} is not a TOML file: {error}") from None
    except RecursionError:
        raise InvalidConfig(f"{path}: tables or lists lie too deep in one another") from None


def _zookeeper(content: bytes, path: str) -> str:
    text = content.decode("ascii", errors="replace").strip()
    user, colon, password = text.partition(":")
    if not (user and colon and password) or not text.isprintable() or " " in text:
        raise InvalidConfig(f"{path} is not USER:PASSWORD in printable ASCII")
    return text

"""Parses the files of a security directory: certificates, access rules, token keys and ZooKeeper passwords."""

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

from ..settings import validation_messages
from .files import ACCESS, AUTHORITY, CERTIFICATE, PRIVATE, TOKEN_KEYS, ZOOKEEPER, ZOOKEEPER_READER, Files
from .identity import Identity
from .tls_contexts import client_context, server_material
from .tokens import TokenKeys


@dataclass(frozen=True, slots=True)
class Material:
    """The parsed content of a security directory."""

    identity: Identity
    rules: AccessRules | None
    """Access rules; ``None`` in the directory of a client, which serves no callers."""
    token_keys: TokenKeys | None
    zookeeper: str | None
    """USER:PASSWORD."""
    zookeeper_reader: str | None
    """USER:PASSWORD of the user with read access only."""

    def __repr__(self) -> str:
        """Without secrets."""
        return f"Material({self.identity!r})"


def parse_material(files: Files, directory: str, *, now: datetime | None = None) -> Material:
    """Parse the files of ``directory``.

    Raises:
        InvalidConfig: a required file is missing; a file is malformed; key and certificate do not match (as while both
            are being replaced); or the certificate is not valid now.
    """
    return Material(
        identity_of(files, directory, now=now),
        rules_of(files, directory),
        token_keys_of(files, directory),
        zookeeper_of(files, directory),
        zookeeper_of(files, directory, ZOOKEEPER_READER),
    )


def identity_of(files: Files, directory: str, *, now: datetime | None = None) -> Identity:
    """Parse certificates and key, and check that TLS works with them, because they come into force at once.

    Raises:
        InvalidConfig: as ``parse_material``, for certificates and key.
    """
    now = now or datetime.now(UTC)
    try:
        identity = _parse_identity(files, directory, now)
        for usable in (client_context, server_material):
            usable(identity)
    except (ValueError, TypeError, UnsupportedAlgorithm, ssl.SSLError) as error:
        # The library parses parts of a certificate lazily, and each part may fail with another error.
        raise InvalidConfig(f"{directory}: {CERTIFICATE} and {PRIVATE} cannot be used: {error}") from None
    return identity


def rules_of(files: Files, directory: str) -> AccessRules | None:
    """Parse the access rules; ``None`` if there is no such file.

    Raises:
        InvalidConfig: they are invalid.
    """
    content = files.optional(ACCESS)
    return None if content is None else AccessRules(parse_access(content, f"{directory}/{ACCESS}"))


def token_keys_of(files: Files, directory: str) -> TokenKeys | None:
    """Parse the keys that verify tokens; ``None`` if there is no such file: tokens are not accepted.

    Raises:
        InvalidConfig: they are invalid.
    """
    content = files.optional(TOKEN_KEYS)
    return None if content is None else TokenKeys.parse(content, f"{directory}/{TOKEN_KEYS}")


def zookeeper_of(files: Files, directory: str, name: str = ZOOKEEPER) -> str | None:
    """USER:PASSWORD for ZooKeeper in the file ``name``; ``None`` if there is no such file.

    Raises:
        InvalidConfig: it has another form.
    """
    content = files.optional(name)
    return None if content is None else _zookeeper(content, f"{directory}/{name}")


def _parse_identity(files: Files, directory: str, now: datetime) -> Identity:
    authorities, chain, secret = (files.required(name, directory) for name in (AUTHORITY, CERTIFICATE, PRIVATE))
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
    # Re-encoded, because bundles may have comments in any character set, which not every TLS library accepts.
    authorities = b"".join(each.public_bytes(Encoding.PEM) for each in trusted)
    return Identity(authorities, chain, secret, alternative_names(own), own.not_valid_after_utc)


def _certificates(pem: bytes, path: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise InvalidConfig(f"{path} has no PEM certificates") from None


def alternative_names(certificate: x509.Certificate) -> tuple[str, ...]:
    """The host names, addresses and URIs in the subject alternative names of a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    hosts, uris = names.get_values_for_type(x509.DNSName), names.get_values_for_type(x509.UniformResourceIdentifier)
    return (*hosts, *uris, *map(str, names.get_values_for_type(x509.IPAddress)))


def parse_access(content: bytes, path: str) -> AccessFile:
    """Parse an ``access.toml``.

    Raises:
        InvalidConfig: it is invalid; the message names the file and the fault.
    """
    try:
        return AccessFile.model_validate(tomllib.loads(content.decode()))
    except ValidationError as error:
        raise InvalidConfig(f"{path}: {'; '.join(validation_messages(error))}") from None
    except ValueError as error:
        raise InvalidConfig(f"{path} is not a TOML file: {error}") from None
    except RecursionError:
        raise InvalidConfig(f"{path}: tables or lists are nested too deeply") from None


def _zookeeper(content: bytes, path: str) -> str:
    text = content.decode("ascii", errors="replace").strip()
    user, colon, password = text.partition(":")
    if not (user and colon and password) or not text.isprintable() or " " in text:
        raise InvalidConfig(f"{path} is not USER:PASSWORD in printable ASCII")
    return text

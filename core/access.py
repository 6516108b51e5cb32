"""Authorization: roles, and the rules that map credentials to a principal.

    certificate names, or the subject of a token  ->  AccessRules  ->  Principal  ->  is_authorized()

An administrator gives a *principal* a name, roles and limits. Credentials that match no principal have no rights. A
principal may be limited to prefixes of stream and ledger names. A bookie knows ledgers by number only, so a limited
principal has no access to bookies: it goes through a gateway, which knows the names.

    reader  READ                         writer  READ, WRITE
    bookie  READ, WRITE, KEEP            admin   everything

The rules are in the file ``access.toml``; docs/operate/access.md describes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final, NamedTuple, Protocol, Self

from pydantic import AfterValidator, Field, model_validator

from .certificate_names import CertificateName
from .errors import AccessDenied, Unauthenticated
from .settings import Settings
from .settings.types import BufferSize, Count

LEDGER_NAME: Final = "name"
"""Key in a ledger's custom metadata for its name, if it has one."""

MAX_PRINCIPALS: Final = 10_000
_MAX_WORDS: Final = 1_000


class Permission(Enum):
    """A kind of operation."""

    READ = "read"
    """Read ledgers and streams, and their metadata."""
    WRITE = "write"
    """Create, append, close, fence and delete them; read on behalf of a subscription."""
    KEEP = "keep"
    """Maintain the cluster: copy entries to bookies, list a bookie's ledgers, end limbo."""
    ADMINISTER = "administer"
    """Change how processes run, and read their settings."""


class Role(Enum):
    """Role of a principal in the cluster."""

    READER = "reader"
    WRITER = "writer"
    BOOKIE = "bookie"
    """Bookies, gateways, offloaders and repair processes."""
    ADMIN = "admin"


_PERMISSIONS: Final = {
    Role.READER: frozenset({Permission.READ}),
    Role.WRITER: frozenset({Permission.READ, Permission.WRITE}),
    Role.BOOKIE: frozenset({Permission.READ, Permission.WRITE, Permission.KEEP}),
    Role.ADMIN: frozenset(Permission),
}


_ROLE_URI: Final = re.compile("tallybook://(reader|writer|bookie|admin)/.+")


def permissions_of_names(names: Iterable[CertificateName]) -> frozenset[Permission] | None:
    """Permissions of the names ``tallybook://ROLE/NAME`` of a certificate; ``None`` if it has no such name."""
    roles = [match[1] for name in names if (match := _ROLE_URI.fullmatch(name.text)) is not None]
    return frozenset[Permission]().union(*(_PERMISSIONS[Role(role)] for role in roles)) if roles else None


class Presented(NamedTuple):
    """The credentials that a client presented with a connection or a call."""

    certificate: tuple[CertificateName, ...] = ()
    """The alternative names of the certificate that TLS verified: hosts, addresses, URIs."""
    authorization: tuple[str, ...] = ()
    """The authorization headers, unverified."""
    traceparent: str = ""
    """The traceparent header, unverified."""

    def __repr__(self) -> str:
        """Shows no header values: they may be valid secrets."""
        return f"Presented(certificate={_listed(self.certificate)}, {len(self.authorization)} headers)"


def _listed(names: tuple[CertificateName, ...]) -> str:
    return ", ".join(name.text for name in names) or "none"


NOTHING: Final = Presented()


class Credentials(NamedTuple):
    """Verified identity of a caller. Where both are empty, nothing was verified."""

    certificate: tuple[CertificateName, ...] = ()
    """The names of a certificate."""
    subject: str = ""
    """The subject of a token."""
    until_us: int | None = None
    """When the token expires, in microseconds since the epoch."""


class Access(Protocol):
    """Authenticates callers."""

    def principal(self, presented: Presented) -> Principal:
        """The principal that ``presented`` belongs to.

        Raises:
            Unauthenticated: there are no credentials, or they are invalid.
            AccessDenied: the credentials match no principal.
        """


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a principal's concurrent use of one process."""

    max_requests: int | None = None
    """``None``: only the general limit applies."""
    max_bytes: int | None = None


class Principal:
    """An authenticated caller and its rights.

    Args:
        permissions: the permitted kinds of operation.
        streams, namespaces, ledgers: what the permissions are limited to: prefixes of stream names in the default
            namespace, namespaces with all their streams, prefixes of ledger names. If all three are ``None``, the
            permissions apply to everything.
    """

    __slots__ = (
        "_ledgers", "_namespaces", "_permissions", "_streams", "identity", "limits", "name", "unlimited", "until_us",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        permissions: frozenset[Permission],
        *,
        streams: tuple[str, ...] | None = None,
        namespaces: tuple[str, ...] | None = None,
        ledgers: tuple[str, ...] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.name = name
        self.identity = ""
        """The name of the certificate, or the subject of the token, that authenticated the caller."""
        self.until_us: int | None = None
        """When the credentials expire, in microseconds since the epoch; ``None``: unknown."""
        self.limits = limits or Limits()
        self._permissions = permissions
        self._streams = streams or ()
        self._namespaces = namespaces or ()
        self._ledgers = ledgers or ()
        self.unlimited = streams is None and namespaces is None and ledgers is None
        """Whether its permissions apply to everything."""

    def __repr__(self) -> str:
        return f"Principal({self.name!r})"

    @property
    def permissions(self) -> frozenset[Permission]:
        """The permitted kinds of operation."""
        return self._permissions

    def with_identity(self, identity: str, until_us: int | None = None) -> Self:
        """A copy for a caller authenticated by ``identity``."""
        one = copy(self)
        one.identity = identity
        one.until_us = until_us
        return one

    def is_authorized(self, permission: Permission) -> bool:
        """Whether this kind of operation is permitted on at least some objects."""
        return permission in self._permissions

    def check(self, permission: Permission) -> None:
        """Raise AccessDenied unless this kind of operation is permitted on at least some objects."""
        if not self.is_authorized(permission):
            raise AccessDenied(f"{self.name} may not {permission.value}")

    def check_everywhere(self, permission: Permission) -> None:
        """Raise AccessDenied unless this kind of operation is permitted on everything."""
        self.check(permission)
        if not self.unlimited:
            raise AccessDenied(f"{self.name} may {permission.value} by name only, at a gateway")

    def check_stream(self, permission: Permission, namespace: str, name: str, *, default_namespace: str) -> None:
        """Raise AccessDenied unless this is permitted on a stream. ``name`` may be a prefix: all streams under it."""
        self.check(permission)
        if self.unlimited or namespace in self._namespaces:
            return
        if namespace != default_namespace or not name.startswith(self._streams):
            raise AccessDenied(f"{self.name} may not {permission.value} stream {namespace}/{name}")

    def check_ledger(self, permission: Permission, ledger_id: int, name: str | None) -> None:
        """Raise AccessDenied unless this is permitted on a ledger.

        Args:
            ledger_id: for the message; -1: a ledger to be created.
            name: ``None``: it has no name, so only unlimited principals may access it.
        """
        self.check(permission)
        if self.unlimited or (name is not None and name.startswith(self._ledgers)):
            return
        if ledger_id >= 0:
            what = f"ledger {ledger_id}, if there is one"
        else:
            what = f"a ledger of the name {name!r}" if name else "such a ledger"
        raise AccessDenied(f"{self.name} may not {permission.value} {what}")


UNRESTRICTED: Final = Principal("anybody", frozenset(Permission))
"""The principal of every caller where access is not controlled."""


class OpenAccess:
    """Access without control: for a cluster without security."""

    def principal(self, presented: Presented) -> Principal:
        """The unrestricted principal."""
        return UNRESTRICTED


# -- rules ------------------------------------------------------------------------------------------------------------

_NAME: Final = re.compile(r"[!-~]{1,128}")
_PATTERN: Final = re.compile(r"(?:\*\.)?[!-)+-~]{1,253}(?:/\*)?")


def _name(value: str) -> str:
    if _NAME.fullmatch(value) is None:
        raise ValueError("expected 1 to 128 printable characters without a space")
    return value


def _patterns(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if _PATTERN.fullmatch(value) is None:
            raise ValueError(
                f"{value!r} is not a name of a certificate: expected HOST, *.DOMAIN, an address, URI or URI/*"
            )
    return values


Words = Annotated[tuple[str, ...], Field(max_length=_MAX_WORDS)]


class PrincipalRule(Settings):
    """One ``[[principal]]`` of the file."""

    name: Annotated[str, AfterValidator(_name)] = Field(default=..., description="Name, for logs and messages.")
    roles: tuple[Role, ...] = Field(default=..., min_length=1, description="Roles: reader, writer, bookie, admin.")
    certificates: Annotated[Words, AfterValidator(_patterns)] = Field(
        default=(),
        description="Names in certificates: hosts, *.DOMAIN (one part more), addresses, URIs, URI/* (anything below).",
    )
    tokens: Words = Field(default=(), description="Subjects of tokens.")
    streams: Words | None = Field(default=None, description="Prefixes of names of streams in the default namespace.")
    namespaces: Words | None = Field(default=None, description="Namespaces of which it may use all streams.")
    ledgers: Words | None = Field(default=None, description="Prefixes of names of ledgers.")
    max_requests: Count | None = Field(default=None, description="Requests in flight at one process.")
    max_bytes: BufferSize | None = Field(default=None, description="Bytes in flight at one process.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        limited = self.streams is not None or self.namespaces is not None or self.ledgers is not None
        if limited and {Role.BOOKIE, Role.ADMIN} & set(self.roles):
            raise ValueError("bookies and admins cannot be limited to streams, namespaces or ledgers")
        if not self.certificates and not self.tokens:
            raise ValueError("a principal needs certificates or tokens")
        return self

    def build(self) -> Principal:
        """Build the principal."""
        permissions = frozenset[Permission]().union(*(_PERMISSIONS[role] for role in self.roles))
        max_bytes = None if self.max_bytes is None else int(self.max_bytes)
        return Principal(
            self.name,
            permissions,
            streams=self.streams,
            namespaces=None if self.namespaces is None else tuple(self.namespaces),
            ledgers=self.ledgers,
            limits=Limits(self.max_requests, max_bytes),
        )


class AccessFile(Settings):
    """The content of ``access.toml``."""

    audience: str = Field(
        default="tallybook", min_length=1, max_length=255, description="The audience that tokens must have."
    )
    principal: tuple[PrincipalRule, ...] = Field(
        default=(), max_length=MAX_PRINCIPALS, description="In order: the first that matches counts."
    )

    @model_validator(mode="after")
    def _no_name_twice(self) -> Self:
        names = [rule.name for rule in self.principal]
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if twice:
            raise ValueError(f"there are two principals called {twice[0]}")
        return self


class _Match(NamedTuple):
    """A principal that a certificate name matches."""

    number: int
    principal: Principal
    name: str
    """Name in the certificate."""


class AccessRules:
    """Finds the principal of verified credentials: the first in the file that matches."""

    def __init__(self, file: AccessFile) -> None:
        self.audience = file.audience
        self.names = [rule.name for rule in file.principal]
        self._exact: dict[CertificateName, _Match] = {}
        self._patterns: list[tuple[int, CertificateName, Principal]] = []
        self._subjects: dict[str, Principal] = {}
        for number, rule in enumerate(file.principal):
            principal = rule.build()
            for pattern in map(CertificateName.parse, rule.certificates):
                if pattern.is_pattern:
                    self._patterns.append((number, pattern, principal))
                else:
                    self._exact.setdefault(pattern, _Match(number, principal, pattern.text))
            for subject in rule.tokens:
                self._subjects.setdefault(subject, principal)

    def principal(self, credentials: Credentials) -> Principal:
        """The principal of ``credentials``.

        Raises:
            Unauthenticated: there are none.
            AccessDenied: they match no principal.
        """
        if credentials.subject:
            known = self._subjects.get(credentials.subject)
            if known is None:
                raise AccessDenied(f"no principal has the token subject {credentials.subject!r}")
            return known.with_identity(credentials.subject, credentials.until_us)
        if not credentials.certificate:
            raise Unauthenticated("present a certificate or a token")
        found = min(self._matching(credentials.certificate), key=lambda match: match.number, default=None)
        if found is None:
            raise AccessDenied(f"no principal has a certificate of {_listed(credentials.certificate[:4])}")
        return found.principal.with_identity(found.name)

    def _matching(self, names: tuple[CertificateName, ...]) -> Iterator[_Match]:
        for name in names:
            exact = self._exact.get(name)
            if exact is not None:
                yield exact
            for number, pattern, principal in self._patterns:
                if name.matches(pattern):
                    yield _Match(number, principal, name.text)

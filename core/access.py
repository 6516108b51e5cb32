"""Who may do what: roles, and the rules by which credentials become a principal. Pure.

    certificate names, or the subject of a token  ->  AccessRules  ->  Principal  ->  may it?

A *principal* is what an administrator has given a name, roles and limits to. Who fits none is nobody, and may do
nothing. Names of streams and ledgers that a principal is limited to are prefixes. A bookie knows ledgers by their
numbers only, so a limited principal has no access to bookies: it goes through a gateway, which knows the names.

    reader  READ                         writer  READ, WRITE
    bookie  READ, WRITE, KEEP            admin   everything

The rules are the file ``access.toml``; docs/security.md describes it.
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
from .config import Settings
from .errors import AccessDenied, Unauthenticated
from .setting_types import Count, Room

LEDGER_NAME: Final = "name"
"""Key of a ledger's custom metadata under which its name stands, where it has one."""

MAX_PRINCIPALS: Final = 10_000
_MAX_WORDS: Final = 1_000


class Permission(Enum):
    """What there is to be allowed."""

    READ = "read"
    """Read ledgers and streams, and what is known of them."""
    WRITE = "write"
    """Create, append, close, fence and delete them; read on behalf of a subscription."""
    KEEP = "keep"
    """What keeps the cluster itself whole: copies given to bookies, what a bookie holds, a limbo that ends."""
    ADMINISTER = "administer"
    """Change how processes run, and see what they are set to."""


class Role(Enum):
    """What a principal is in the cluster."""

    READER = "reader"
    WRITER = "writer"
    BOOKIE = "bookie"
    """Bookies, gateways, offloaders and repairs: what the cluster is made of."""
    ADMIN = "admin"


_PERMISSIONS: Final = {
    Role.READER: frozenset({Permission.READ}),
    Role.WRITER: frozenset({Permission.READ, Permission.WRITE}),
    Role.BOOKIE: frozenset({Permission.READ, Permission.WRITE, Permission.KEEP}),
    Role.ADMIN: frozenset(Permission),
}


_ROLE_URI: Final = re.compile("tallybook://(reader|writer|bookie|admin)/.+")


def permissions_of_names(names: Iterable[CertificateName]) -> frozenset[Permission] | None:
    """What the names ``tallybook://ROLE/NAME`` of a certificate stand for; ``None`` where it has none of them."""
    roles = [match[1] for name in names if (match := _ROLE_URI.fullmatch(name.text)) is not None]
    return frozenset[Permission]().union(*(_PERMISSIONS[Role(role)] for role in roles)) if roles else None


class Presented(NamedTuple):
    """What came with a connection, or a call."""

    certificate: tuple[CertificateName, ...] = ()
    """The alternative names of the certificate that TLS has checked: hosts, addresses, URIs."""
    authorization: tuple[str, ...] = ()
    """What stood in headers of this name. Nobody has checked it."""
    traceparent: str = ""
    """The trace that it says it is part of. Anything may stand there."""

    def __repr__(self) -> str:
        """Never what is in a header: it may be good."""
        return f"Presented(certificate={_listed(self.certificate)}, {len(self.authorization)} headers)"


def _listed(names: tuple[CertificateName, ...]) -> str:
    return ", ".join(name.text for name in names) or "none"


NOTHING: Final = Presented()


class Credentials(NamedTuple):
    """What a caller has proven of itself. Where both are empty, it has proven nothing."""

    certificate: tuple[CertificateName, ...] = ()
    """The names of a certificate."""
    subject: str = ""
    """The subject of a token."""
    until_us: int | None = None
    """When the token counts no more, in microseconds since the epoch."""


class Access(Protocol):
    """Tells who somebody is."""

    def principal(self, presented: Presented) -> Principal:
        """The principal that has presented this.

        Raises:
            Unauthenticated: it proves nothing: there is none, or it is no good.
            AccessDenied: it is nobody's.
        """


@dataclass(frozen=True, slots=True)
class Limits:
    """What a principal may take of one process at a time."""

    max_requests: int | None = None
    """``None``: no more bound than that of everybody."""
    max_bytes: int | None = None


class Principal:
    """Somebody who may do something.

    Args:
        permissions: what it may do.
        streams, namespaces, ledgers: what that is limited to: prefixes of names of streams in the default namespace,
            namespaces with all their streams, prefixes of names of ledgers. Where all three are ``None``, it may be
            done to whatever there is.
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
        """The name of the certificate, or the subject of the token, by which a caller is this principal."""
        self.until_us: int | None = None
        """When what the caller has shown expires, in microseconds since the epoch; ``None``: not known."""
        self.limits = limits or Limits()
        self._permissions = permissions
        self._streams = streams or ()
        self._namespaces = namespaces or ()
        self._ledgers = ledgers or ()
        self.unlimited = streams is None and namespaces is None and ledgers is None
        """Whether what it may do, it may do everywhere."""

    def __repr__(self) -> str:
        return f"Principal({self.name!r})"

    @property
    def permissions(self) -> frozenset[Permission]:
        """What it may do."""
        return self._permissions

    def known_by(self, identity: str, until_us: int | None = None) -> Self:
        """The same, for one of those who are it."""
        one = copy(self)
        one.identity = identity
        one.until_us = until_us
        return one

    def may(self, permission: Permission) -> bool:
        """Whether it may do this kind of thing, somewhere."""
        return permission in self._permissions

    def check(self, permission: Permission) -> None:
        """Raise AccessDenied unless it may do this kind of thing, somewhere."""
        if not self.may(permission):
            raise AccessDenied(f"{self.name} may not {permission.value}")

    def check_everywhere(self, permission: Permission) -> None:
        """Raise AccessDenied unless it may do this kind of thing, whatever it is done to."""
        self.check(permission)
        if not self.unlimited:
            raise AccessDenied(f"{self.name} may {permission.value} by name only, at a gateway")

    def check_stream(self, permission: Permission, namespace: str, name: str, *, default_namespace: str) -> None:
        """Raise AccessDenied unless it may do this to a stream. ``name`` may be a prefix: all streams under it."""
        self.check(permission)
        if self.unlimited or namespace in self._namespaces:
            return
        if namespace != default_namespace or not name.startswith(self._streams):
            raise AccessDenied(f"{self.name} may not {permission.value} stream {namespace}/{name}")

    def check_ledger(self, permission: Permission, ledger_id: int, name: str | None) -> None:
        """Raise AccessDenied unless it may do this to a ledger.

        Args:
            ledger_id: for the message; -1: one that is to be made.
            name: ``None``: it has none, and so belongs to unlimited principals only.
        """
        self.check(permission)
        if self.unlimited or (name is not None and name.startswith(self._ledgers)):
            return
        if ledger_id >= 0:
            what = f"ledger {ledger_id}, if there is one"
        else:
            what = f"a ledger of the name {name!r}" if name else "such a ledger"
        raise AccessDenied(f"{self.name} may not {permission.value} {what}")


ANYBODY: Final = Principal("anybody", frozenset(Permission))
"""Everybody, where access is not controlled."""


class OpenAccess:
    """Access that is not controlled."""

    def principal(self, presented: Presented) -> Principal:
        """Anybody."""
        return ANYBODY


# -- rules ------------------------------------------------------------------------------------------------------------

_NAME: Final = re.compile(r"[!-~]{1,128}")
_PATTERN: Final = re.compile(r"(?:\*\.)?[!-)+-~]{1,253}(?:/\*)?")


def _name(value: str) -> str:
    if _NAME.fullmatch(value) is None:
        raise ValueError("1 to 128 printable characters without a space are wanted")
    return value


def _patterns(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if _PATTERN.fullmatch(value) is None:
            raise ValueError(
                f"{value!r} is not a name of a certificate: HOST, *.DOMAIN, an address, URI or URI/* is wanted"
            )
    return values


Words = Annotated[tuple[str, ...], Field(max_length=_MAX_WORDS)]


class PrincipalRule(Settings):
    """One ``[[principal]]`` of the file."""

    name: Annotated[str, AfterValidator(_name)] = Field(..., description="Name, for logs and messages.")
    roles: tuple[Role, ...] = Field(..., min_length=1, description="What it is: reader, writer, bookie, admin.")
    certificates: Annotated[Words, AfterValidator(_patterns)] = Field(
        (),
        description="Names in certificates: hosts, *.DOMAIN (one part more), addresses, URIs, URI/* (anything below).",
    )
    tokens: Words = Field((), description="Subjects of tokens.")
    streams: Words | None = Field(None, description="Prefixes of names of streams in the default namespace.")
    namespaces: Words | None = Field(None, description="Namespaces of which it may use all streams.")
    ledgers: Words | None = Field(None, description="Prefixes of names of ledgers.")
    max_requests: Count | None = Field(None, description="Requests under way at one process.")
    max_bytes: Room | None = Field(None, description="Bytes under way at one process.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        limited = self.streams is not None or self.namespaces is not None or self.ledgers is not None
        if limited and {Role.BOOKIE, Role.ADMIN} & set(self.roles):
            raise ValueError("bookies and admins cannot be limited to streams, namespaces or ledgers")
        if not self.certificates and not self.tokens:
            raise ValueError("nobody can be it: certificates or tokens are wanted")
        return self

    def made(self) -> Principal:
        """The principal."""
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
    """The whole of ``access.toml``."""

    audience: str = Field("tallybook", min_length=1, max_length=255, description="Whom tokens must be meant for.")
    principal: tuple[PrincipalRule, ...] = Field(
        (), max_length=MAX_PRINCIPALS, description="In this order: the first fits."
    )

    @model_validator(mode="after")
    def _no_name_twice(self) -> Self:
        names = [rule.name for rule in self.principal]
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if twice:
            raise ValueError(f"there are two principals called {twice[0]}")
        return self


class _Fit(NamedTuple):
    """A principal that somebody may be."""

    number: int
    principal: Principal
    name: str
    """Of the certificate."""


class AccessRules:
    """Finds the principal that credentials belong to: the first of the file that they fit."""

    def __init__(self, file: AccessFile) -> None:
        self.audience = file.audience
        self.names = [rule.name for rule in file.principal]
        self._exact: dict[CertificateName, _Fit] = {}
        self._patterns: list[tuple[int, CertificateName, Principal]] = []
        self._subjects: dict[str, Principal] = {}
        for number, rule in enumerate(file.principal):
            principal = rule.made()
            for pattern in map(CertificateName.written, rule.certificates):
                if pattern.is_pattern:
                    self._patterns.append((number, pattern, principal))
                else:
                    self._exact.setdefault(pattern, _Fit(number, principal, pattern.text))
            for subject in rule.tokens:
                self._subjects.setdefault(subject, principal)

    def principal(self, credentials: Credentials) -> Principal:
        """Whose credentials these are.

        Raises:
            Unauthenticated: there are none.
            AccessDenied: they are nobody's.
        """
        if credentials.subject:
            known = self._subjects.get(credentials.subject)
            if known is None:
                raise AccessDenied(f"no principal has the token subject {credentials.subject!r}")
            return known.known_by(credentials.subject, credentials.until_us)
        if not credentials.certificate:
            raise Unauthenticated("a certificate or a token is wanted")
        found = min(self._fitting(credentials.certificate), key=lambda fit: fit.number, default=None)
        if found is None:
            raise AccessDenied(f"no principal has a certificate of {_listed(credentials.certificate[:4])}")
        return found.principal.known_by(found.name)

    def _fitting(self, names: tuple[CertificateName, ...]) -> Iterator[_Fit]:
        for name in names:
            exact = self._exact.get(name)
            if exact is not None:
                yield exact
            for number, pattern, principal in self._patterns:
                if name.fits(pattern):
                    yield _Fit(number, principal, name.text)

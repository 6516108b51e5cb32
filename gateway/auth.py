"""Authentication and authorization of gateway RPCs.

    call starts      authenticate, check the permission that the method needs     before the request is read
    request arrives  check the permission on the named ledger or stream           before it is executed
    call continues   repeat all checks                                            periodically while the call lasts

The gateway accesses the cluster with its own credentials, so no component behind it authorizes its clients again.
A method without an entry in ``PERMISSIONS`` is not served.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from tallybook.client.client import Client
from tallybook.core.access import LEDGER_NAME, Access, Permission, Principal
from tallybook.core.errors import AccessDenied, NoSuchLedger, Outcome, TallybookError, Unauthenticated
from tallybook.runtime.audit import audit
from tallybook.runtime.calls import Call
from tallybook.runtime.security.denial_log import DenialLog
from tallybook.stream.names import DEFAULT_NAMESPACE

_READ, _WRITE = Permission.READ, Permission.WRITE

PERMISSIONS: Final = {
    "LedgerService/Append": _WRITE,
    "LedgerService/Close": _WRITE,
    "LedgerService/Create": _WRITE,
    "LedgerService/Delete": _WRITE,
    "LedgerService/Describe": _READ,
    "LedgerService/List": _READ,
    "LedgerService/Read": _READ,
    "LedgerService/Recover": _WRITE,
    "LedgerService/Tail": _READ,
    "StreamService/Append": _WRITE,
    "StreamService/Create": _WRITE,
    "StreamService/Delete": _WRITE,
    "StreamService/DeleteSubscription": _WRITE,
    "StreamService/Describe": _READ,
    "StreamService/End": _WRITE,
    "StreamService/List": _READ,
    "StreamService/ListSubscriptions": _READ,
    "StreamService/Read": _READ,
    "StreamService/Rename": _WRITE,
    "StreamService/ResetSubscription": _WRITE,
    "StreamService/SetPolicy": _WRITE,
    # Subscribe writes only the position of the subscription, so READ is enough.
    "StreamService/Subscribe": _READ,
    "StreamService/Truncate": _WRITE,
}
"""The permission that each method requires."""


AuthorizationCheck: TypeAlias = Callable[[Principal], Awaitable[None]]
"""Raises AccessDenied unless the principal is authorized for what a call does."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated principal of a call, with the checks that the call has passed and the denials it got."""

    peer: str
    """Address of the connection."""
    principal: Principal
    log_fields: dict[str, object] = field(default_factory=dict, compare=False)
    """Fields of the log lines of the call, such as its ledger."""
    checks: list[AuthorizationCheck] = field(default_factory=list, compare=False)
    """Checks passed so far; reauthorization repeats them."""
    denied: list[TallybookError] = field(default_factory=list, compare=False)
    """Errors with which the authorizer denied this call. Other access errors come from the cluster and deny the
    gateway, not its client."""

    @contextmanager
    def recording_denials(self) -> Iterator[None]:
        """Record access errors raised inside the block as denials of this caller."""
        try:
            yield
        except (AccessDenied, Unauthenticated) as error:
            self.denied.append(error)
            raise


class AuthorizedCall(Call, Protocol):
    """A call whose caller is authenticated and may call its method."""

    @property
    def caller(self) -> Caller:
        """The caller."""


class Authorizer:
    """Authenticates callers and authorizes their requests.

    Args:
        access: maps credentials to principals.
        client: reads the names of ledgers.
        denials: the denial log of the process.
        authenticated: called with the connection of each authenticated call.
    """

    def __init__(
        self,
        access: Access,
        client: Client,
        denials: DenialLog,
        authenticated: Callable[[str], None] = lambda _peer: None,
    ) -> None:
        self._access = access
        self._authenticated = authenticated
        self.denials = denials
        """Log of failed authentications, denied requests and wrong passwords."""
        self._client = client

    def authenticate(self, method: str, call: Call) -> Caller:
        """Authenticate the caller and check that it may call this method.

        Raises:
            Unauthenticated: missing or invalid credentials.
            AccessDenied: the principal lacks the permission that the method requires.
        """
        principal = self._access.principal(call.presented)
        self._authenticated(call.peer)
        principal.check(PERMISSIONS[method])
        return Caller(call.peer, principal)

    async def reauthorize(self, method: str, call: Call, caller: Caller) -> Principal:
        """Repeat all checks of a running call: tokens expire, and token keys and rules change.

        Raises:
            Unauthenticated, AccessDenied: the caller is no longer authorized. The outcome of requests in flight is
                unknown.
            MetadataUnavailable: the rules changed and the name of the ledger cannot be read.
        """
        unknown = Outcome.UNKNOWN
        try:
            with caller.recording_denials():
                principal = self._access.principal(call.presented)
                principal.check(PERMISSIONS[method])
            for check in caller.checks:
                await check(principal)
        except TallybookError as error:
            if error not in caller.denied:
                raise error.with_outcome(unknown) from None
            with caller.recording_denials():
                if isinstance(error, Unauthenticated):
                    why = f"the call was ended: {error.message}; then call again"
                    raise Unauthenticated(why, outcome=unknown) from None
                raise AccessDenied(f"the call was ended: {error.message}", outcome=unknown) from None
        return principal

    async def check_ledger(self, caller: Caller, permission: Permission, ledger_id: int) -> None:
        """Check that the caller has a permission on a ledger.

        Raises:
            AccessDenied: it has not; or it is limited to names, and the ledger does not exist.
            MetadataUnavailable: the name of the ledger cannot be read.
        """
        caller.log_fields["ledger_id"] = ledger_id
        named: list[str | None] = []
        """The name of the ledger once it was read; it never changes."""

        async def check(principal: Principal) -> None:
            with caller.recording_denials():
                principal.check(permission)
            if principal.unlimited:
                return
            try:
                if not named:
                    named.append(_ledger_name((await self._client.ledger_metadata(ledger_id)).custom))
            except NoSuchLedger:
                # A principal limited to names must not learn which other ids exist.
                with caller.recording_denials():
                    principal.check_ledger(permission, ledger_id, None)
            with caller.recording_denials():
                principal.check_ledger(permission, ledger_id, named[0])

        await check(caller.principal)
        caller.checks.append(check)

    @staticmethod
    def check_new_ledger(caller: Caller, custom: Mapping[str, bytes]) -> None:
        """Check that the caller may create a ledger with this custom metadata.

        Raises:
            AccessDenied: it may not create ledgers, or none with this name.
        """
        name = _ledger_name(custom)
        _check(caller, lambda principal: principal.check_ledger(_WRITE, -1, name))

    @staticmethod
    def check_all_ledgers(caller: Caller, permission: Permission) -> None:
        """Check that the caller has a permission on all ledgers.

        Raises:
            AccessDenied: it has not.
        """
        _check(caller, lambda principal: principal.check_everywhere(permission))

    @staticmethod
    def check_stream(caller: Caller, permission: Permission, namespace: str, name: str) -> None:
        """Check that the caller has a permission on a stream, or on all streams whose names begin with ``name``.

        Raises:
            AccessDenied: it has not.
        """
        # A rename checks the old name, then the new one: the log shows the old one.
        caller.log_fields.setdefault("stream", name)
        caller.log_fields.setdefault("namespace", namespace)
        namespace = namespace or DEFAULT_NAMESPACE
        _check(
            caller,
            lambda principal: principal.check_stream(permission, namespace, name, default_namespace=DEFAULT_NAMESPACE),
        )


def _check(caller: Caller, check: Callable[[Principal], None]) -> None:
    """Run a check that needs no I/O, and keep it for reauthorization."""

    async def again(principal: Principal) -> None:
        with caller.recording_denials():
            check(principal)

    with caller.recording_denials():
        check(caller.principal)
    caller.checks.append(again)


def audit_call(caller: Caller, action: str, **what: object) -> None:
    """Write an irreversible action of a caller to the audit log."""
    audit(action, caller.principal, caller.peer, **what)


def _ledger_name(custom: Mapping[str, bytes]) -> str | None:
    name = custom.get(LEDGER_NAME)
    if name is None:
        return None
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None

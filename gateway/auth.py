"""Authentication and authorization at a gateway: who calls, and whether they may.

    call -> who is it? -> may they call this method at all?             before anything of the call is read
         -> request    -> may they do it to this stream, this ledger?   before anything is done
         -> goes on    -> all of this, again                            now and then, while the call lasts

A gateway acts on behalf of its clients with powers of its own, so nobody behind it asks again. Every method has a line
in the tables below; one that has none is not served.
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
from tallybook.runtime.refusals import Refusals
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
    # Who reads by a subscription keeps its position in it, and changes nothing else.
    "StreamService/Subscribe": _READ,
    "StreamService/Truncate": _WRITE,
}
"""What each method takes."""


Check: TypeAlias = Callable[[Principal], Awaitable[None]]
"""Raises AccessDenied unless a principal may do what a call does."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The principal that has made a call, and what it was allowed and refused."""

    peer: str
    """The connection."""
    principal: Principal
    about: dict[str, object] = field(default_factory=dict, compare=False)
    """What the call turned out to be about: fields of a line in the log."""
    checks: list[Check] = field(default_factory=list, compare=False)
    """What it was found to be allowed so far."""
    refusals: list[TallybookError] = field(default_factory=list, compare=False)
    """What the authorizer refused it with. What else is denied is denied to the gateway itself, by those it asks."""

    @contextmanager
    def noting_refusals(self) -> Iterator[None]:
        """Note what is denied inside the block as denied to this caller."""
        try:
            yield
        except (AccessDenied, Unauthenticated) as error:
            self.refusals.append(error)
            raise


class AuthorizedCall(Call, Protocol):
    """A call whose caller was authenticated, and may call its method."""

    @property
    def caller(self) -> Caller:
        """Whose it is."""


class Authorizer:
    """Authenticates callers, and checks what each of them asks for.

    Args:
        access: tells who a caller is.
        client: knows the names of ledgers.
        refusals: those of the process.
        authenticated: told of the connection of each call that was authenticated.
    """

    def __init__(
        self,
        access: Access,
        client: Client,
        refusals: Refusals,
        authenticated: Callable[[str], None] = lambda _peer: None,
    ) -> None:
        self._access = access
        self._authenticated = authenticated
        self.refusals = refusals
        """Those who were not let in, may not do what they wanted, or have said a wrong password."""
        self._client = client

    def let_in(self, method: str, call: Call) -> Caller:
        """Who makes this call.

        Raises:
            Unauthenticated, AccessDenied: nobody who may.
        """
        principal = self._access.principal(call.presented)
        self._authenticated(call.peer)
        principal.check(PERMISSIONS[method])
        return Caller(call.peer, principal)

    async def look_again(self, method: str, call: Call, caller: Caller) -> Principal:
        """Who makes a call that was let in, by now: keys of tokens and rules may be others, and tokens expire.

        Raises:
            Unauthenticated, AccessDenied: nobody who may, any more. What was under way may be done or not.
            MetadataUnavailable: its rights are others, and what the ledger is called cannot be told.
        """
        unknown = Outcome.UNKNOWN
        try:
            with caller.noting_refusals():
                principal = self._access.principal(call.presented)
                principal.check(PERMISSIONS[method])
            for check in caller.checks:
                await check(principal)
        except TallybookError as error:
            if error not in caller.refusals:
                raise error.told_as(unknown) from None
            with caller.noting_refusals():
                if isinstance(error, Unauthenticated):
                    why = f"the call is over, for {error.message}: call again with one that counts"
                    raise Unauthenticated(why, outcome=unknown) from None
                raise AccessDenied(f"the call is over: {error.message}", outcome=unknown) from None
        return principal

    async def check_ledger(self, caller: Caller, permission: Permission, ledger_id: int) -> None:
        """See that a caller may do this to a ledger.

        Raises:
            AccessDenied: it may not; or it is limited to names, and there is no such ledger.
            MetadataUnavailable: what the ledger is called cannot be told.
        """
        caller.about["ledger_id"] = ledger_id
        named: list[str | None] = []
        """What it is called, once that was asked: it stays so."""

        async def check(principal: Principal) -> None:
            with caller.noting_refusals():
                principal.check(permission)
            if principal.unlimited:
                return
            try:
                if not named:
                    named.append(_name_of((await self._client.ledger_metadata(ledger_id)).custom))
            except NoSuchLedger:
                # A limited principal must not learn which ids of others exist.
                with caller.noting_refusals():
                    principal.check_ledger(permission, ledger_id, None)
            with caller.noting_refusals():
                principal.check_ledger(permission, ledger_id, named[0])

        await check(caller.principal)
        caller.checks.append(check)

    @staticmethod
    def check_new_ledger(caller: Caller, custom: Mapping[str, bytes]) -> None:
        """See that a caller may make a ledger that has this custom metadata.

        Raises:
            AccessDenied: it may not, or not under this name.
        """
        name = _name_of(custom)
        _check(caller, lambda principal: principal.check_ledger(_WRITE, -1, name))

    @staticmethod
    def check_all_ledgers(caller: Caller, permission: Permission) -> None:
        """See that a caller may do this to all ledgers.

        Raises:
            AccessDenied: it may not.
        """
        _check(caller, lambda principal: principal.check_everywhere(permission))

    @staticmethod
    def check_stream(caller: Caller, permission: Permission, namespace: str, name: str) -> None:
        """See that a caller may do this to a stream, or to all whose names begin with ``name``.

        Raises:
            AccessDenied: it may not.
        """
        # Of two, the first one is meant: the other is its new name.
        caller.about.setdefault("stream", name)
        caller.about.setdefault("namespace", namespace)
        place = namespace or DEFAULT_NAMESPACE
        _check(
            caller,
            lambda principal: principal.check_stream(permission, place, name, default_namespace=DEFAULT_NAMESPACE),
        )


def _check(caller: Caller, check: Callable[[Principal], None]) -> None:
    """Check what is known at once, and keep it for later."""

    async def again(principal: Principal) -> None:
        with caller.noting_refusals():
            check(principal)

    with caller.noting_refusals():
        check(caller.principal)
    caller.checks.append(again)


def audited(caller: Caller, action: str, **what: object) -> None:
    """Note what a caller does that cannot be undone."""
    audit(action, caller.principal, caller.peer, **what)


def _name_of(custom: Mapping[str, bytes]) -> str | None:
    name = custom.get(LEDGER_NAME)
    if name is None:
        return None
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None

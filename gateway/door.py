"""The door of a gateway: who calls, and whether he may.

    call -> who is it? -> may he do that kind of thing at all?          before anything of the call is read
         -> request    -> may he do it to this stream, this ledger?     before anything is done
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
    # Who reads by a subscription keeps its position in it, and that is all he changes.
    "StreamService/Subscribe": _READ,
    "StreamService/Truncate": _WRITE,
}
"""What each method takes."""


Check: TypeAlias = Callable[[Principal], Awaitable[None]]
"""Raises AccessDenied unless a principal may do what a call does."""


@dataclass(frozen=True, slots=True)
class Guest:
    """Whoever has made a call."""

    peer: str
    """The connection."""
    principal: Principal
    about: dict[str, object] = field(default_factory=dict, compare=False)
    """What the call turned out to be about: fields of a line in the log."""
    checks: list[Check] = field(default_factory=list, compare=False)
    """What he was found to be allowed so far."""
    refusals: list[TallybookError] = field(default_factory=list, compare=False)
    """What the door has refused him with. What else is denied is denied to the gateway itself, by those it asks."""

    @contextmanager
    def judged(self) -> Iterator[None]:
        """What says in here that somebody may not says it of him."""
        try:
            yield
        except (AccessDenied, Unauthenticated) as error:
            self.refusals.append(error)
            raise


class GuestCall(Call, Protocol):
    """A call of somebody who was let in."""

    @property
    def guest(self) -> Guest:
        """Whose it is."""


class Door:
    """Lets clients in, and to what is theirs.

    Args:
        access: tells who somebody is.
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

    def let_in(self, method: str, call: Call) -> Guest:
        """Who makes this call.

        Raises:
            Unauthenticated, AccessDenied: nobody who may.
        """
        principal = self._access.principal(call.presented)
        self._authenticated(call.peer)
        principal.check(PERMISSIONS[method])
        return Guest(call.peer, principal)

    async def look_again(self, method: str, call: Call, guest: Guest) -> Principal:
        """Who makes a call that was let in, by now: keys of tokens and rules may be others, and tokens expire.

        Raises:
            Unauthenticated, AccessDenied: nobody who may, any more. What was under way may be done or not.
            MetadataUnavailable: his rights are others, and what the ledger is called cannot be told.
        """
        unknown = Outcome.UNKNOWN
        try:
            with guest.judged():
                principal = self._access.principal(call.presented)
                principal.check(PERMISSIONS[method])
            for check in guest.checks:
                await check(principal)
        except TallybookError as error:
            if error not in guest.refusals:
                raise error.told_as(unknown) from None
            with guest.judged():
                if isinstance(error, Unauthenticated):
                    why = f"the call is over, for {error.message}: call again with one that counts"
                    raise Unauthenticated(why, outcome=unknown) from None
                raise AccessDenied(f"the call is over: {error.message}", outcome=unknown) from None
        return principal

    async def check_ledger(self, guest: Guest, permission: Permission, ledger_id: int) -> None:
        """See that a guest may do this to a ledger.

        Raises:
            AccessDenied: it may not; or it is limited to names, and there is no such ledger.
            MetadataUnavailable: what the ledger is called cannot be told.
        """
        guest.about["ledger_id"] = ledger_id
        named: list[str | None] = []
        """What it is called, once that was asked: it stays so."""

        async def check(principal: Principal) -> None:
            with guest.judged():
                principal.check(permission)
            if principal.unlimited:
                return
            try:
                if not named:
                    named.append(_name_of((await self._client.ledger_metadata(ledger_id)).custom))
            except NoSuchLedger:
                # A limited principal must not learn which ids of others exist.
                with guest.judged():
                    principal.check_ledger(permission, ledger_id, None)
            with guest.judged():
                principal.check_ledger(permission, ledger_id, named[0])

        await check(guest.principal)
        guest.checks.append(check)

    @staticmethod
    def check_new_ledger(guest: Guest, custom: Mapping[str, bytes]) -> None:
        """See that a guest may make a ledger that has this custom metadata.

        Raises:
            AccessDenied: he may not, or not under this name.
        """
        name = _name_of(custom)
        _check(guest, lambda principal: principal.check_ledger(_WRITE, -1, name))

    @staticmethod
    def check_all_ledgers(guest: Guest, permission: Permission) -> None:
        """See that a guest may do this to whatever ledgers there are.

        Raises:
            AccessDenied: he may not.
        """
        _check(guest, lambda principal: principal.check_everywhere(permission))

    @staticmethod
    def check_stream(guest: Guest, permission: Permission, namespace: str, name: str) -> None:
        """See that a guest may do this to a stream, or to all whose names begin with ``name``.

        Raises:
            AccessDenied: he may not.
        """
        # Of two, the first one is meant: the other is its new name.
        guest.about.setdefault("stream", name)
        guest.about.setdefault("namespace", namespace)
        place = namespace or DEFAULT_NAMESPACE
        _check(
            guest,
            lambda principal: principal.check_stream(permission, place, name, default_namespace=DEFAULT_NAMESPACE),
        )


def _check(guest: Guest, check: Callable[[Principal], None]) -> None:
    """Check what is known at once, and keep it for later."""

    async def again(principal: Principal) -> None:
        with guest.judged():
            check(principal)

    with guest.judged():
        check(guest.principal)
    guest.checks.append(again)


def audited(guest: Guest, action: str, **what: object) -> None:
    """Note what a guest does that cannot be undone."""
    audit(action, guest.principal, guest.peer, **what)


def _name_of(custom: Mapping[str, bytes]) -> str | None:
    name = custom.get(LEDGER_NAME)
    if name is None:
        return None
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None

"""Asks bookies whether this process may change the metadata: to run an operator's command, or as a client.

Both write the store without any server in between. With security on, a bookie is asked before: it knows the principal
by the certificate of the connection and the rules of ``access.toml``, and says yes or no. A command that it allows is
in its audit log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from tallybook.core.access import Permission
from tallybook.core.errors import (
    AccessDenied,
    HandleClosed,
    InvalidArgument,
    MetadataUnavailable,
    PeerError,
    TallybookError,
    Unauthenticated,
)
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks

from .background import client_tasks
from .ports import ClientWorld

NEXT_SECONDS: Final = 1.0
"""After so long without an answer another bookie is asked, too."""
ASK_SECONDS: Final = 10.0
"""How long it takes at most until it is known that no bookie can say."""

RENEW_SECONDS: Final = 30.0
"""A yes that is older is renewed in the background when there is a change."""
ALLOWED_SECONDS: Final = 60.0
"""A change waits for the renewal of a yes that is older..."""
PATIENCE_SECONDS: Final = 1.0
"""... for so long: after that the old one counts, until a bookie says no."""

_log = logger("client.authorization")


class Said(NamedTuple):
    """What bookies said to a question to which none said no."""

    by: str | None
    """The bookie that said yes; ``None``: none could say."""
    too_old: bool = False
    """Whether one answered that does not know this kind of request."""


async def authorize(
    world: ClientWorld, permission: Permission, command: str = "", arguments: Sequence[str] = ("",)
) -> Said:
    """Ask bookies whether this process has a permission, until one says; within ``ASK_SECONDS`` for all of them.

    Args:
        command: which command is to be noted by the bookie that says yes; empty: nothing is.
        arguments: of that command, in as many parts as the lines of the audit log that they take.

    Raises:
        AccessDenied: a bookie said no.
        MetadataUnavailable: the living bookies are not known.
    """
    living = world.rng.fork("authorization").shuffled(list(await world.membership.bookies()))
    asked: list[asyncio.Task[Said]] = []
    tasks, too_old = client_tasks("authorization"), False
    try:
        async with asyncio.timeout(ASK_SECONDS):
            while living or asked:
                if living:
                    work = _ask(world, living.pop(0), permission, command, arguments)
                    asked.append(tasks.spawn(work, name="ask"))
                await asyncio.wait(asked, timeout=NEXT_SECONDS if living else None, return_when=asyncio.FIRST_COMPLETED)
                for said in [each.result() for each in asked if each.done()]:
                    if said.by is not None:
                        return said
                    too_old |= said.too_old
                asked = [each for each in asked if not each.done()]
    except TimeoutError:
        _log.info("no bookie says whether a change is allowed", seconds=ASK_SECONDS)
    finally:
        await tasks.close()
    return Said(None, too_old)


async def _ask(
    world: ClientWorld, bookie_id: str, permission: Permission, command: str, arguments: Sequence[str]
) -> Said:
    try:
        connection = await world.connections.get(bookie_id)
        for part in arguments:
            await connection.authorize(permission, command, part)
    except (AccessDenied, Unauthenticated) as error:
        what = f"'{command}'" if command else f"the permission to {permission.value}"
        raise AccessDenied(f"{what} is refused by {bookie_id}: {error.message}") from error
    except (InvalidArgument, PeerError) as error:
        _log.info("a bookie cannot say whether a change is allowed", bookie_id=bookie_id, error=error.message)
        return Said(None, isinstance(error, InvalidArgument))
    return Said(bookie_id)


class WriteGuard:
    """Guards the metadata of a client whose own rules do not say whether it may write: a bookie is asked.

    A yes is renewed in the background while the client makes changes. It counts for as long as no bookie can say,
    because an ensemble change must not fail, nor wait, because bookies hang.

    Args:
        name: of the client, for messages.
        ask: whether it may write.
        by_role: whether the role in its certificate lets it write, which counts at bookies that are too old to say.
    """

    def __init__(
        self, name: str, clock: Clock, tasks: Tasks, ask: Callable[[], Awaitable[Said]], *, by_role: bool = False
    ) -> None:
        self._name = name
        self._clock = clock
        self._tasks = tasks
        self._ask = ask
        self._by_role = by_role
        self._allowed_at: float | None = None
        self._asking: asyncio.Task[TallybookError | None] | None = None
        self._asked_at = 0.0

    def allow(self) -> None:
        """Take it as allowed: it was asked for more."""
        self._allowed_at = self._clock.monotonic()

    async def __call__(self, change: str) -> None:
        """Return if ``change`` may be made.

        Raises:
            AccessDenied: it may not.
            MetadataUnavailable: no bookie can say, and none has.
            HandleClosed: the client was closed meanwhile.
        """
        now, allowed_at = self._clock.monotonic(), self._allowed_at
        if allowed_at is not None and now < allowed_at + RENEW_SECONDS:
            return
        if self._asking is None or self._asking.done():
            self._asking, self._asked_at = self._tasks.spawn(self._renew(), name="authorization", apart=True), now
        asking = self._asking
        if allowed_at is None:
            await asyncio.wait([asking])
        elif now >= allowed_at + ALLOWED_SECONDS and now < self._asked_at + PATIENCE_SECONDS:
            await asyncio.wait([asking], timeout=self._asked_at + PATIENCE_SECONDS - now)
        if asking.cancelled():
            raise HandleClosed(f"the client is closed: {change} was not done")
        error = asking.result() if asking.done() else None
        if error is not None:
            raise type(error)(f"{error.message}: {change} was not done") from error

    async def _renew(self) -> TallybookError | None:
        """Ask; why the client may not write, if so."""
        try:
            said = await self._ask()
        except AccessDenied as error:
            self._allowed_at = None
            return error
        except MetadataUnavailable as error:
            if self._allowed_at is None:
                return error
            said = Said(None)
        if said.by is None and self._allowed_at is None and not (said.too_old and self._by_role):
            return MetadataUnavailable(f"no bookie can say whether {self._name} may change the metadata")
        self.allow()
        return None

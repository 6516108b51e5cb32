"""Asks bookies whether this process may run an operator's command, which changes the metadata store itself.

A command that changes metadata writes the store without any server in between. With security on, a bookie is asked
before: it knows the principal by the certificate of the connection and the rules of ``access.toml``, says yes or no,
and notes a yes in its audit log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tallybook.core.access import Permission
from tallybook.core.errors import (
    AccessDenied,
    InvalidArgument,
    MetadataUnavailable,
    PeerError,
    TallybookError,
    Unauthenticated,
)
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger

from .ports import ClientWorld

MAX_ASKED: Final = 3
ASK_SECONDS: Final = 5.0
"""How long one bookie may take."""

ALLOWED_SECONDS: Final = 60.0
"""How long a yes counts for the changes of a client."""

_log = logger("client.authorization")


async def authorize(world: ClientWorld, permission: Permission, command: str, arguments: str) -> str | None:
    """Ask one bookie after the other, at most ``MAX_ASKED``. Without a command nothing is noted.

    Returns:
        The bookie that said yes and noted it; ``None`` where none could say: they do not answer, or are too old.

    Raises:
        AccessDenied: a bookie said no.
        MetadataUnavailable: the living bookies are not known.
    """
    living = world.rng.fork("authorization").shuffled(list(await world.membership.bookies()))
    for bookie_id in living[:MAX_ASKED]:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                connection = await world.connections.get(bookie_id)
                await connection.authorize(permission, command, arguments)
        except (AccessDenied, Unauthenticated) as error:
            what = f"'{command}'" if command else f"the permission to {permission.value}"
            raise AccessDenied(f"{what} is refused by {bookie_id}: {error.message}") from error
        except (InvalidArgument, PeerError, TimeoutError) as error:
            reason = error.message if isinstance(error, TallybookError) else f"no answer within {ASK_SECONDS} s"
            _log.info("a bookie cannot say whether a command is allowed", bookie_id=bookie_id, error=reason)
            continue
        return bookie_id
    return None


class WriteGuard:
    """Guards the metadata of a client whose own directory does not say whether it may write: a bookie is asked.

    A yes counts for ``ALLOWED_SECONDS``, and for longer while no bookie can say: an ensemble change must not fail
    because bookies did.

    Args:
        name: of the client, for messages.
        ask: whether it may write; ``None`` where no bookie can say.
    """

    def __init__(self, name: str, clock: Clock, ask: Callable[[], Awaitable[str | None]]) -> None:
        self._name = name
        self._clock = clock
        self._ask = ask
        self._asking = asyncio.Lock()
        self._allowed_until: float | None = None

    async def __call__(self, change: str) -> None:
        """Return if ``change`` may be made.

        Raises:
            AccessDenied: it may not.
            MetadataUnavailable: no bookie can say, and none has.
        """
        async with self._asking:
            if self._allowed_until is not None and self._clock.monotonic() < self._allowed_until:
                return
            if await self._ask() is None and self._allowed_until is None:
                raise MetadataUnavailable(
                    f"no bookie can say whether {self._name} may change the metadata: {change} was not done"
                )
            self._allowed_until = self._clock.monotonic() + ALLOWED_SECONDS

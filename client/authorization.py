"""Asks bookies whether this process may run an operator's command, which changes the metadata store itself.

A command that changes metadata writes the store without any server in between. With security on, a bookie is asked
before: it knows the principal by the certificate of the connection and the rules of ``access.toml``, says yes or no,
and notes a yes in its audit log.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tallybook.core.access import Permission
from tallybook.core.errors import AccessDenied, InvalidArgument, PeerError, TallybookError, Unauthenticated
from tallybook.runtime.logging import logger

from .ports import ClientWorld

MAX_ASKED: Final = 3
ASK_SECONDS: Final = 5.0
"""How long one bookie may take."""

_log = logger("client.authorization")


async def authorize(world: ClientWorld, permission: Permission, command: str, arguments: str) -> str | None:
    """Ask one bookie after the other, at most ``MAX_ASKED``.

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
            raise AccessDenied(f"'{command}' is refused by {bookie_id}: {error.message}") from error
        except (InvalidArgument, PeerError, TimeoutError) as error:
            reason = error.message if isinstance(error, TallybookError) else f"no answer within {ASK_SECONDS} s"
            _log.info("a bookie cannot say whether a command is allowed", bookie_id=bookie_id, error=reason)
            continue
        return bookie_id
    return None

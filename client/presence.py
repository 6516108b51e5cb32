"""Asks members of an open ledger's last fragment for its inventory: possible losses, and whether it has a writer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from tallybook.core.answers import HeldAnswer
from tallybook.core.errors import OtherLedger, PeerError, StorageError, TallybookError
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.runtime.logging import logger

from .ports import Connections
from .refusals import is_refusal

_log = logger("client.presence")


async def ask_members(
    connections: Connections, metadata: LedgerMetadata, names: Collection[str]
) -> dict[str, HeldAnswer | None]:
    """The answers of the members of the last fragment that are in ``names``; ``None`` for a member that is unavailable
    or refuses this client.

    Raises:
        NoSuchLedger: the ledger was deleted.
    """
    members = [name for name in metadata.last_fragment.bookies if name in names]
    said = await asyncio.gather(*(_ask(connections, metadata, name) for name in members))
    return dict(zip(members, said, strict=True))


async def _ask(connections: Connections, metadata: LedgerMetadata, name: str) -> HeldAnswer | None:
    first = metadata.last_fragment.first_entry_id
    try:
        connection = await connections.get(name)
        return await connection.held(metadata.ledger_id, first, first, identity=metadata.identity)
    except TallybookError as error:
        if not (isinstance(error, PeerError | StorageError | OtherLedger) or is_refusal(error)):
            raise
        _log.info("a bookie does not say what it holds", bookie_id=name, error=error.message)
        return None

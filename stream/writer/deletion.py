"""Deletes ledgers of a stream, for its writer and for the janitor."""

from __future__ import annotations

from collections.abc import Iterable

from tallybook.client.client import Client
from tallybook.core.errors import (
    DamagedFile,
    MetadataConflict,
    MetadataOutcomeUnknown,
    NewerFormat,
    NoSuchLedger,
    TallybookError,
)
from tallybook.runtime.logging import logger

_log = logger("stream.deleting")


async def delete_ledgers(client: Client, ledger_ids: Iterable[int], failed: list[TallybookError]) -> list[int]:
    """Delete ledgers; return those that are gone. Errors of single ledgers are appended to ``failed``.

    Raises:
        MetadataUnavailable: the store does not answer. The others are not tried: each would take its own timeout.
    """
    gone: list[int] = []
    for ledger_id in ledger_ids:
        try:
            await client.delete_ledger(ledger_id, force=True)
        except NoSuchLedger:
            gone.append(ledger_id)
        except (DamagedFile, NewerFormat, MetadataConflict, MetadataOutcomeUnknown) as error:
            _log.warning("a ledger is deleted later", ledger_id=ledger_id, error=error.message)
            failed.append(error)
        else:
            gone.append(ledger_id)
    return gone

"""Key verifier and identity of ledgers: they decide who may write, and whether a request means the held ledger.

Both come from the ledger's metadata. They are read once, when a key is first presented for an unknown ledger, and are
stored with the ledger's state: in the journal before the first batch or the fence, later in the ledger's row. So a
bookie knows its ledgers even if the metadata is lost. If the metadata is restored from an older copy and an id is
assigned again, requests about the new ledger are refused (``OtherLedger``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from tallybook.core.errors import MetadataUnavailable, NoSuchLedger, Unauthorized
from tallybook.core.ids import NO_IDENTITY
from tallybook.core.limits import KEY_BYTES
from tallybook.metadata.store import MetadataStore

from ..journal.format import LedgerIdentityRecord, LedgerKeyRecord
from .state import Ledger


class LedgerFacts(NamedTuple):
    """The part of a ledger's metadata that a bookie keeps. ``verifier`` is empty if there is no password."""

    verifier: bytes
    identity: bytes = NO_IDENTITY


FactsLookup = Callable[[int], Awaitable[LedgerFacts | None]]
"""Looks up the facts of a ledger; ``None`` if a linearizable read finds no ledger."""

LOOKUP_SECONDS: Final = 10.0
"""Longest wait for the metadata."""

NO_PASSWORD: Final = bytes(KEY_BYTES)
"""The verifier in a journal record, where it has a fixed length, of a ledger without a password."""


def verifier_to_record(verifier: bytes) -> bytes:
    """Convert a verifier to its form in journal records."""
    return verifier or NO_PASSWORD


def verifier_from_record(recorded: bytes) -> bytes:
    """Convert a verifier from its form in journal records."""
    return b"" if recorded == NO_PASSWORD else recorded


async def facts_of(store: MetadataStore, ledger_id: int) -> LedgerFacts | None:
    """Look up the facts of a ledger; ``None`` only after a linearizable read.

    Raises:
        MetadataUnavailable: the metadata store does not respond.
    """
    for linearizable in (False, True):
        try:
            metadata = (await store.read_ledger(ledger_id, linearizable=linearizable)).value
        except NoSuchLedger:
            continue
        return LedgerFacts(metadata.key_verifier, metadata.identity)
    return None


def introducing_record(ledger: Ledger) -> LedgerIdentityRecord | LedgerKeyRecord:
    """The record that introduces a ledger, so that replay needs no metadata."""
    verifier = verifier_to_record(ledger.verifier or b"")
    if ledger.identity:
        return LedgerIdentityRecord(ledger.ledger_id, verifier, ledger.identity)
    return LedgerKeyRecord(ledger.ledger_id, verifier)


class KeyVerification:
    """Learns verifiers and identities, and checks keys. Concurrent callers for one ledger share one metadata read."""

    def __init__(self, lookup: FactsLookup) -> None:
        self._lookup = lookup
        self._running: dict[int, asyncio.Future[None]] = {}

    async def learn(self, ledger: Ledger) -> None:
        """Make the verifier of ``ledger`` known, and its identity if the metadata has one.

        Raises:
            NoSuchLedger: the ledger was deleted here, or the metadata, read linearizably, does not have it.
            MetadataUnavailable: the metadata store does not respond in time.
        """
        while ledger.verifier is None:
            if ledger.deleted:
                raise NoSuchLedger(f"ledger {ledger.ledger_id} was deleted")
            running = self._running.get(ledger.ledger_id)
            if running is not None:
                await asyncio.shield(running)
                continue
            await self._look_up(ledger)

    async def authorize(self, ledger: Ledger, key: bytes) -> None:
        """Learn the verifier and check ``key`` against it.

        Raises:
            Unauthorized: the key is wrong.
            NoSuchLedger, MetadataUnavailable: as for ``learn``.
        """
        await self.learn(ledger)
        if not ledger.fits(key):
            raise Unauthorized(f"ledger {ledger.ledger_id}: wrong password")

    async def facts(self, ledger_id: int) -> LedgerFacts:
        """Read the facts of a ledger from the metadata now.

        Raises:
            NoSuchLedger, MetadataUnavailable: as for ``learn``.
        """
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                facts = await self._lookup(ledger_id)
        except TimeoutError as error:
            raise MetadataUnavailable(f"ledger {ledger_id}: no response within {LOOKUP_SECONDS} seconds") from error
        if facts is None:
            raise NoSuchLedger(f"ledger {ledger_id} is not in the metadata")
        return facts

    async def _look_up(self, ledger: Ledger) -> None:
        done = self._running[ledger.ledger_id] = asyncio.get_running_loop().create_future()
        try:
            facts = await self.facts(ledger.ledger_id)
            ledger.verifier = facts.verifier
            if not ledger.was_met:
                # Entries held already may belong to another ledger with this id, so the identity is not set.
                ledger.identity = facts.identity
        except Exception as error:
            done.set_exception(error)
            done.exception()  # retrieved here, since no other caller may share this lookup
            raise
        finally:
            del self._running[ledger.ledger_id]
            if not done.done():
                done.set_result(None)

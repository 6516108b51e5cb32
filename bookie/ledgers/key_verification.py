"""Who may write, and which ledger it is: key verifier and identity of a ledger, learned when it is first met.

Both are in the ledger's metadata. They are read once, when a key is first shown for a ledger this bookie
knows nothing of, and from then on travel with the ledger's state: in the journal before the first
batch or the fence, later in the ledger's row. So a bookie knows its ledgers even if the metadata are lost: where
these are restored from an older copy and an id is handed out again, the new ledger is refused (``OtherLedger``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from tallybook.core.errors import MetadataUnavailable, NoSuchLedger, Unauthorized
from tallybook.core.ids import NO_IDENTITY
from tallybook.core.limits import KEY_BYTES
from tallybook.metadata.store import MetadataStore

from .journal.records import LedgerIdentityRecord, LedgerKeyRecord
from .ledger_state import Ledger


class LedgerFacts(NamedTuple):
    """What a bookie keeps of the metadata of a ledger. ``verifier`` is empty for one without a password."""

    verifier: bytes
    identity: bytes = NO_IDENTITY


FactsLookup = Callable[[int], Awaitable[LedgerFacts | None]]
"""The facts of a ledger; ``None`` if a linearizable read finds no ledger."""

LOOKUP_SECONDS: Final = 10.0
"""Longest wait for the metadata."""

NO_PASSWORD: Final = bytes(KEY_BYTES)
"""How a journal record, whose verifier has a fixed length, says that there is no password."""


def verifier_to_record(verifier: bytes) -> bytes:
    """A verifier as journal records carry it."""
    return verifier or NO_PASSWORD


def verifier_from_record(recorded: bytes) -> bytes:
    """A verifier out of a journal record."""
    return b"" if recorded == NO_PASSWORD else recorded


async def facts_of(store: MetadataStore, ledger_id: int) -> LedgerFacts | None:
    """The facts of a ledger; that there is none is said only after a linearizable read.

    Raises:
        MetadataUnavailable: the metadata do not answer.
    """
    for linearizable in (False, True):
        try:
            metadata = (await store.read_ledger(ledger_id, linearizable=linearizable)).value
        except NoSuchLedger:
            continue
        return LedgerFacts(metadata.key_verifier, metadata.identity)
    return None


def introduction_of(ledger: Ledger) -> LedgerIdentityRecord | LedgerKeyRecord:
    """The record that makes a ledger known: replay needs no metadata."""
    verifier = verifier_to_record(ledger.verifier or b"")
    if ledger.identity:
        return LedgerIdentityRecord(ledger.ledger_id, verifier, ledger.identity)
    return LedgerKeyRecord(ledger.ledger_id, verifier)


class Verifiers:
    """Learns verifiers and identities; many callers that meet one ledger at a time share one look into the metadata."""

    def __init__(self, lookup: FactsLookup) -> None:
        self._lookup = lookup
        self._running: dict[int, asyncio.Future[None]] = {}

    async def learn(self, ledger: Ledger) -> None:
        """Make sure that the verifier of ``ledger`` is known, and its identity if the metadata say it.

        Raises:
            NoSuchLedger: the ledger was deleted here, or the metadata, read linearizably, does not know it.
            MetadataUnavailable: the metadata does not answer in time.
        """
        while ledger.verifier is None:
            if ledger.deleted:
                raise NoSuchLedger(f"ledger {ledger.ledger_id} was deleted")
            running = self._running.get(ledger.ledger_id)
            if running is not None:
                await asyncio.shield(running)
                continue
            await self._look_up(ledger)

    async def authorise(self, ledger: Ledger, key: bytes) -> None:
        """Learn the verifier and check ``key`` against it.

        Raises:
            Unauthorized: the key does not fit.
            NoSuchLedger, MetadataUnavailable: as for ``learn``.
        """
        await self.learn(ledger)
        if not ledger.fits(key):
            raise Unauthorized(f"the key does not fit ledger {ledger.ledger_id}")

    async def facts(self, ledger_id: int) -> LedgerFacts:
        """What the metadata say of a ledger now.

        Raises:
            NoSuchLedger, MetadataUnavailable: as for ``learn``.
        """
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                facts = await self._lookup(ledger_id)
        except TimeoutError as error:
            raise MetadataUnavailable(f"no answer about ledger {ledger_id} within {LOOKUP_SECONDS} seconds") from error
        if facts is None:
            raise NoSuchLedger(f"the metadata does not know ledger {ledger_id}")
        return facts

    async def _look_up(self, ledger: Ledger) -> None:
        done = self._running[ledger.ledger_id] = asyncio.get_running_loop().create_future()
        try:
            facts = await self.facts(ledger.ledger_id)
            ledger.verifier = facts.verifier
            if not ledger.was_met:
                # What is held of it already may be of another ledger of this id: that cannot be told.
                ledger.identity = facts.identity
        except Exception as error:
            done.set_exception(error)
            done.exception()  # looked at here, since there may be nobody who shares this look-up
            raise
        finally:
            del self._running[ledger.ledger_id]
            if not done.done():
                done.set_result(None)

"""Who may write: the key verifier of a ledger, learned when the ledger is first met.

The verifier is in the ledger's metadata. It is read once, by whoever first shows a key for a
ledger this bookie knows nothing of, and from then on travels with the ledger's state: in the
journal before the first batch or with the fence, later in the ledger's row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tallybook.core.errors import MetadataUnavailable, NoSuchLedger, Unauthorized
from tallybook.core.limits import KEY_BYTES

from .ledger_state import Ledger

VerifierLookup = Callable[[int], Awaitable[bytes | None]]
"""The key verifier of a ledger, empty for one without a password; ``None`` if a linearizable read finds no ledger."""

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


class Verifiers:
    """Learns verifiers; many callers that meet one ledger at a time share one look into the metadata."""

    def __init__(self, lookup: VerifierLookup) -> None:
        self._lookup = lookup
        self._running: dict[int, asyncio.Future[None]] = {}

    async def learn(self, ledger: Ledger) -> None:
        """Make sure that the verifier of ``ledger`` is known.

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

    async def _look_up(self, ledger: Ledger) -> None:
        done = self._running[ledger.ledger_id] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                verifier = await self._lookup(ledger.ledger_id)
            if verifier is None:
                raise NoSuchLedger(f"the metadata does not know ledger {ledger.ledger_id}")
            ledger.verifier = verifier
        except TimeoutError as error:
            late = MetadataUnavailable(f"no answer about ledger {ledger.ledger_id} within {LOOKUP_SECONDS} seconds")
            self._tell(done, late)
            raise late from error
        except Exception as error:
            self._tell(done, error)
            raise
        finally:
            del self._running[ledger.ledger_id]
            if not done.done():
                done.set_result(None)

    @staticmethod
    def _tell(done: asyncio.Future[None], error: Exception) -> None:
        done.set_exception(error)
        done.exception()  # looked at here, since there may be nobody who shares this look-up

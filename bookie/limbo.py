"""Limbo: the journal came back damaged, and what it held is not known.

Damage in the middle of the journal is not a torn tail: records that were acked may be gone,
and it cannot be told of which ledgers. So every ledger that existed then is *in limbo* until
it was repaired from its peers: what is still held is served, what is not held is UNKNOWN
instead of ABSENT, ordinary adds are refused (a fence may have been lost), and the bookie
does not count as one that can say. Ledgers created later are not touched.

A directory that took the place of another one (``bookie init --replace``) is in limbo from the
beginning: its bookie answers under an id that acked what the old directory held.

One small file holds this for all ledgers, because a ledger of which everything was lost has
no row that could say it. It is written before the journal forgets the damage. It is there from
the beginning, so that its loss is noticed too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallybook.core.errors import DamagedFile
from tallybook.runtime.disk import Disk

from .text_record import MAX_RECORD_BYTES, decode_record, encode_record

KIND: Final = "limbo"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Limbo:
    """``events`` times the journal lost records; the ledgers with ids below ``below`` existed then."""

    events: int = 0
    below: int = 0

    def covers(self, ledger_id: int, repaired: int) -> bool:
        """Whether the ledger, repaired after the first ``repaired`` events, may still miss something."""
        return ledger_id < self.below and repaired < self.events

    def again(self, id_counter: int) -> Limbo:
        """One more event, at a time when all ledger ids lay below ``id_counter``."""
        return Limbo(self.events + 1, max(self.below, id_counter))


async def load_limbo(disk: Disk, path: str) -> Limbo:
    """What earlier starts found.

    Raises:
        DamagedFile: the file fails its checks, or is missing.
    """
    data = await disk.read_file(path, MAX_RECORD_BYTES)
    if data is None:
        raise DamagedFile(f"{path} is missing")
    values = decode_record(KIND, VERSION, data, path)
    try:
        return Limbo(events=int(values["events"]), below=int(values["below"]))
    except (KeyError, ValueError) as error:
        raise DamagedFile(f"{path}: it does not hold the values of a limbo marker: {error}") from error


async def store_limbo(disk: Disk, path: str, limbo: Limbo) -> None:
    """Make ``limbo`` durable."""
    values = {"events": str(limbo.events), "below": str(limbo.below)}
    await disk.replace_file(path, encode_record(KIND, VERSION, values))

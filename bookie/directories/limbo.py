"""The limbo marker: records that a bookie may have lost acked entries, and of which ledgers.

After a loss, every ledger that existed then is *in limbo* until it was repaired from its peers
(docs/understand/recovery.md). Which ledgers existed is read from the metadata (loss_bound.py), perhaps from an older
copy. So ``below`` is *provisional*: it rises when higher ids are found, until recovery/limbo_marker.py has compared
them for some time. A rebuilt index has no fences, so the marker also names the index in use: one write switches to the
new index and puts the ledgers into limbo.

One file, because a ledger of which everything was lost has no row. It exists from the beginning, so that its loss is
noticed, and is written before the journal trims the damage. docs/reference/formats/cookie.md has its fields, and the
kinds of losses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tallybook.core.errors import DamagedFile
from tallybook.runtime.disk.port import Disk

from ..storage.text_record import MAX_RECORD_BYTES, decode_record, encode_record

KIND: Final = "limbo"
VERSION: Final = 1

_INDEX: Final = "index"
_ENROLLED: Final = "enrolled"
_NOT_YET: Final = "no"
_DIRECTORY: Final = "directory"
_PROVISIONAL: Final = "provisional"
_YES: Final = "yes"


@dataclass(frozen=True, slots=True)
class Limbo:
    """``events``: number of losses of the bookie. Ledgers with ids below ``below`` existed at the last one.

    ``awaits_registration``: the bookie that this one replaces may still ack, also for ledgers that do not exist yet.
    ``index``: number of the index in use.
    ``provisional``: ``below`` may still rise: the metadata may have been an older copy.
    ``directory``: uuid of the data directory that it belongs to; empty in a marker of an older version.
    """

    events: int = 0
    below: int = 0
    awaits_registration: bool = False
    index: int = 0
    directory: str = ""
    provisional: bool = False

    def covers(self, ledger_id: int, repaired: int) -> bool:
        """Whether the ledger, repaired after the first ``repaired`` events, may still lack entries."""
        return self.awaits_registration or (ledger_id < self.below and repaired < self.events)

    def again(self, id_counter: int) -> Limbo:
        """A marker with one more event, at a time when all ledger ids were below ``id_counter``."""
        return replace(self, events=self.events + 1, below=max(self.below, id_counter), provisional=True)

    def reaching(self, id_counter: int, *, awaits_registration: bool) -> Limbo:
        """The last event extended to a later time, when all ledger ids were below ``id_counter``."""
        below = max(self.below, id_counter)
        return replace(self, below=below, awaits_registration=awaits_registration, provisional=True)


async def load_limbo(disk: Disk, path: str) -> Limbo:
    """Read the marker.

    Raises:
        DamagedFile: the file fails its checks, or is missing.
        NewerFormat: it has a later version.
    """
    data = await disk.read_file(path, MAX_RECORD_BYTES)
    if data is None:
        raise DamagedFile(f"{path} is missing")
    values = decode_record(KIND, VERSION, data, path)
    try:
        events, below, index = int(values["events"]), int(values["below"]), int(values.get(_INDEX, "0"))
        awaits_registration, provisional = values.get(_ENROLLED) == _NOT_YET, values.get(_PROVISIONAL) == _YES
        return Limbo(events, below, awaits_registration, index, values.get(_DIRECTORY, ""), provisional)
    except (KeyError, ValueError) as error:
        raise DamagedFile(f"{path}: wrong fields for a limbo marker: {error}") from error


async def store_limbo(disk: Disk, path: str, limbo: Limbo) -> None:
    """Make ``limbo`` durable."""
    values = {"events": str(limbo.events), "below": str(limbo.below)}
    if limbo.awaits_registration:
        values[_ENROLLED] = _NOT_YET
    if limbo.index:
        values[_INDEX] = str(limbo.index)
    if limbo.directory:
        values[_DIRECTORY] = limbo.directory
    if limbo.provisional:
        values[_PROVISIONAL] = _YES
    await disk.replace_file(path, encode_record(KIND, VERSION, values))

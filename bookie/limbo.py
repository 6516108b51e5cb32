"""Limbo: the journal came back damaged, and what it held is not known.

Damage in the middle of the journal is not a torn tail: records that were acked may be gone,
and it cannot be told of which ledgers. So every ledger that existed then is *in limbo* until
it was repaired from its peers: what is still held is served, what is not held is UNKNOWN
instead of ABSENT, ordinary adds are refused (a fence may have been lost), and the bookie
does not count as one that can say. Ledgers created later are not touched.

A directory that took the place of another one (``bookie init --replace``) is in limbo from the
beginning: its bookie answers under an id that acked what the old directory held. The old
process may still run, and ack more, until the new one is registered in its place. So the
marker says that this has not happened yet, and while it does, every ledger is in limbo.

The index may be lost, too (index_home.py). Then one is made from the entry logs, which know nothing of
fences: that is such an event as well. So the marker also says which index is in use, and one write
of it does both: from then on the new index counts, and every ledger is in limbo.

Which ledgers existed is asked of the metadata (lost_below.py). Where these are an older copy, they may not know of all,
and that may come to light later. So after each event ``below`` is *provisional*: it rises when higher ids are found,
until the metadata have been compared with what bookies hold for some time (limbo_marker.py).

One small file holds this for all ledgers, because a ledger of which everything was lost has
no row that could say it. It is written before the journal forgets the damage. It is there from
the beginning, so that its loss is noticed too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tallybook.core.errors import DamagedFile
from tallybook.runtime.disk import Disk

from .text_record import MAX_RECORD_BYTES, decode_record, encode_record

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
    """``events`` times the journal lost records, or worse; the ledgers with ids below ``below`` existed then.

    ``awaits_enrolment``: the bookie that this one replaces may still ack, also of ledgers that do not exist yet.
    ``index``: which index is in use, 0 for the first one.
    ``provisional``: ``below`` may yet rise: the metadata may have been an older copy when they were asked.
    ``directory``: uuid of the data directory that it is of; empty in a marker of a version that did not write it.
    """

    events: int = 0
    below: int = 0
    awaits_enrolment: bool = False
    index: int = 0
    directory: str = ""
    provisional: bool = False

    def covers(self, ledger_id: int, repaired: int) -> bool:
        """Whether the ledger, repaired after the first ``repaired`` events, may still miss something."""
        return self.awaits_enrolment or (ledger_id < self.below and repaired < self.events)

    def again(self, id_counter: int) -> Limbo:
        """One more event, at a time when all ledger ids lay below ``id_counter``."""
        return replace(self, events=self.events + 1, below=max(self.below, id_counter), provisional=True)

    def reaching(self, id_counter: int, *, awaits_enrolment: bool) -> Limbo:
        """The last event, seen from a later time, when all ledger ids lay below ``id_counter``."""
        below = max(self.below, id_counter)
        return replace(self, below=below, awaits_enrolment=awaits_enrolment, provisional=True)


async def load_limbo(disk: Disk, path: str) -> Limbo:
    """What earlier starts found.

    Raises:
        DamagedFile: the file fails its checks, or is missing.
        NewerFormat: one is of a later version.
    """
    data = await disk.read_file(path, MAX_RECORD_BYTES)
    if data is None:
        raise DamagedFile(f"{path} is missing")
    values = decode_record(KIND, VERSION, data, path)
    try:
        events, below, index = int(values["events"]), int(values["below"]), int(values.get(_INDEX, "0"))
        awaits_enrolment, provisional = values.get(_ENROLLED) == _NOT_YET, values.get(_PROVISIONAL) == _YES
        return Limbo(events, below, awaits_enrolment, index, values.get(_DIRECTORY, ""), provisional)
    except (KeyError, ValueError) as error:
        raise DamagedFile(f"{path}: it does not hold the values of a limbo marker: {error}") from error


async def store_limbo(disk: Disk, path: str, limbo: Limbo) -> None:
    """Make ``limbo`` durable."""
    values = {"events": str(limbo.events), "below": str(limbo.below)}
    if limbo.awaits_enrolment:
        values[_ENROLLED] = _NOT_YET
    if limbo.index:
        values[_INDEX] = str(limbo.index)
    if limbo.directory:
        values[_DIRECTORY] = limbo.directory
    if limbo.provisional:
        values[_PROVISIONAL] = _YES
    await disk.replace_file(path, encode_record(KIND, VERSION, values))

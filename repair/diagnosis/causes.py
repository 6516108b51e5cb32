"""What a bottleneck can be, and how one is told: a finding, with numbers that say why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Cause(Enum):
    """What is waited for. The values are for programs, and never change."""

    DISK_FULL = "disk-full"
    JOURNAL = "journal-bound"
    DEVICE = "device-bound"
    FLUSH = "flush-bound"
    INDEX = "index-bound"
    READS = "read-bound"
    ARCHIVE = "archive-bound"
    METADATA = "metadata-bound"
    CPU = "cpu-bound"
    NETWORK = "network-bound"
    OVERLOADED = "overloaded"
    CLIENTS = "client-bound"
    IDLE = "idle"
    UNKNOWN = "unknown"

    @property
    def is_healthy(self) -> bool:
        """Nothing in the cluster is waited for."""
        return self in {Cause.CLIENTS, Cause.IDLE}


MEANINGS: Final = {
    Cause.DISK_FULL: "there is no room on a disk for what was taken",
    Cause.JOURNAL: "a journal gets more bytes than its device writes",
    Cause.DEVICE: "each add waits for a durable write, and the device of the journal takes long for one",
    Cause.FLUSH: "adds wait for room, because entry logs are not written as fast as adds come",
    Cause.INDEX: "the index takes longer than what it is asked for",
    Cause.READS: "reads wait for the disk",
    Cause.ARCHIVE: "the object store takes less than there is to archive",
    Cause.METADATA: "the metadata store is slow, or does not answer",
    Cause.CPU: "an event loop has no processor time left",
    Cause.NETWORK: "adds take longer on their way than in the bookies",
    Cause.OVERLOADED: "more is asked than is let in",
    Cause.CLIENTS: "nothing in the cluster is waited for: it does all that its clients ask",
    Cause.IDLE: "next to nothing is asked",
    Cause.UNKNOWN: "no bookie has told anything",
}

ADVICE: Final = {
    Cause.DISK_FULL: "delete or archive ledgers, or give the bookie more disk",
    Cause.JOURNAL: "give the bookie another journal directory, on a disk of its own, or add bookies",
    Cause.DEVICE: "give the journal a device that syncs faster; meanwhile more appends at once cost nothing",
    Cause.FLUSH: "give entry logs another disk, raise storage.flush_bytes_per_second, or add bookies",
    Cause.INDEX: "raise storage.index_cache_bytes, put the index on a faster disk, or write larger batches",
    Cause.READS: "raise storage.read_cache_bytes, give entry logs another disk, or read from the archive",
    Cause.ARCHIVE: "look at the limits and the region of the bucket, or let the offloader wait less",
    Cause.METADATA: "look at the disk and the load of ZooKeeper, or of the SQLite file",
    Cause.CPU: "give the process a processor of its own, or spread its work over more processes",
    Cause.NETWORK: "look at latency, loss and bandwidth between these processes and the bookies",
    Cause.OVERLOADED: "let clients ask for less, raise the limits where there is memory, or add bookies",
    Cause.CLIENTS: "to get more, have more clients, or more appends of each at once",
    Cause.IDLE: "nothing to do",
    Cause.UNKNOWN: "look whether bookies run, and whether this machine reaches the http_listen of each",
}
"""What helps, in one sentence."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A number that says why.

    Attributes:
        unit: ``part`` (of the time, or of a whole), ``s``, ``bytes``, ``/s``, or nothing.
        above: the threshold that it is above, or at; ``None`` where it is only told.
    """

    what: str
    value: float
    unit: str
    above: float | None = None

    def __str__(self) -> str:
        bound = "" if self.above is None else f" (from {_shown(self.above, self.unit)} on)"
        return f"{self.what}: {_shown(self.value, self.unit)}{bound}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause, at one process.

    Attributes:
        score: how bad it is, 0 to 1: as a rule the part of the time for which it was waited for.
        decides: whether it may be the verdict; what happened once or seldom is told beside it.
    """

    cause: Cause
    process: str
    score: float
    evidence: tuple[Evidence, ...]
    decides: bool = True


def _shown(value: float, unit: str) -> str:
    match unit:
        case "part":
            return f"{value:.0%}"
        case "s":
            return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.3g} ms"
        case "bytes":
            return f"{value / 1e6:,.1f} MB" if value >= 1e6 else f"{value / 1e3:,.1f} kB"
        case "/s":
            return f"{value:,.1f}/s"
        case _:
            return f"{value:,.0f}"

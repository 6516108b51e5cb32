"""Counts coverage marks (``core/coverage.py``) and lists the marks that exist.

``known_marks`` finds marks in the source text: calls of ``sometimes`` and of the oracle's ``mark``. So marks that no
run reached can be listed. ``MARKS_OF_MANY_SEEDS`` lists frequent marks of the product: if ``ENOUGH_SEEDS`` seeds miss
one of them, the simulation no longer covers that branch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable
from typing import Final

_CALLS: Final = re.compile(r'(?:\bsometimes|\bmark)\(\s*"([^"{]+)"')
_PRODUCT_CALLS: Final = re.compile(r'\bsometimes\(\s*"([^"{]+)"')

ENOUGH_SEEDS: Final = 180
"""Number of runs that reach every mark of the list; two processors take five minutes for it."""

MARKS_OF_MANY_SEEDS: Final = (
    "add: held already",
    "add: waits for space in the journal",
    "add: waits for space in the write cache",
    "boot: registered in place of another bookie",
    "boot: replayed records",
    "checkpoint: failed",
    "collector: drops over-replicated copies",
    "collector: drops ledgers",
    "compaction: moves batches",
    "fence: of a ledger in limbo",
    "incremental truncation: cuts a removed log",
    "journal: failed while it kept its segments",
    "leader: takes over from one that is silent",
    "offload: a dead attempt is given up",
    "offload: a ledger cannot be read",
    "offload: a pass ends early",
    "offload: an object failed",
    "offload: another offloader has taken over",
    "offload: another offloader was first",
    "offload: removes an orphaned object",
    "offload: removes an unfinished upload",
    "offload: an object reads back different bytes",
    "read: UNKNOWN in limbo",
    "read: a copy fails its digest",
    "read: the archive stands in for bookies",
    "reclaimer: removes an entry log",
    "recovery: a member is replaced",
    "recovery: a member misses a batch",
    "recovery: another one was first",
    "recovery: ends on ABSENT of some and silence of others",
    "recovery: the end lies before what it reads",
    "recovery: too few fences",
    "registration: lost",
    "registration: registered again",
    "repair: a bookie takes a lost position",
    "repair: a pass ends early",
    "repair: copies are checked",
    "repair: the ledger was deleted meanwhile",
    "replay: the write cache was full",
    "service: request for another incarnation",
    "stream: a segment has failed",
    "stream: goes on after a segment has failed",
    "stream: the next segment cannot be made yet",
    "subscription: an advance is tried again",
    "tail: the metadata store is away",
    "tail: waits for a recovery",
    "update: another attempt",
    "update: given up with its outcome unknown",
    "update: outcome unknown",
    "update: the change was already made",
    "writer: a change undoes what was complete",
    "writer: a change was not made",
    "writer: a lost member is back",
    "writer: a member has fallen too far behind",
    "writer: a member owes an ack for too long",
    "writer: complete during a change",
    "writer: ends in the middle of a change",
    "writer: no quorum is left",
    "writer: no replacement for a member",
)
"""Each is reached by at least one seed in thirty, so a changed order of random draws hardly loses one."""


class CoverageMarks:
    """Counts how often a run reached each coverage mark."""

    def __init__(self) -> None:
        self.met: Counter[str] = Counter()

    def __call__(self, name: str) -> None:
        """Count one mark."""
        self.met[name] += 1


def known_marks(sources: Iterable[str]) -> list[str]:
    """Every coverage mark in these source texts, sorted."""
    return sorted({name for source in sources for name in _CALLS.findall(source)})


def marks_of_the_product(sources: Iterable[str]) -> list[str]:
    """The coverage marks of the product (calls of ``sometimes``), without those of the simulation."""
    return sorted({name for source in sources for name in _PRODUCT_CALLS.findall(source)})


def marks_that_are_missing(met: Container[str]) -> list[str]:
    """Marks of ``MARKS_OF_MANY_SEEDS`` that are not in ``met``."""
    return [name for name in MARKS_OF_MANY_SEEDS if name not in met]

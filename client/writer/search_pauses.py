"""How often writers without a replacement for a member look again: the more rarely, the more of them there are.

News of the membership, or the loss of the ack quorum, end the pause.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

URGENT_LOOK_S: Final = 400e-6
"""Of the event loop's time, for each writer without an ack quorum, in one pause."""

LOOK_S: Final = 10e-3
"""The same where an ack quorum serves: a look reads the metadata, and rarely finds what news have not told."""

_GOLDEN: Final = 0.6180339887


def spread_by_ledger(pause_s: float, ledger_id: int) -> float:
    """A pause from half of ``pause_s`` to one and a half of it, so that writers do not all try at the same moment."""
    return pause_s * (0.5 + ledger_id * _GOLDEN % 1.0)


class SearchPauses:
    """Pauses between two looks; shared by the writers of one client."""

    def __init__(self) -> None:
        self._pausing = {False: 0, True: 0}
        """Writers that pause, by whether they are urgent: without an ack quorum."""

    @contextmanager
    def pausing(self, *, urgent: bool) -> Iterator[None]:
        """Count a writer that pauses."""
        self._pausing[urgent] += 1
        try:
            yield
        finally:
            self._pausing[urgent] -= 1

    def pause_s(self, about_s: float, ledger_id: int, *, urgent: bool) -> float:
        """How long a writer is to pause: ``about_s``, or longer where very many do. Urgent ones wait for no others."""
        fair_s = self._pausing[urgent] * (URGENT_LOOK_S if urgent else LOOK_S)
        return spread_by_ledger(max(about_s, fair_s), ledger_id)

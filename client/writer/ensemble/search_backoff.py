"""Backoff of repeated searches for replacement bookies: the more writers search, the longer each pauses.

A membership change, or the loss of the ack quorum, ends the pause.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

URGENT_SEARCH_S: Final = 500e-6
"""Event loop time budgeted for one search of a writer without an ack quorum."""

SEARCH_S: Final = 13e-3
"""The same with an ack quorum: a search reads the metadata, and rarely finds more than the membership watch reports."""


class SearchBackoff:
    """Fair share of the searches; shared by the writers of one client."""

    def __init__(self) -> None:
        self._pausing = {False: 0, True: 0}
        """Number of pausing writers, by whether they are urgent (without an ack quorum)."""

    @contextmanager
    def pausing(self, *, urgent: bool) -> Iterator[None]:
        """Count a pausing writer."""
        self._pausing[urgent] += 1
        try:
            yield
        finally:
            self._pausing[urgent] -= 1

    def fair_s(self, *, urgent: bool) -> float:
        """The shortest pause that keeps all searches within their time. Urgent writers only count urgent ones."""
        return self._pausing[urgent] * (URGENT_SEARCH_S if urgent else SEARCH_S)

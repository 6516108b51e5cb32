"""How long to wait for a replica before another one is asked as well. Pure.

A replica that hangs, or collects garbage, or waits for its disk, need not hold up a reader who
has others to ask. But each second request is work for somebody, so it is made only after a
wait that nearly all answers keep within: the 95th percentile of the last ones. Where all
replicas become slow together, the wait becomes longer with them.
"""

from __future__ import annotations

from collections import deque
from typing import Final

REMEMBERED: Final = 64
"""Answers that count."""

RENEWED_AFTER: Final = 8
"""Answers after which the wait is worked out anew."""

MOST_SECONDS: Final = 1.0
"""Longest wait, and the wait as long as too few answers are known, unless the shortest one is longer."""


class Pace:
    """What one handle knows of answer times.

    Args:
        least_seconds: shortest wait; 0 asks one replica at a time.
    """

    def __init__(self, least_seconds: float) -> None:
        self._least_seconds = least_seconds
        self._most_seconds = max(MOST_SECONDS, least_seconds)
        self._answers: deque[float] = deque(maxlen=REMEMBERED)
        self._until_renewed = RENEWED_AFTER
        self._wait_seconds = self._most_seconds

    @property
    def speculates(self) -> bool:
        """Whether a second replica is ever asked while the first has not answered."""
        return self._least_seconds > 0

    @property
    def wait_seconds(self) -> float:
        """How long to wait for an answer before the next replica is asked."""
        return self._wait_seconds

    def answered(self, seconds: float) -> None:
        """An answer took so long."""
        self._answers.append(seconds)
        self._until_renewed -= 1
        if self._until_renewed == 0:
            self._until_renewed = RENEWED_AFTER
            slow = sorted(self._answers)[len(self._answers) * 95 // 100]
            self._wait_seconds = min(max(slow, self._least_seconds), self._most_seconds)

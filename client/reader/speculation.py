"""Speculative reads: how long to wait for a replica before another one is asked as well. Pure.

A replica that hangs, or waits for its disk, need not delay a reader that has other replicas. But a second request
costs work, so it is sent only after the 95th percentile of recent answer times. If all replicas become slow, the delay
grows with them.
"""

from __future__ import annotations

from collections import deque
from typing import Final

REMEMBERED: Final = 64
"""Number of recent answers that count."""

RENEWED_AFTER: Final = 8
"""Answers after which the delay is computed again."""

MAX_WAIT_SECONDS: Final = 1.0
"""Longest delay, also used while too few answers are known; unless the configured minimum is longer."""


class SpeculationPolicy:
    """The speculation delay of one handle.

    Args:
        min_seconds: minimum delay; 0: no speculative reads.
    """

    def __init__(self, min_seconds: float) -> None:
        self._min_seconds = min_seconds
        self._max_seconds = max(MAX_WAIT_SECONDS, min_seconds)
        self._answers: deque[float] = deque(maxlen=REMEMBERED)
        self._until_renewed = RENEWED_AFTER
        self._wait_seconds = self._max_seconds

    @property
    def speculates(self) -> bool:
        """Whether speculative reads are on."""
        return self._min_seconds > 0

    @property
    def wait_seconds(self) -> float:
        """The delay before the next replica is asked."""
        return self._wait_seconds

    def answered(self, seconds: float) -> None:
        """An answer took ``seconds``."""
        self._answers.append(seconds)
        self._until_renewed -= 1
        if self._until_renewed == 0:
            self._until_renewed = RENEWED_AFTER
            slow = sorted(self._answers)[len(self._answers) * 95 // 100]
            self._wait_seconds = min(max(slow, self._min_seconds), self._max_seconds)

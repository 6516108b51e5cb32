"""Exponential backoff with jitter: pauses between tries, so that many that failed together do not try together."""

from __future__ import annotations

from .rng import Rng


def spread(rng: Rng, pause_s: float) -> float:
    """A pause at random from half of ``pause_s`` up to all of it."""
    return pause_s * (0.5 + rng.random() / 2)


class Backoff:
    """Pauses between the tries of one piece of work.

    Args:
        first_s: bound of the first pause, in seconds; it doubles from pause to pause.
        longest_s: bound that no pause exceeds.
    """

    def __init__(self, rng: Rng, *, first_s: float, longest_s: float) -> None:
        self._rng = rng
        self._first_s = first_s
        self._longest_s = longest_s
        self._bound_s = first_s

    def next_s(self) -> float:
        """Seconds to wait now, at random from half the bound up to the bound."""
        bound, self._bound_s = self._bound_s, min(self._longest_s, 2 * self._bound_s)
        return spread(self._rng, bound)

    def reset(self) -> None:
        """Begin anew with the shortest pause: a try has succeeded."""
        self._bound_s = self._first_s

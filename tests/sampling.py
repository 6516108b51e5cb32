"""Samples of long enumerations: ``TALLYBOOK_TESTS=full`` (``make crash``, ``make nightly``) takes all of them."""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

FULL = os.environ.get("TALLYBOOK_TESTS", "") == "full"
SAMPLE = 1 if FULL else 7
"""An ordinary run takes every seventh. The number is prime, so that it does not fall into step with a pattern."""


def sample(everything: Iterable[T]) -> Iterator[T]:
    """Every seventh of ``everything``, or all of it in a full run."""
    return islice(everything, 0, None, SAMPLE)

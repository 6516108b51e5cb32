"""Counting the marks of ``core/marks``, and which of them there are.

A mark is registered by being written down somewhere in the code, so those that no run has met
can be named: ``known_marks`` finds the calls of ``sometimes`` and of the god's ``mark``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

_CALLS: Final = re.compile(r'(?:\bsometimes|\bmark)\(\s*"([^"{]+)"')
_PRODUCT_CALLS: Final = re.compile(r'\bsometimes\(\s*"([^"{]+)"')


class Marks:
    """How often each mark was met in a run."""

    def __init__(self) -> None:
        self.met: Counter[str] = Counter()

    def __call__(self, name: str) -> None:
        """A mark was met."""
        self.met[name] += 1


def known_marks(sources: Iterable[str]) -> list[str]:
    """Every mark that is written down in these texts, sorted."""
    return sorted({name for source in sources for name in _CALLS.findall(source)})


def marks_of_the_product(sources: Iterable[str]) -> list[str]:
    """Those of ``known_marks`` that the product itself has, without those of the simulation."""
    return sorted({name for source in sources for name in _PRODUCT_CALLS.findall(source)})

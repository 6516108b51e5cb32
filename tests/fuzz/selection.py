"""Selection of inputs worth keeping: those that reach code that no smaller input reaches."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from .corpus import Input
from .harness import Target

ROOT = Path(__file__).resolve().parents[2]
_OURS = str(ROOT) + "/"
_NOT_OURS = (f"{_OURS}tests/", f"{_OURS}.venv/")

Step = tuple[CodeType, int, int, int]
"""A jump between two lines of a function, with the bit length of its count."""

MOST_BYTES = 4_096
"""The maximum size of a kept input."""


def chosen(target: Target, known: Iterable[Input], candidates: Iterable[Input]) -> list[Input]:
    """The ``candidates``, smallest first, that make a step which neither ``known`` ones nor earlier ones made."""
    made: set[Step] = set()
    for name, data in known:
        made |= steps(target, name, data)
    found: list[Input] = []
    for name, data in sorted(set(candidates), key=lambda each: (len(each[1]), each)):
        if len(data) > MOST_BYTES:
            break
        new = steps(target, name, data) - made
        if new:
            made |= new
            found.append((name, data))
    return found


def steps(target: Target, name: str, data: bytes) -> set[Step]:
    """All branch steps in product code for an input."""
    made: Counter[tuple[CodeType, int, int]] = Counter()
    before: dict[int, int] = {}

    def on_line(frame: FrameType, event: str, _arg: Any) -> Callable[..., Any]:
        if event == "line":
            made[frame.f_code, before.get(id(frame), 0), frame.f_lineno] += 1
            before[id(frame)] = frame.f_lineno
        return on_line

    def on_call(frame: FrameType, _event: str, _arg: Any) -> Callable[..., Any] | None:
        file = frame.f_code.co_filename
        if not file.startswith(_OURS) or file.startswith(_NOT_OURS):
            return None
        before[id(frame)] = 0
        return on_line

    sys.settrace(on_call)
    try:
        target.run(name, data)
    finally:
        sys.settrace(None)
    return {(*step, count.bit_length()) for step, count in made.items()}

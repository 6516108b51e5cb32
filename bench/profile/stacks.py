"""Parses the stacks that ``py-spy record --format raw --threads`` samples.

A line is ``thread (TID): NAME;FRAME;...;FRAME COUNT``, outermost frame first; a frame is ``FUNCTION (FILE:LINE)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tallybook.core.errors import InvalidArgument

_THREAD: Final = re.compile(r"^thread \((\d+)\)(?:: (.*))?$")
_FRAME: Final = re.compile(r"^(.*) \((.*?)(?::\d+)?\)$")
_INNER: Final = ".<locals>"


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. ``function`` is qualified; a function inside another one counts as the outer one."""

    function: str
    file: str


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack that a thread was sampled with ``count`` times; outermost frame first."""

    thread_id: int
    thread_name: str
    frames: tuple[Frame, ...]
    count: int


def parse_stacks(text: str) -> Iterator[Stack]:
    """The stacks in a file of py-spy.

    Raises:
        InvalidArgument: a line has another form.
    """
    for line in filter(None, text.splitlines()):
        stack, _, count = line.rpartition(" ")
        head, *frames = stack.split(";")
        thread = _THREAD.match(head)
        if thread is None or not count.isdigit():
            raise InvalidArgument(f"not a stack of py-spy: {line[:200]!r}")
        yield Stack(int(thread[1]), thread[2] or "", tuple(map(_parse_frame, frames)), int(count))


def _parse_frame(text: str) -> Frame:
    found = _FRAME.match(text)
    function, file = (found[1], found[2]) if found else (text, "")
    return Frame(function.partition(_INNER)[0], file)

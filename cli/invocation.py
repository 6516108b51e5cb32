"""The command that this process runs, as its words named it."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Final, NamedTuple


class Invocation(NamedTuple):
    """A command, and what it was given."""

    command: str
    """For example ``bookie drain``."""
    arguments: tuple[str, ...]


RUNNING: Final[ContextVar[Invocation | None]] = ContextVar("running", default=None)
"""``None``: no command runs, but a function of one was called, as in a test."""


def invocation_of(command: Any, words: Sequence[str]) -> Invocation:
    """The command that ``words`` name, below the group ``command``, and what is behind it."""
    path: list[str] = []
    for word in words:
        known = getattr(command, "commands", {})
        if word not in known:
            break
        command = known[word]
        path.append(word)
    return Invocation(" ".join(path), tuple(words[len(path) :]))

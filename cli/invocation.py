"""The command that this process runs and its parsed options.

Taken from the parsed command line, because a single word may be an option, the value of one, or an argument.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final, NamedTuple

PROGRAM: Final = "tallybook"
WORDS: Final = "tallybook.words"


class Invocation(NamedTuple):
    """A command with its arguments and options."""

    command: str
    """For example ``bookie drain``."""
    arguments: tuple[str, ...] = ()
    """The words after the command, as they were typed."""
    options: frozenset[str] = frozenset()
    """All names of each option that has a value. A flag has one if it is set."""


RUNNING: Final[ContextVar[Invocation | None]] = ContextVar("running", default=None)
"""``None``: a function of a command was called directly, as in a test."""


def invocation_of(context: Any) -> Invocation:
    """The command that was parsed in ``context``."""
    path, below = list[str](), context
    while below.parent is not None:
        path.insert(0, below.info_name)
        below = below.parent
    options = {
        name
        for parameter in context.command.params
        if parameter.param_type_name == "option" and _has_value(context.params.get(parameter.name))
        for name in parameter.opts
    }
    return Invocation(" ".join(path), tuple(context.meta.get(WORDS, ())), frozenset(options))


def _has_value(value: object) -> bool:
    return value is not None and value is not False and value not in ((), [])

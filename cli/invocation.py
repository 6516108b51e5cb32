"""The command that this process runs, and what it was given: as the command line was parsed, not as it was written.

Words say nothing by themselves: the same one may be an option, the value of one, or an argument.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from typer.core import TyperCommand

from tallybook.runtime.settings import variable

PROGRAM: Final = "tallybook"
_WORDS: Final = "tallybook.words"
_SETTINGS_FILE: Final = "config"
"""Parameter of the commands that have settings: these know their security directory later."""


class Invocation(NamedTuple):
    """A command, and what it was given."""

    command: str
    """For example ``bookie drain``."""
    arguments: tuple[str, ...] = ()
    """The words behind it, as they were written."""
    options: frozenset[str] = frozenset()
    """Each option that has a value, by all of its names. A switch has one where it is on."""


RUNNING: Final[ContextVar[Invocation | None]] = ContextVar("running", default=None)
"""``None``: no command runs, but a function of one was called, as in a test."""


def invocation_of(context: Any) -> Invocation:
    """The command whose words were parsed in ``context``."""
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
    return Invocation(" ".join(path), tuple(context.meta.get(_WORDS, ())), frozenset(options))


def _has_value(value: object) -> bool:
    return value is not None and value is not False and value not in ((), [])


class CheckedCommand(TyperCommand):
    """A command that runs only where the security directory of this process does not forbid it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words: parsing takes them away."""
        ctx.meta[_WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Say which command runs, check its right, and run it."""
        # Called by itself, and not below the program, as in a test, it has no name by which it has a right.
        if ctx.find_root().info_name == PROGRAM:
            RUNNING.set(invocation_of(ctx))
            security = variable("TALLYBOOK_SECURITY")
            if security and _SETTINGS_FILE not in ctx.params:
                # It takes long to load.
                from .rights import check_own_right  # noqa: PLC0415

                check_own_right(security)
        return super().invoke(ctx)

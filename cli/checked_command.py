"""Commands that check the permission of this process before they run."""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperCommand

from tallybook.runtime.settings import variable

from .invocation import PROGRAM, RUNNING, WORDS, invocation_of

_SETTINGS_FILE: Final = "config"
"""Parameter of commands with settings. These learn their security directory from the settings, and check it then."""


class CheckedCommand(TyperCommand):
    """A command that first checks its permission in the security directory of this process."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words, because parsing consumes them."""
        ctx.meta[WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Set ``RUNNING``, check the permission, and run the command."""
        # A command that a test calls without the program has no full name, and no permission to check.
        if ctx.find_root().info_name == PROGRAM:
            RUNNING.set(invocation_of(ctx))
            security = variable("TALLYBOOK_SECURITY")
            if security and _SETTINGS_FILE not in ctx.params:
                # Imported here because it takes long to load.
                from .rights import check_own_permission  # noqa: PLC0415

                check_own_permission(security)
        return super().invoke(ctx)

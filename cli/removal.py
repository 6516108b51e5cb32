"""Asks before commands that cannot be undone, and deletes what the arguments of an ``rm`` command name."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final, TypeVar

import typer

from tallybook.core.errors import NoSuchLedger, NoSuchNamespace, NoSuchStream, NoSuchSubscription

from .exits import Exit
from .output import complain, print_json

K = TypeVar("K", int, str)

Yes = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Do not ask. The command asks only if standard input is a terminal."),
]
IfExists = Annotated[bool, typer.Option("--if-exists", help="Succeed even if it does not exist.")]

_MISSING: Final = (NoSuchLedger, NoSuchNamespace, NoSuchStream, NoSuchSubscription)


def confirm_removal(kind: str, names: Sequence[int | str], yes: bool) -> None:
    """Ask whether to delete these, as ``confirm`` does."""
    confirm(f"Delete {kind} {', '.join(map(str, names))}", yes)


def confirm(action: str, yes: bool) -> None:
    """Ask whether to do this, if standard input is a terminal. Ctrl-C ends the process.

    Args:
        action: verb and object, such as ``Delete ledger 7``.
        yes: do not ask.

    Raises:
        typer.Exit: the answer is not yes.
    """
    if yes or not sys.stdin.isatty():
        return
    print(f"{action}? This cannot be undone. [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if answer.strip().lower() not in {"y", "yes"}:
        complain("nothing was changed")
        raise typer.Exit(Exit.FOUND_WRONG)


async def delete_each(
    kind: str, names: Sequence[K], delete: Callable[[K], Awaitable[None]], *, if_exists: bool, as_json: bool
) -> None:
    """Delete one after the other, and print each that is deleted; as JSON all of them together, also after an error.

    Raises:
        NoSuchLedger, NoSuchNamespace, NoSuchStream, NoSuchSubscription: one is missing, and ``if_exists`` is false.
        As ``delete``; the later ones are kept.
    """
    deleted, missing = list[K](), list[K]()
    try:
        for name in names:
            try:
                await delete(name)
            except _MISSING as error:
                if not if_exists:
                    raise
                missing.append(name)
                if not as_json:
                    print(error.message, flush=True)
            else:
                deleted.append(name)
                if not as_json:
                    print(f"deleted {kind} {name}", flush=True)
    finally:
        if as_json and (deleted or missing):
            print_json({"deleted": deleted, "missing": missing})

"""Process arguments are visible to every user of the machine: no option of any command takes a secret."""

from __future__ import annotations

import re
from collections.abc import Iterator

import typer

from tallybook.cli.app import COMMANDS, build

SECRET = re.compile(r"passw|secret|token|credential|(^|[-_])key([-_]|$)|auth(?!or)")
NO_SECRET = {"key_separator", "password_file", "token_listen"}
"""Paths, addresses, and the separator between a record and its key."""


def options(
    command: typer.core.TyperCommand | typer.core.TyperGroup, path: str = "tallybook"
) -> Iterator[tuple[str, str]]:
    """Every command with each of its parameters."""
    for parameter in command.params:
        yield path, parameter.name or ""
    for name, below in getattr(command, "commands", {}).items():
        yield from options(below, f"{path} {name}")


def test_no_option_of_a_command_takes_a_secret() -> None:
    found = list(options(typer.main.get_command(build(COMMANDS))))
    assert len(found) > 100
    assert {(path, name) for path, name in found if SECRET.search(name) and name not in NO_SECRET} == set()

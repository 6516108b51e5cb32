"""Options and arguments that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from tallybook.core.errors import InvalidArgument, InvalidConfig
from tallybook.core.limits import MAX_PASSWORD_BYTES

Metadata = Annotated[
    str,
    typer.Option(
        "--metadata",
        envvar="TALLYBOOK_METADATA",
        metavar="URI",
        help="Metadata store of the cluster: sqlite:///PATH, or zk://HOST:PORT[,HOST:PORT...]/ROOT.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON: the result on standard output, an error on standard error.")
]
LedgerId = Annotated[int, typer.Argument(metavar="LEDGER", help="Id of the ledger, as 'ledger create' printed it.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        envvar="TALLYBOOK_PASSWORD_FILE",
        metavar="FILE",
        help="File that holds the ledger's password; one newline at its end does not count.",
    ),
]


def directory(text: str) -> Path:
    """A directory given as an option. An empty one is more likely a variable that is not set than this directory."""
    if not text:
        raise typer.BadParameter("it must not be empty")
    return Path(text)


def assigned(assignments: list[str] | None) -> dict[str, Any]:
    """What ``--set`` says, as overrides of settings: a name may have levels.

    Raises:
        InvalidConfig: one of them is no assignment.
    """
    overrides: dict[str, Any] = {}
    for assignment in assignments or []:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise InvalidConfig(f"--set {assignment}: NAME=VALUE is wanted")
        *levels, last = name.split(".")
        into = overrides
        for level in levels:
            into = into.setdefault(level, {})
            if not isinstance(into, dict):
                raise InvalidConfig(f"--set {assignment}: {level} was given a value before, and has no others in it")
        into[last] = value
    return overrides


def check_directory(path: Path) -> None:
    """Refuse a directory that cannot be there.

    Raises:
        InvalidConfig: it, or one that it would lie in, is something else.
    """
    path = Path(os.path.abspath(path))
    there = next(part for part in (path, *path.parents) if os.path.lexists(part))
    if not os.path.isdir(there):
        raise InvalidConfig(f"{path} cannot be a data directory: {there} is not a directory")


def read_password(file: Path | None) -> bytes:
    """The password in ``file``; empty where there is none.

    Raises:
        InvalidArgument: the file cannot be read, or holds nothing or too much.
    """
    if file is None:
        return b""
    try:
        with open(file, "rb") as opened:
            password = opened.read(MAX_PASSWORD_BYTES + 2).removesuffix(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise InvalidArgument(f"password file {file} cannot be read: {error.strerror}") from error
    if not 1 <= len(password) <= MAX_PASSWORD_BYTES:
        raise InvalidArgument(f"password file {file} must hold 1 .. {MAX_PASSWORD_BYTES} bytes")
    return password

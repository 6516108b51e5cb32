"""Options and arguments that several commands share."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tallybook.core.errors import InvalidArgument, InvalidConfig
from tallybook.core.limits import MAX_PASSWORD_BYTES

_INHERITED: Final = re.compile(r"/dev/stdin|/dev/fd/[0-9]+|/proc/self/fd/[0-9]+")

Metadata = Annotated[
    str,
    typer.Option(
        "--metadata",
        envvar="TALLYBOOK_METADATA",
        metavar="URI",
        help="Metadata store: sqlite:///PATH, or ZooKeeper: zk://HOST:PORT/ROOT (more servers after commas; zks:// "
        "for TLS).",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON: the result on standard output, an error on standard error.")
]


def as_ledger_id(text: str | int) -> int:
    """A ledger id given as an argument."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a ledger id") from None


LedgerId = Annotated[
    int,
    typer.Argument(metavar="LEDGER", parser=as_ledger_id, help="Id of the ledger, as 'ledger create' printed it."),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        envvar="TALLYBOOK_PASSWORD_FILE",
        metavar="FILE",
        help="File with the ledger's password, not readable by other users; one newline at its end is ignored.",
    ),
]


def directory(text: str) -> Path:
    """A directory given as an option. An empty one is refused: most likely a variable is not set."""
    if not text:
        raise typer.BadParameter("it must not be empty")
    return Path(text)


def assigned(assignments: list[str] | None) -> dict[str, Any]:
    """The values of ``--set`` as overrides of settings, nested for names with dots.

    Raises:
        InvalidConfig: one of them is not NAME=VALUE.
    """
    overrides: dict[str, Any] = {}
    for assignment in assignments or []:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise InvalidConfig(f"--set {assignment}: must be NAME=VALUE")
        *levels, last = name.split(".")
        into = overrides
        for level in levels:
            into = into.setdefault(level, {})
            if not isinstance(into, dict):
                raise InvalidConfig(
                    f"--set {assignment}: {level} already has a value, so it cannot have settings in it"
                )
        into[last] = value
    return overrides


def check_directory(path: Path) -> None:
    """Refuse a path at which there is no directory and none can be created.

    Raises:
        InvalidConfig: the path or one of its parents is not a directory.
    """
    path = Path(os.path.abspath(path))
    there = next(part for part in (path, *path.parents) if os.path.lexists(part))
    if not os.path.isdir(there):
        raise InvalidConfig(f"{path} cannot be a data directory: {there} is not a directory")


def read_password(file: Path | None) -> bytes:
    """The password in ``file``; empty if no file is given.

    Raises:
        InvalidArgument: the file cannot be read, is readable by other users, is empty or too long.
    """
    if file is None:
        return b""
    password = _given(file).removesuffix(b"\n").removesuffix(b"\r")
    if not 1 <= len(password) <= MAX_PASSWORD_BYTES:
        raise InvalidArgument(f"password file {file} must hold 1 .. {MAX_PASSWORD_BYTES} bytes")
    return password


def _given(file: Path) -> bytes:
    from tallybook.runtime.security.files import read_file  # noqa: PLC0415

    try:
        if _INHERITED.fullmatch(str(file)):
            # Standard input, or a pipe of the shell for <(...): no other user can read it.
            with open(file, "rb") as opened:
                return opened.read(MAX_PASSWORD_BYTES + 3)
        content = read_file(file, secret=True)
    except OSError as error:
        raise InvalidArgument(f"password file {file} cannot be read: {error.strerror}") from error
    except InvalidConfig as error:
        raise InvalidArgument(f"password file: {error.message}") from error
    if content is None:
        raise InvalidArgument(f"password file {file} does not exist")
    return content

"""Options that the commands of server processes share, and the settings and logging that they configure."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from tallybook.core.settings import Settings
from tallybook.runtime.logging import set_up_logging
from tallybook.runtime.settings import load_settings

from .options import assigned

S = TypeVar("S", bound=Settings)


class LogLevel(Enum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(Enum):
    """The format of the log."""

    TEXT = "text"
    JSON = "json"


OptionalMetadata = Annotated[
    str | None, typer.Option("--metadata", envvar="TALLYBOOK_METADATA", metavar="URI", help="Metadata store.")
]
GrpcListen = Annotated[
    str | None, typer.Option("--listen", metavar="HOST:PORT", help="gRPC address; port 0 is any free one.")
]
HttpListen = Annotated[str | None, typer.Option("--http", metavar="HOST:PORT", help="Address of health and metrics.")]
InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Serve other machines without security: any client that reaches the port can delete all data.",
    ),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings in a TOML file.")]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="Print the settings in force, and exit.")]
Level = Annotated[LogLevel, typer.Option("--log-level", help="Lowest level that is logged.")]
LogFormatOption = Annotated[
    LogFormat | None,
    typer.Option("--log-format", help="Format of the log.", show_default="json with --json, else text"),
]
ParentPipe = Annotated[int | None, typer.Option("--parent-pipe", hidden=True)]


def settings_of(
    model: type[S], config: Path | None, assignments: list[str] | None, **flags: str | Path | bool | None
) -> S:
    """The settings from defaults, file, environment, ``--set`` and options; later ones override earlier ones.

    Args:
        flags: options by the names of their settings; ``None`` or ``False``: not given.

    Raises:
        InvalidConfig: a name is not a setting, or its value is not allowed.
    """
    file = None if config is None else str(config)
    given = {name: str(value) for name, value in flags.items() if value is not None and value is not False}
    return load_settings(model, file=file, overrides={**assigned(assignments), **given})


def set_up_log(level: LogLevel, style: LogFormat | None, *, as_json: bool) -> None:
    """Set up logging from the options."""
    chosen = style or (LogFormat.JSON if as_json else LogFormat.TEXT)
    set_up_logging(level.value.upper(), chosen.value)

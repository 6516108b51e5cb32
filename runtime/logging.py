"""Structured logging: one line per event on standard error, as key=value pairs or as JSON.

Code logs an *event* (a short, constant, lower-case sentence) and *fields* (the variable
parts) through ``logger``::

    log = logger("bookie.service")
    log.warning("stream cut", peer=stream.peer, reason=error)

Libraries that use the standard ``logging`` are logged in the same form, but only from level INFO: below it they may log
everything that passes through them, passwords included (kazoo does). The value of a field with the name of a secret is
redacted before it reaches a formatter. The part ``audit`` is logged at every level. docs/operate/logs.md lists the
field names; tests/unit/test_log_fields.py checks them.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Collection, Mapping
from typing import IO, Any, Final, Literal, TypeAlias

from .tracing.port import current_span

Format: TypeAlias = Literal["text", "json"]

REDACTED: Final = "[redacted]"
_SECRET_WORDS: Final = ("key", "password", "secret", "token", "credential", "authorization")
_FIELDS: Final = "tallybook_fields"
_MAX_VALUE_CHARACTERS: Final = 2000
_SUPPRESSED: Final = "untold_count"
"""Number of suppressed lines; left out if it is 0."""
_ROOT: Final = "tallybook"
_AUDIT: Final = f"{_ROOT}.audit"
_OF_THIS_PROCESS: Final[dict[str, object]] = {}
"""Fields that every line of this process has."""


class Logger:
    """Logs events of one part of the system. Made by ``logger``."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"{_ROOT}.{name}")

    def debug(self, event: str, **fields: object) -> None:
        """Log details for debugging."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Log something that an operator may want to know."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log a failure that was handled."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Log a failure that needs an operator."""
        self._log(logging.ERROR, event, fields)

    def defect(self, event: str, error: BaseException, **fields: object) -> None:
        """Log an unexpected exception as an error, with its traceback."""
        traceback = (type(error), error, error.__traceback__)
        self._log(logging.ERROR, event, {**fields, "error": repr(error)}, traceback)

    def _log(self, level: int, event: str, fields: dict[str, object], exc_info: Any = None) -> None:
        if self._logger.isEnabledFor(level):
            shown = {name: REDACTED if is_secret(name) else value for name, value in fields.items()}
            if not shown.get(_SUPPRESSED, 1):
                del shown[_SUPPRESSED]
            self._logger.log(level, "%s", event, extra={_FIELDS: shown}, exc_info=exc_info)


def logger(name: str) -> Logger:
    """The logger of a part; ``name`` is the module name without ``tallybook.``."""
    return Logger(name)


def is_secret(name: str) -> bool:
    """Whether the value of a field with this name must be redacted."""
    lowered = name.lower()
    return any(lowered == word or lowered.endswith("_" + word) for word in _SECRET_WORDS)


def add_to_every_line(**fields: object) -> None:
    """Add ``fields`` to every line of this process. A field of the line itself takes precedence."""
    _OF_THIS_PROCESS.update(fields)


def set_up_logging(
    level: str = "INFO", style: Format = "text", stream: IO[str] | None = None, *, silent: Collection[str] = ()
) -> None:
    """Send every log line of this process to ``stream`` (default: standard error) in ``style``.

    Replaces the set-up of an earlier call. Lines of the libraries ``silent``, and lines of any library below level
    INFO, are dropped.

    Raises:
        ValueError: the level is unknown.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(_JsonLines() if style == "json" else _KeyValues())
    handler.addFilter(lambda record: record.name.partition(".")[0] not in silent)
    handler.addFilter(lambda record: record.levelno >= logging.INFO or record.name.partition(".")[0] == _ROOT)
    _OF_THIS_PROCESS.clear()
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    logging.getLogger(_AUDIT).setLevel(logging.INFO)


def _record_fields(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, object]:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    fields: dict[str, object] = {
        "time": f"{moment}.{int(record.msecs):03d}Z",
        "level": record.levelname.lower(),
        "part": record.name.removeprefix(f"{_ROOT}."),
        "event": record.getMessage(),
    }
    span = current_span()
    if span is not None:
        fields["trace_id"] = span.trace_id
    fields.update({**_OF_THIS_PROCESS, **getattr(record, _FIELDS, {})})
    if record.exc_info and record.exc_info[0] is not None:
        fields["traceback"] = formatter.formatException(record.exc_info)
    return fields


class _JsonLines(logging.Formatter):
    """Formats a record as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {name: _plain(value) for name, value in _record_fields(record, self).items()}, ensure_ascii=False
        )


class _KeyValues(logging.Formatter):
    """Formats a record as ``time level part: event key=value ...``; values with blanks or quotes are quoted."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _record_fields(record, self)
        moment, level, part, event = (fields.pop(name) for name in ("time", "level", "part", "event"))
        traceback = fields.pop("traceback", None)
        line = f"{moment} {str(level).upper():<7} {part}: {_with_fields(str(event), fields)}"
        return f"{line}\n{traceback}" if traceback else line


def _with_fields(event: str, fields: Mapping[str, object]) -> str:
    pairs = "".join(f" {name}={_quoted(value)}" for name, value in fields.items())
    return f"{_one_line(event)}{pairs}"


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)[:_MAX_VALUE_CHARACTERS]


def _quoted(value: object) -> str:
    text = str(_plain(value))
    return text if text and text.isprintable() and not any(c in text for c in ' "=') else json.dumps(text)


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)

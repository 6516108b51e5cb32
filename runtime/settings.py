"""Loads settings from defaults, a TOML file, the environment and explicit overrides, in this order.

Each source overrides the one before, also with 0, ``false`` or an empty string. Variables are
named ``TALLYBOOK_<FIELD>``, with ``__`` between the levels: ``TALLYBOOK_JOURNAL__SEGMENT_COUNT=4``.
The models and their rules are in ``core/settings``; docs/reference/configuration.md is generated from them.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import BaseModel, ByteSize, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tallybook.core.errors import InvalidConfig
from tallybook.core.settings import Settings
from tallybook.core.settings.types import reason_of

S = TypeVar("S", bound=Settings)

ENVIRONMENT_PREFIX: Final = "TALLYBOOK_"
LEVEL_SEPARATOR: Final = "__"
MAX_FILE_BYTES: Final = 1 << 20
_MAX_SUGGESTIONS: Final = 20
_MAX_DOTS: Final = 100
"""In one line: Python's TOML parser needs time and memory quadratic in the number of parts of a dotted name."""


def load_settings(
    model: type[S],
    *,
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> S:
    """The settings of one process.

    Args:
        model: class of the settings.
        file: a TOML file whose tables are the model's levels.
        environment: variables; ``None``: those of this process.
        overrides: values of the command line, nested like the model.

    Raises:
        InvalidConfig: the file cannot be read, a key is unknown, or a value is not allowed;
            the message names file, key and value.
    """
    variables = os.environ if environment is None else environment
    found: dict[str, Any] = {}
    try:
        for source in (_from_file(file), _from_environment(model, variables), overrides or {}):
            _merge(found, source)
        return model.model_validate(found)
    except ValidationError as error:
        raise InvalidConfig("; ".join(validation_messages(error, _names(model)))) from None
    except RecursionError:
        raise InvalidConfig(f"{file or 'the settings'}: tables or lists are nested too deeply") from None


def variable(*names: str) -> str:
    """The first of these environment variables that is set and not empty; empty if there is none.

    For variables that other programs define. Tallybook's own settings come from ``load_settings``.
    """
    return next((value for name in names if (value := os.environ.get(name, ""))), "")


class Setting(NamedTuple):
    """One line of the configuration reference."""

    name: str
    variable: str
    default: str
    description: str


def describe(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[Setting]:
    """All settings of a model, level by level, in source order."""
    for name, field in model.model_fields.items():
        here = (*path, name)
        inner = _level(field)
        if inner is not None:
            yield from describe(inner, here)
        else:
            variable = ENVIRONMENT_PREFIX + LEVEL_SEPARATOR.join(here).upper()
            yield Setting(".".join(here), variable, _default(field), field.description or "")


def _from_file(file: str | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        with Path(file).open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise InvalidConfig(f"{file} is larger than {MAX_FILE_BYTES} bytes: not a settings file")
        text = data.decode()
        if any(line.count(".") > _MAX_DOTS for line in text.splitlines()):
            raise InvalidConfig(f"{file} has a line of more than {_MAX_DOTS} dots: no setting has such a name")
        return tomllib.loads(text)
    except OSError as error:
        raise InvalidConfig(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidConfig(f"{file} is not a TOML file: {error}") from None


def _from_environment(model: type[BaseModel], variables: Mapping[str, str]) -> dict[str, Any]:
    """Values of this model's variables. Variables with an unknown first level belong to other commands."""
    found: dict[str, Any] = {}
    for name in sorted(variables):
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        path = name.removeprefix(ENVIRONMENT_PREFIX).lower().split(LEVEL_SEPARATOR)
        if path[0] in model.model_fields:
            value: Any = variables[name]
            for level in reversed(path):
                value = {level: value}
            _merge(found, value)
    return found


def _merge(into: dict[str, Any], source: Mapping[str, Any]) -> None:
    """Override level by level. A value replaces the earlier one even if it is empty."""
    for key, value in source.items():
        if isinstance(value, Mapping):
            below = into.get(key)
            into[key] = merged = dict(below) if isinstance(below, Mapping) else {}
            _merge(merged, value)
        else:
            into[key] = value


def _names(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[str]:
    """The names of all settings and levels."""
    for name, field in model.model_fields.items():
        here = (*path, name)
        yield ".".join(here)
        inner = _level(field)
        if inner is not None:
            yield from _names(inner, here)


def validation_messages(error: ValidationError, known: Iterable[str] = ()) -> Iterator[str]:
    """One message for each invalid value.

    Args:
        known: the names of all settings, of which the most similar one is suggested for an unknown name.
    """
    # The search takes long for a file of many unknown names, which is not a settings file.
    names = list(known) if error.error_count() <= _MAX_SUGGESTIONS else []
    for problem in error.errors(include_url=False):
        name = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":
            similar = difflib.get_close_matches(name, names, n=1)
            yield f"{name} is not a setting{f' (did you mean {similar[0]}?)' if similar else ''}"
        elif problem["type"] == "missing":
            yield f"{name} must be set"
        elif problem["loc"]:
            yield f"{name} = {problem['input']!r}: {reason_of(problem)}"
        else:
            yield reason_of(problem)


def _level(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if isinstance(field.default, ByteSize):
        return field.default.human_readable(separator=" ") if field.default else "0"
    if field.default == ():
        return "empty"
    return repr(field.default) if isinstance(field.default, str) else str(field.default).lower()

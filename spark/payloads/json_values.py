"""Converts JSON values to Spark types, in the forms that ``to_json`` writes; docs/use/spark.md has the table.

A timestamp without an offset is in UTC. DOUBLE and FLOAT get the nearest number; all other types are exact or refused.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final

import pyarrow as pa

from .values import Leaf, check

_MOMENT: Final = re.compile(
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.(\d{1,6})(0*))?(Z|[+-]\d\d(?::?\d\d(?::\d\d)?)?)?", re.ASCII
)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_WHOLE: Final = re.compile(r"-?\d{1,19}", re.ASCII)
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LARGEST_FLOAT: Final = float.fromhex("0x1.fffffefffffffp+127")
"""Smaller numbers round to a finite FLOAT."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT_OF_TRUTH: Final = {"true": True, "false": False}


def json_decoder(wanted: pa.DataType) -> Callable[[str], Any]:
    """A JSON decoder for values of a type. Fractions are exact if the type contains decimals."""
    exact = any(pa.types.is_decimal(each) for each in _types_in(wanted))
    return partial(json.loads, parse_float=Decimal if exact else _number)


def json_leaf(value: Any, wanted: pa.DataType) -> Any:
    """Convert a value for Arrow, for a type without nested types.

    Raises:
        TypeError, ValueError, OverflowError: the value does not have the type.
    """
    for fits, convert in _LEAVES:
        if fits(wanted):
            return convert(value, wanted)
    return value


def json_key(text: str, wanted: pa.DataType) -> Any:
    """Convert a key of a map, which is always text in JSON.

    Raises:
        TypeError, ValueError, OverflowError: it does not have the type.
    """
    if pa.types.is_boolean(wanted):
        return json_leaf(_TEXT_OF_TRUTH.get(text, text), wanted)
    if pa.types.is_floating(wanted) and _NUMBER.fullmatch(text):
        return json_leaf(_finite(text), wanted)
    if _WHOLE.fullmatch(text):
        if pa.types.is_integer(wanted):
            return int(text)
        if pa.types.is_date(wanted):
            return date(1970, 1, 1) + timedelta(days=int(text))
        if pa.types.is_timestamp(wanted):
            moment = _EPOCH + timedelta(microseconds=int(text))
            return moment if wanted.tz else moment.replace(tzinfo=None)
    return json_leaf(text, wanted)


def _number(text: str) -> float | Decimal:
    """Parse a fraction. One beyond a DOUBLE is kept as Decimal, since the query may not select its field."""
    found = float(text)
    return Decimal(text) if math.isinf(found) else found


def _truth(value: Any, _wanted: pa.DataType) -> Any:
    check([value], bool, "true or false")
    return value


def _whole(value: Any, _wanted: pa.DataType) -> Any:
    check([value], int, "a whole number")
    return value


def _float(value: Any, wanted: pa.DataType) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TypeError(f"expected a number, not {value!r:.50}")
    found = _finite(value)
    if wanted == pa.float32() and math.isfinite(found) and abs(found) >= _LARGEST_FLOAT:
        raise OverflowError(f"{value!s:.50} is beyond a FLOAT")
    return found


def _finite(number: Any) -> float:
    found = float(number)
    if math.isinf(found) and not isinstance(number, float):
        raise OverflowError(f"{number!s:.50} is beyond a DOUBLE")
    return found


def _decimal(value: Any, _wanted: pa.DataType) -> Decimal:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return Decimal(value)
    if type(value) is int:
        return Decimal(value)
    if not isinstance(value, Decimal):
        raise TypeError(f"expected a decimal number, not {value!r:.50}")
    return value


def _text(value: Any, _wanted: pa.DataType) -> Any:
    check([value], str, "text")
    return value


def _bytes(value: Any, _wanted: pa.DataType) -> bytes:
    check([value], str, "text in Base64")
    return base64.b64decode(value, validate=True)


def _day(value: Any, _wanted: pa.DataType) -> date:
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        raise TypeError(f"expected a date such as 2026-11-01, not {value!r:.50}")
    return date.fromisoformat(value)


def _moment(value: Any, wanted: pa.DataType) -> datetime:
    match = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise TypeError(f"expected a time such as 2026-11-01T00:00:00Z, up to microseconds, not {value!r:.50}")
    seconds, fraction, _zeros, offset = match.groups()
    found = datetime.fromisoformat(f"{seconds}.{(fraction or '0'):0<6}{offset or ''}")
    if not wanted.tz:
        if offset:
            raise ValueError(f"expected a time without an offset, not {value!r:.50}")
        return found
    return found if offset else found.replace(tzinfo=UTC)


_LEAVES: Final[tuple[tuple[Callable[[pa.DataType], bool], Leaf], ...]] = (
    (pa.types.is_string, _text),
    (pa.types.is_integer, _whole),
    (pa.types.is_floating, _float),
    (pa.types.is_boolean, _truth),
    (pa.types.is_timestamp, _moment),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_date, _day),
    (pa.types.is_binary, _bytes),
)


def _types_in(wanted: pa.DataType) -> Iterator[pa.DataType]:
    yield wanted
    for at in range(wanted.num_fields):
        yield from _types_in(wanted.field(at).type)

"""From values of Python, as a decoder gives them, to an Arrow array of the type that is wanted, column by column.

Nothing is bent until it fits: 1.5 is no whole number, and 7 is no text. What is null stays null all the way down.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa


def built(values: Sequence[Any], wanted: pa.DataType, *, textual: bool) -> pa.Array:
    """The values as an array.

    Args:
        textual: times and decimals come as text.

    Raises:
        ArrowException, TypeError, ValueError, OverflowError: one of them does not fit.
    """
    if pa.types.is_struct(wanted):
        return _structs(values, wanted, textual)
    if pa.types.is_map(wanted):
        return _maps(values, wanted, textual)
    if pa.types.is_list(wanted):
        _check(values, list, "a list")
        elements = built([each for value in values for each in value or ()], wanted.value_type, textual=textual)
        return pa.ListArray.from_arrays(_offsets(values), elements, type=wanted)
    if textual and (pa.types.is_temporal(wanted) or pa.types.is_decimal(wanted)):
        return pa.array(values, pa.string()).cast(wanted)
    if pa.types.is_integer(wanted):
        # Arrow would cut off what is behind the point.
        _check(values, int, "a whole number")
    return pa.array(values, wanted)


def _structs(values: Sequence[Any], wanted: pa.StructType, textual: bool) -> pa.Array:
    _check(values, dict, "an object")
    columns = []
    for field in wanted:
        found = [None if value is None else value.get(field.name) for value in values]
        if not field.nullable and any(
            each is None and value is not None for each, value in zip(found, values, strict=True)
        ):
            raise ValueError(f"field {field.name} is missing")
        columns.append(built(found, field.type, textual=textual))
    nulls = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=nulls)


def _maps(values: Sequence[Any], wanted: pa.MapType, textual: bool) -> pa.Array:
    _check(values, dict, "an object")
    keys = built([key for value in values for key in value or ()], wanted.key_type, textual=textual)
    items = built([item for value in values for item in (value or {}).values()], wanted.item_type, textual=textual)
    return pa.MapArray.from_arrays(_offsets(values), keys, items, type=wanted)


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Where the elements of each value begin; null for one that is null."""
    ends = [0, *accumulate(len(value or ()) for value in values)]
    begins = [None if value is None else begin for value, begin in zip(values, ends[:-1], strict=True)]
    return pa.array([*begins, ends[-1]], pa.int32())


def _check(values: Sequence[Any], kind: type, what: str) -> None:
    for value in values:
        if value is not None and type(value) is not kind:
            raise TypeError(f"{what} is wanted, not {value!r:.50}")

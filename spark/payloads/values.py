"""Converts decoded Python values to an Arrow array of a given type, column by column.

Conversion is strict: 1.5 is not an integer, true not a number, 7 not a string. Null stays null at every level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import pyarrow as pa

Leaf: TypeAlias = Callable[[Any, pa.DataType], Any]
"""Converts a value of a type without nested types for Arrow; raises ``TypeError`` or ``ValueError``."""


def built(values: Sequence[Any], wanted: pa.DataType, leaf: Leaf, key: Leaf) -> pa.Array:
    """Build an array.

    Args:
        values: values from the decoder.
        wanted: type of the array.
        leaf: converts values without nested types.
        key: converts keys of maps.

    Raises:
        ArrowException, TypeError, ValueError, OverflowError: a value does not have the type.
    """
    if pa.types.is_struct(wanted):
        return _structs(values, wanted, leaf, key)
    if pa.types.is_map(wanted):
        check(values, dict, "an object")
        keys = [each for value in values for each in value or ()]
        items = built([item for value in values for item in (value or {}).values()], wanted.item_type, leaf, key)
        return pa.MapArray.from_arrays(_offsets(values), _leaves(keys, wanted.key_type, key), items, type=wanted)
    if pa.types.is_list(wanted):
        check(values, list, "a list")
        elements = built([each for value in values for each in value or ()], wanted.value_type, leaf, key)
        return pa.ListArray.from_arrays(_offsets(values), elements, type=wanted)
    return _leaves(values, wanted, leaf)


def plain(value: Any, wanted: pa.DataType) -> Any:
    """Check a value from the Avro decoder, which already has the right Python type."""
    if pa.types.is_integer(wanted):
        # Arrow would truncate a fraction.
        check([value], int, "a whole number")
    elif pa.types.is_floating(wanted) and isinstance(value, bool):
        raise TypeError(f"expected a number, not {value}")
    return value


def check(values: Sequence[Any], kind: type, what: str) -> None:
    """Check that values are null or of exactly this class.

    Raises:
        TypeError: a value is not.
    """
    for value in values:
        if value is not None and type(value) is not kind:
            raise TypeError(f"expected {what}, not {value!r:.50}")


def _leaves(values: Sequence[Any], wanted: pa.DataType, leaf: Leaf) -> pa.Array:
    return pa.array([None if value is None else leaf(value, wanted) for value in values], wanted)


def _structs(values: Sequence[Any], wanted: pa.StructType, leaf: Leaf, key: Leaf) -> pa.Array:
    check(values, dict, "an object")
    columns = []
    for field in wanted:
        found = [None if value is None else value.get(field.name) for value in values]
        if not field.nullable and any(
            each is None and value is not None for each, value in zip(found, values, strict=True)
        ):
            raise ValueError(f"field {field.name} is missing")
        columns.append(built(found, field.type, leaf, key))
    nulls = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=nulls)


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Offsets of the elements of each value; null for a null value."""
    ends = [0, *accumulate(len(value or ()) for value in values)]
    begins = [None if value is None else begin for value, begin in zip(values, ends[:-1], strict=True)]
    return pa.array([*begins, ends[-1]], pa.int32())

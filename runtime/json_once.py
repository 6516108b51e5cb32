"""JSON from outside, in which each name stands once.

Of two fields of one name, Python takes the last, and another program may take the first: what was checked would not be
what is done.
"""

from __future__ import annotations

import json
from typing import Any


def loads_once(text: bytes | str) -> Any:
    """What ``text`` says.

    Raises:
        ValueError: it is no JSON, or an object in it has a field more than once.
        RecursionError: it is nested very deeply.
    """
    return json.loads(text, object_pairs_hook=_each_once)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field is there more than once")
    return found

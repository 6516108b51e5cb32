"""Parser for untrusted JSON that rejects duplicate field names.

Of two fields with one name Python takes the last, but another program may take the first: it would act on a value that
was not checked here.
"""

from __future__ import annotations

import json
from typing import Any


def loads_strict(text: bytes | str) -> Any:
    """Parse ``text``.

    Raises:
        ValueError: it is not JSON, or an object in it has a duplicate field.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_without_duplicates)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("duplicate field")
    return found

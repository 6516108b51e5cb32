"""Errors raised while decoding a JSON record.

Any client may write a record, and JSON permits much that our records do not: huge numbers, nesting deeper than
Python's recursion limit, unencodable text. Decoders catch these errors and report the record as damaged.
"""

from __future__ import annotations

from typing import Final

DECODE_ERRORS: Final = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors that decoding of an invalid record may raise. No Tallybook errors."""

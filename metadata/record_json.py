"""What may be wrong with a record that is JSON.

Such records are small, and few people write them; but anybody may, and JSON has room for much that is not ours:
numbers without an end, lists deeper in one another than Python goes, text that no encoding has. Whoever takes a record
apart says that it is damaged, whatever it is that does not fit.
"""

from __future__ import annotations

from typing import Final

NOT_UNDERSTOOD: Final = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What is raised while a record is taken apart that holds something else. No error of ours is among them."""

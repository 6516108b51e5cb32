"""How many files and connections this process may have open."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

_UNLIMITED: Final = 1 << 20
"""What "no limit" counts as."""


def raise_descriptor_limit() -> int:
    """Raise the limit as far as the system lets an ordinary process, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Where the kernel's own maximum lies below the hard limit, the soft one stays.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft

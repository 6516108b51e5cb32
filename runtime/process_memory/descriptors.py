"""The limit of open files and connections of this process."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

_UNLIMITED: Final = 1 << 20
"""Value that stands for "no limit"."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard limit, if the system allows it, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # The kernel's own maximum may be below the hard limit; then the soft limit stays.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft

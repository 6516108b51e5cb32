"""Tuning of the Python processes in which Spark runs the tasks of a query."""

from __future__ import annotations

import gc

_settled = False


def settle_worker() -> None:
    """Exempt the imported modules from garbage collection, once per process. Call it when a task has read something.

    By then all modules are imported.

    Spark's daemon runs a full collection after each task. It visits every object of every imported module, which takes
    about 70 ms and finds nothing. Objects that are created later are collected as usual.
    """
    global _settled  # noqa: PLW0603 - a property of the process
    if not _settled:
        _settled = True
        gc.collect()  # garbage that is frozen would stay
        gc.freeze()

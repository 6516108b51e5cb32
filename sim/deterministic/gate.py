"""A gate per simulated process, which can freeze or kill everything that the process has scheduled.

Every callback on the loop has the context in which it was scheduled, and a ``ProcessGate`` marks the context of one
process. While the gate is closed, due callbacks of the process are put aside; effects of others on it (arriving
messages, network timers) go on. So a pause works like SIGSTOP, and a kill like ``kill -9``: not one more line of the
process runs, no handler and no clean-up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from types import SimpleNamespace
from typing import Any, Final, TypeVar

T = TypeVar("T")


class ProcessGate:
    """The gate of one process, open at first.

    Args:
        name: shown in messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.open = True
        self.dead = False
        self._held: deque[asyncio.Handle] = deque()
        self._context = copy_context()
        self._context.run(_GATE.set, self)

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task of this process."""
        task: asyncio.Task[T] = asyncio.get_running_loop().create_task(work, name=name, context=self._context.copy())
        return task

    def pause(self) -> None:
        """Freeze the process."""
        self.open = False

    def resume(self) -> None:
        """Resume a frozen process, with callbacks that became due meanwhile. A dead one stays dead."""
        if not self.dead:
            self._reopen()

    def kill(self) -> None:
        """Kill the process: nothing of it runs any more."""
        self.open, self.dead = False, True

    def bury(self) -> None:
        """Open the gate at the end of a run, so that the rest of the process can be cancelled."""
        self._reopen()

    def hold(self, handle: asyncio.Handle) -> None:
        """Put a due callback aside."""
        self._held.append(handle)

    def _reopen(self) -> None:
        self.open = True
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]  # noqa: SLF001 - ours: a GatedQueue
        ready.extend(self._held)
        self._held.clear()


_GATE: ContextVar[ProcessGate | None] = ContextVar("gate", default=None)

_NOTHING: Final[Any] = SimpleNamespace(_cancelled=True)
"""A cancelled handle, which a loop skips."""


def outside() -> Context:
    """A context that belongs to no process, for actions of the network or of the metadata store."""
    return Context()


class GatedQueue(deque[asyncio.Handle]):
    """The ready queue of a loop, which puts callbacks of closed gates aside."""

    def popleft(self) -> asyncio.Handle:
        """The next handle, or one that the loop skips."""
        handle = super().popleft()
        gate = handle._context.get(_GATE)  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio has no other way
        if gate is None or gate.open:
            return handle
        gate.hold(handle)
        nothing: asyncio.Handle = _NOTHING
        return nothing

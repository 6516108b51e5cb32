"""One process of a simulation: what it has scheduled can be frozen, or never run again.

Every callback on the loop carries the context of whoever scheduled it, and a ``Gate`` marks
the context of one process. While the gate is shut, callbacks of that process which are due
are put aside instead of being run; what others do to it (a message arrives, a timer of the
network) goes on. So a pause is what SIGSTOP is, and a kill is what ``kill -9`` is: not one more
line of the process runs, no handler and no clean-up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from types import SimpleNamespace
from typing import Any, Final, TypeVar

T = TypeVar("T")


class Gate:
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
        """Begin a task of this process."""
        task: asyncio.Task[T] = asyncio.get_running_loop().create_task(work, name=name, context=self._context.copy())
        return task

    def pause(self) -> None:
        """Freeze the process."""
        self.open = False

    def resume(self) -> None:
        """Let a frozen process go on, with what has become due meanwhile. A dead one stays dead."""
        if not self.dead:
            self._reopen()

    def kill(self) -> None:
        """Nothing of this process runs any more."""
        self.open, self.dead = False, True

    def bury(self) -> None:
        """At the end of a run: let what is left of the process be cancelled like everything else."""
        self._reopen()

    def hold(self, handle: asyncio.Handle) -> None:
        """Put aside what is due."""
        self._held.append(handle)

    def _reopen(self) -> None:
        self.open = True
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]  # noqa: SLF001 - ours: a GatedQueue
        ready.extend(self._held)
        self._held.clear()


_GATE: ContextVar[Gate | None] = ContextVar("gate", default=None)

_NOTHING: Final[Any] = SimpleNamespace(_cancelled=True)
"""A loop skips what is cancelled."""


def outside() -> Context:
    """A context that belongs to no process: for what the network, or the metadata store, does by itself."""
    return Context()


class GatedQueue(deque[asyncio.Handle]):
    """What a loop will run next, without what belongs to processes whose gate is shut."""

    def popleft(self) -> asyncio.Handle:
        """The next handle, or one that the loop skips."""
        handle = super().popleft()
        gate = handle._context.get(_GATE)  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio has no other way
        if gate is None or gate.open:
            return handle
        gate.hold(handle)
        nothing: asyncio.Handle = _NOTHING
        return nothing

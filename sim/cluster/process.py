"""A process of a simulated cluster: a bookie or a client, with a gate, a network and a way to the metadata.

It can be killed (not one more line of it runs), frozen and thawed, and it is one or the other
as a whole: its tasks, its connections and its session go together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from tallybook.runtime.deterministic import Gate, SimClock, SimNet, SimTransport
from tallybook.runtime.rng import Rng

from .bucket import Bucket
from .god import God
from .metadata import MetadataSession, SimMetadata


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all processes of a cluster share."""

    net: SimNet
    metadata: SimMetadata
    god: God
    rng: Rng
    keepalive_seconds: float
    """How long peers wait for a sign of life of a process that is frozen."""
    note: Callable[..., None]
    gates: list[Gate] = field(default_factory=list)
    """Of every process there ever was."""
    bucket: Bucket | None = None
    """The object store, in runs that have one."""

    def bury(self) -> None:
        """At the end of a run: let what is left of dead and frozen processes be cancelled."""
        for gate in self.gates:
            gate.bury()


class SimProcess:
    """One life of a process.

    Args:
        name: of the node it runs on, in the network and the metadata.
    """

    def __init__(self, name: str, around: Surroundings, clock: SimClock, rng: Rng) -> None:
        self.name = name
        self.clock = clock
        self.rng = rng
        self.gate = Gate(name)
        around.gates.append(self.gate)
        self.transport: SimTransport = around.net.transport(name)
        self.session: MetadataSession = around.metadata.session(name, self.gate)
        self._around = around
        self._freezes = 0
        self.ended = asyncio.Event()
        """Set when the process is dead, or has ended by itself."""

    @property
    def frozen(self) -> bool:
        """Whether it is frozen and not dead."""
        return not self.gate.open and not self.gate.dead

    @property
    def dead(self) -> bool:
        """Whether it was killed."""
        return self.gate.dead

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` in this process."""
        return self.gate.spawn(work, name=f"{self.name} main")

    def freeze(self) -> None:
        """Stop it in its tracks. Peers that hear nothing for the keepalive time give their connections up."""
        if self.gate.open:
            self._freezes += 1
            freezes = self._freezes
            self.gate.pause()
            self.session.watch_over()
            self._around.metadata.later(self._around.keepalive_seconds, lambda: self._given_up(freezes))

    def thaw(self) -> None:
        """Let it go on."""
        self.gate.resume()

    def kill(self, *, silent: bool = False) -> None:
        """End it, with its machine where ``silent``: then nobody tells its peers."""
        if not self.gate.dead:
            self.gate.kill()
            self._around.net.kill(self.name, silent=silent)
            self.session.end()
            self.ended.set()

    def _given_up(self, freezes: int) -> None:
        if self.frozen and self._freezes == freezes:
            self._around.net.reset_all(self.name)

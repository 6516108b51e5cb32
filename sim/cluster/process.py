"""A simulated process (bookie or client) with a gate, a network transport and a metadata session.

It can be killed (not one more line of it runs), frozen and thawed. Its tasks, connections and session share that state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from tallybook.runtime.rng import Rng

from ..deterministic import ProcessGate, SimClock, SimNet, SimTransport
from ..oracle.oracle import Oracle
from .bucket import Bucket
from .metadata import MetadataSession, SimMetadata


@dataclass(frozen=True, slots=True)
class SimEnvironment:
    """Network, stores, oracle and randomness that all processes of a cluster share."""

    net: SimNet
    metadata: SimMetadata
    oracle: Oracle
    rng: Rng
    keepalive_seconds: float
    """After so long without traffic from a frozen process its peers give the connection up."""
    note: Callable[..., None]
    gates: list[ProcessGate] = field(default_factory=list)
    """Gates of all processes of the run, dead ones included."""
    bucket: Bucket | None = None
    """The object store, in runs that have one."""

    def bury(self) -> None:
        """Cancel what is left of dead and frozen processes, at the end of a run."""
        for gate in self.gates:
            gate.bury()


class SimProcess:
    """One life of a process.

    Args:
        name: of its node, in the network and the metadata store.
    """

    def __init__(self, name: str, env: SimEnvironment, clock: SimClock, rng: Rng) -> None:
        self.name = name
        self.clock = clock
        self.rng = rng
        self.gate = ProcessGate(name)
        env.gates.append(self.gate)
        self.transport: SimTransport = env.net.transport(name)
        self.session: MetadataSession = env.metadata.session(name, self.gate)
        self._env = env
        self._freezes = 0
        self.ended = asyncio.Event()
        """Set when the process was killed, or has ended by itself."""

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
        """Pause all of its tasks. Peers that hear nothing for the keepalive time give their connections up."""
        if self.gate.open:
            self._freezes += 1
            freezes = self._freezes
            self.gate.pause()
            self.session.start_timeout()
            self._env.metadata.later(self._env.keepalive_seconds, lambda: self._given_up(freezes))

    def thaw(self) -> None:
        """Resume a frozen process."""
        self.gate.resume()

    def kill(self, *, silent: bool = False) -> None:
        """Kill it; if ``silent``, with its machine, so that no peer is notified."""
        if not self.gate.dead:
            self.gate.kill()
            self._env.net.kill(self.name, silent=silent)
            self.session.end()
            self.ended.set()

    def _given_up(self, freezes: int) -> None:
        if self.frozen and self._freezes == freezes:
            self._env.net.reset_all(self.name)

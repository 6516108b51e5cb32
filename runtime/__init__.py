"""The only door to the outside world: clock, randomness, disk, network, tasks, threads and processes.

Each is a small protocol with a real implementation, so that tests and the simulator can put
another one (``runtime.deterministic``) in its place. Components receive what they need in their
constructor. What stands below is enough for most of them; gRPC, settings and logging are
imported from their own modules by the few that need them.
"""

import os

from .clock import Clock, RealClock
from .disk import DirectoryLock, Disk, DiskFile, PlannedWrite, Pump, Space, WriteSource
from .disk_real import RealDisk
from .process import Process, RealProcess
from .rng import Rng, SeededRng, SystemRng
from .tasks import InlineWorkers, Tasks, ThreadWorkers, Workers
from .transport import Acceptor, Lane, Listener, MessageStream, Transport

# gRPC looks at these when it is first imported.
# Whenever a connection is lost it writes to standard error in a form of its own; who wants those lines sets INFO.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# Sockets are polled by the thread that hands out what was received. The other way, by threads of an "event engine",
# takes more changes of threads for every message, which was a quarter to a third of all entries a second.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

__all__ = [
    "Acceptor",
    "Clock",
    "DirectoryLock",
    "Disk",
    "DiskFile",
    "InlineWorkers",
    "Lane",
    "Listener",
    "MessageStream",
    "PlannedWrite",
    "Process",
    "Pump",
    "RealClock",
    "RealDisk",
    "RealProcess",
    "Rng",
    "SeededRng",
    "Space",
    "SystemRng",
    "Tasks",
    "ThreadWorkers",
    "Transport",
    "Workers",
    "WriteSource",
]

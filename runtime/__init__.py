"""The seams to the outside world: clock, randomness, disk, network, tasks, threads and processes.

    clock, rng, tasks, process, transport, disk/   the seams: small protocols, each with its real implementation
    grpc/ http/                                    the transport, and what a process serves to operators
    security/                                      certificates, tokens, keys, and who called
    metrics/ tracing/ logging, audit               what a process tells
    concurrency/ blocking/ process_memory/         building blocks of asyncio code, threads and memory

Tests and the simulator replace a seam with one of ``sim.deterministic``. Components receive their seams in their
constructor. The names exported here are enough for most components; gRPC, HTTP, settings and logging are imported from
their own modules. Nothing here knows ledgers, bookies or streams, and product code outside ``runtime`` uses no clock,
file or socket of Python directly.
"""

import os

from .clock import Clock, RealClock
from .disk.os_disk import RealDisk
from .disk.port import DirectoryLock, Disk, DiskFile, PlannedWrite, Pump, Space, WriteSource
from .process import Process, RealProcess
from .rng import Rng, SeededRng, SystemRng
from .tasks import InlineWorkers, Tasks, ThreadWorkers, Workers
from .transport import Acceptor, Listener, MessageStream, Transport

# gRPC reads these variables when it is first imported.
# It logs each lost connection to standard error in its own format; set INFO to see these lines.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# Poll sockets on the thread that delivers received messages. gRPC's "event engine" threads need more context switches
# for each message, which cost a quarter to a third of the entries per second (measured).
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

__all__ = [
    "Acceptor",
    "Clock",
    "DirectoryLock",
    "Disk",
    "DiskFile",
    "InlineWorkers",
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

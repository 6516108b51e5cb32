"""The seams in memory, driven by virtual time and one seed: what simulation and crash tests run on.

``run_seed`` runs a scenario on a loop whose clock moves only when nothing is left to do.
``SimDisk``, ``SimNet`` and ``SimClock`` stand where the real disk, network and clock stand;
``enumerate_crashes`` tries every power loss of a workload.
"""

from .clock import SimClock
from .content import Content
from .crash import CrashFound, CrashReport, Promises, enumerate_crashes
from .disk import SimDisk
from .fates import CrashOptions
from .faults import NO_LATENCY, DiskFault, Effect, Latency, Operation
from .gate import Gate, outside
from .link import Link
from .loop import Leak, SimLoop, Stuck, Unhandled
from .net import SimNet, SimTransport
from .state import DiskState
from .world import SeedRun, World, run_once, run_seed, run_untraced

__all__ = [
    "NO_LATENCY",
    "Content",
    "CrashFound",
    "CrashOptions",
    "CrashReport",
    "DiskFault",
    "DiskState",
    "Effect",
    "Gate",
    "Latency",
    "Leak",
    "Link",
    "Operation",
    "Promises",
    "SeedRun",
    "SimClock",
    "SimDisk",
    "SimLoop",
    "SimNet",
    "SimTransport",
    "Stuck",
    "Unhandled",
    "World",
    "enumerate_crashes",
    "outside",
    "run_once",
    "run_seed",
    "run_untraced",
]

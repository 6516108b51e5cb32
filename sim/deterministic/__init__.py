"""Deterministic implementations of the runtime seams, driven by virtual time and one seed.

``run_seed`` (``world``) is the entrance: it runs a scenario on a loop whose clock moves only when nothing is left to
do. ``SimDisk``, ``SimNet`` and ``SimClock`` replace the real disk, network and clock; ``enumerate_crashes`` tries every
power loss of a workload. Nothing here knows bookies, clients or ledgers.
"""

from .clock import SimClock
from .content import Content
from .crash import CrashFound, CrashReport, Promises, enumerate_crashes
from .crash_outcomes import CrashOptions
from .disk import SimDisk
from .faults import NO_LATENCY, DiskFault, DiskOperation, Effect, Latency
from .gate import ProcessGate, outside
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
    "DiskOperation",
    "DiskState",
    "Effect",
    "Latency",
    "Leak",
    "Link",
    "ProcessGate",
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

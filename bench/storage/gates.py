"""Gates of the storage benchmarks, and the introduction of their page."""

from __future__ import annotations

from typing import Final

from ..pages import lower_bound, upper_bound

HEAD: Final = """# Benchmarks of storage maintenance

What a bookie does besides adds and reads, and how this affects adds: freeing space after ledgers were deleted, readers
that catch up, the repair of the copies of a dead bookie, a scrub that finds a flipped byte on the disk, a disk that is
filled completely, a bookie with very many small ledgers. `make bench-storage` writes this page. It contains all
results, good or bad.

Each part has its own cluster on the machine below, which the loads share. Adds are an open loop at a fixed moderate
rate. Each comparison alternates between its two sides within one run, and a ratio is the median of such pairs. The
size of an entry log is a twentieth of a fill, at most 1 GiB, and the garbage collector pauses for ten seconds between
passes.
"""

SPACE: Final = "room"
CATCH_UP: Final = "catch-up"
PEER: Final = "peer"
ROT: Final = "rot"
BRIM: Final = "brim"
REPAIR: Final = "repair"
MANY: Final = "many"
PARTS: Final = (SPACE, CATCH_UP, REPAIR, ROT, BRIM, MANY)

GATES: Final = (
    # The workload of a gate is the part that an option can switch off.
    lower_bound(
        "room_regained_part",
        0.85,
        "share of the space of deleted ledgers (nine of ten) that is free after two passes; worst bookie and round",
        SPACE,
    ),
    upper_bound("room_p99_ratio", 1.5, "99th percentile of adds meanwhile, relative to before", SPACE),
    lower_bound(
        "catch_up_rate_part", 0.9, "rate of these readers, relative to half of their rate alone; worst round", CATCH_UP
    ),
    upper_bound(
        "catch_up_p99_ratio", 1.5, "99th percentile of adds beside readers that catch up, relative to without", CATCH_UP
    ),
    upper_bound("catch_up_to_peer", 1, "the same ratio, relative to that of BookKeeper in the same round", PEER),
    lower_bound("repair_rate_part", 0.5, "rate of a repair beside reads, relative to its rate alone", REPAIR),
    upper_bound(
        "repair_p99_ratio",
        1.5,
        "99th percentile of random reads beside the repair, relative to before the bookie died",
        REPAIR,
    ),
    upper_bound("repair_lacking", 0, "ledgers that lack a good copy after the repair (all copies are read)", REPAIR),
    upper_bound("rot_periods", 1, "scrub periods until a flipped byte is found; longest", ROT),
    upper_bound(
        "rot_lacking", 0, "ledgers that lack a good copy after the repair of flipped bytes (all copies are read)", ROT
    ),
    lower_bound("brim_full", 3, "times that a disk was filled completely and the bookie was read-only", BRIM),
    lower_bound("brim_back", 3, "times that it accepted adds again after half of the ledgers were deleted", BRIM),
    upper_bound("brim_lost", 0, "confirmed entries that were lost or changed", BRIM),
    upper_bound("many_start_seconds", 30, "seconds to start a bookie with very many small ledgers", MANY),
    upper_bound("many_memory_mib", 512, "MiB of memory that it needs; highest of all steps", MANY),
)

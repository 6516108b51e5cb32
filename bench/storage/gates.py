"""Gates of the storage benchmarks, and the introduction of their page."""

from __future__ import annotations

from typing import Final

from ..pages import lower_bound, upper_bound

HEAD: Final = """# Benchmarks of storage maintenance

What a bookie does besides adds and reads, and what adds notice of it: space that is freed when ledgers are deleted,
readers that catch up, a bookie that dies and whose copies are made again, a scrub that finds a byte which flipped on
the disk, a disk that is filled to the brim, a bookie with very many small ledgers. This page is written by
`make bench-storage`; it contains all results, good or bad.

Each part has a cluster of its own on the machine below, which shares it with the loads. Adds are an open loop at a
fixed modest rate. What is compared takes turns within one run, and ratios are medians of such pairs. Entry logs have a
twentieth of a fill, at most 1 GiB, and the collector rests for ten seconds between its rounds.
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
        "space regained two passes after nine of ten ledgers were deleted, of what they held; worst bookie and turn",
        SPACE,
    ),
    upper_bound("room_p99_ratio", 1.5, "99th percentile of adds meanwhile, to that before", SPACE),
    lower_bound(
        "catch_up_rate_part", 0.9, "rate of these readers, of half of what they reach alone; worst turn", CATCH_UP
    ),
    upper_bound(
        "catch_up_p99_ratio", 1.5, "99th percentile of adds beside readers that catch up, to that without", CATCH_UP
    ),
    upper_bound("catch_up_to_peer", 1, "the same ratio, to that of BookKeeper in the same turn", PEER),
    lower_bound("repair_rate_part", 0.5, "rate of a repair, of the slower of reading and writing one bookie", REPAIR),
    upper_bound(
        "repair_p99_ratio", 1.5, "99th percentile of random reads since the bookie died, to that before", REPAIR
    ),
    upper_bound("repair_lacking", 0, "ledgers that lack a good copy after the repair, each copy read whole", REPAIR),
    upper_bound("rot_periods", 1, "periods of a scrub until a flipped byte was found, the longest of several", ROT),
    upper_bound("rot_lacking", 0, "ledgers that lack a good copy after the flipped bytes were repaired, all read", ROT),
    lower_bound("brim_full", 3, "times that a disk was filled to the brim, and the bookie was read-only", BRIM),
    lower_bound("brim_back", 3, "times that it took adds again after half of the ledgers were deleted", BRIM),
    upper_bound("brim_lost", 0, "confirmed entries that were not as they were written", BRIM),
    upper_bound("many_start_seconds", 30, "seconds to start a bookie with very many small ledgers", MANY),
    upper_bound("many_memory_mib", 512, "MiB of memory that it needs for them, the most in any step", MANY),
)

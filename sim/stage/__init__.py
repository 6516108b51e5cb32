"""A real bookie alone, on a simulated disk.

    disk_bookie    the bookie, through restarts and crashes
    left_disk      disks that an earlier bookie has left, with which a simulated one begins

Simulated runs of a whole cluster are elsewhere (``sim/run.py``).
"""

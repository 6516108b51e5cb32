"""Test equipment: a client or a bookie alone, with simulated surroundings.

    MemoryCluster    real clients on in-memory bookies, without a wire (``cluster``, ``scenario``)
    DiskBookie       a real bookie on a simulated disk, through restarts (``disk_bookie``)

The planted bugs (``sim/bugs/``) use these, too. Equipment that only tests use is in ``tests/support/``. Simulated runs
of a whole cluster are elsewhere (``sim/run.py``); they use only ``disk_bookie`` and ``left_disk`` of this.
"""

"""The stage for plays of one part: equipment with which a test puts a client, or a bookie, before what it has to meet.

    MemoryCluster    real clients on whole bookies in memory, without a wire (``cluster``, ``scenario``, ``tail``)
    held_stores      metadata stores in which updates wait, get lost or are refused
    DiskBookie       a real bookie on a simulated disk, life after life (``disk_bookie``)
    real_bookie      real bookies behind a simulated wire

The whole cluster that lives from one seed is another matter: that is ``sim/run.py`` and what it uses.
"""

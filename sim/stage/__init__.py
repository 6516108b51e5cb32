"""Test equipment: a client, a bookie, an offloader or a gateway alone, with simulated surroundings.

    MemoryCluster    real clients on in-memory bookies, without a wire (``cluster``, ``scenario``, ``tail``)
    metadata_faults  metadata stores that delay, lose or refuse updates
    DiskBookie       a real bookie on a simulated disk, through restarts (``disk_bookie``)
    real_bookie      a real bookie with RocksDB on the local disk
    ArchiveStage     an object store and offloaders beside a MemoryCluster (``archive``, ``steps``)

Simulated runs of a whole cluster are elsewhere (``sim/run.py``); they use only ``disk_bookie``, ``left_disk`` and
``memory_index`` of this.
"""

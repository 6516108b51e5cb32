"""Equipment that several folders of tests share, built on ``sim/``.

    memory_cluster    real clients on in-memory bookies, without a wire (``direct_connections``, ``ledger_scenario``)
    journal_bench     the journal alone, on a simulated disk
    wire_bench        a bookie's service on a simulated network, with raw streams that may violate the protocol
    real_bookie       a real bookie with RocksDB on the local disk
    damage            flipped bits, a damaged journal, and what a bookie says of an entry afterwards
    rocks             the tables of RocksDB below an index
    archive_stage     an object store and offloaders beside a MemoryCluster
    gateway_calls     gateway calls whose requests and replies are in memory
    gateways          gateways on a MemoryCluster, and clients of their stream service
    deliveries, tail  a Spark-like delivering process; a background reader whose metadata store can be cut off
    streams           the metadata of streams as the store has them
    steps             stops or disturbs an offloader at one of its calls
    waiting           waits for what sets no event
    cancellation      cancels a coroutine at each of its awaits in turn
    metadata_faults   metadata stores that delay, lose or refuse updates
    faulty_metadata   a metadata store with every fault that the port permits
    archive_keys, late_clock, tracing    archive keys, a clock and a tracer in memory

Tests import this relatively, and it imports no test. What a simulated run or a planted bug needs is in ``sim/``.
"""

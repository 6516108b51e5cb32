"""Equipment that several folders of tests share, built on ``sim/``. The main modules, of which each explains itself:

    memory_cluster, direct_connections, ledger_scenario   real clients on in-memory bookies, without a wire
    real_bookie, wire_bench, journal_bench                one bookie on the local disk; its service; its journal alone
    damage, rocks                                         damage to files and to the index
    archive_stage, steps, archive_keys                    an object store and offloaders beside a MemoryCluster
    streams, deliveries, gateways, gateway_calls          streams, a Spark-like delivering process, gateways
    metadata_faults, faulty_metadata, fault_script        metadata stores with faults
    waiting, cancellation, late_clock, tracing            time, cancelled calls, and spans

Tests import this relatively, and it imports no test. What a simulated run or a planted bug needs is in ``sim/``.
"""

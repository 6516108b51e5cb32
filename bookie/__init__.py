"""One storage server ("bookie"): makes batches durable in its journal, serves them, and moves them to entry logs.

    bookie.py     the bookie itself; implements ``port.LedgerStore``
    process/      the server process around it: boot, assembly of the parts, registration, HTTP endpoints
    rpc/          bookie.proto on gRPC streams, in front of the port
    write/ read/ ledgers/   the add path, the read path, and the state of each ledger: fences, keys, identities
    journal/ storage/       the write-ahead log; caches, checkpoints, entry logs, index
    gc/ scrub/ recovery/ directories/   background work, boot after a loss, and the directories on disk

``parts.py`` lists what a bookie consists of; ``boot_times.py`` and ``fail_safe.py`` are used by several rooms. Nothing
here imports the client, and only ``process/`` and ``rpc/`` know how a bookie is reached.
"""

"""One storage server ("bookie"): makes batches durable in its journal, serves them, and moves them to entry logs.

    bookie.py     the bookie itself; implements ``port.LedgerStore``
    process/      the server process around it: boot, assembly of the parts, registration, HTTP endpoints
    rpc/          bookie.proto on gRPC streams, in front of the port
    write/ read/  the add path and the read path
    ledgers/      state of each ledger: fences, keys, identities
    journal/      write-ahead log
    storage/      caches, checkpoints, entry logs, index
    gc/ scrub/ recovery/ directories/   background work, boot after a loss, and the directories on disk
    parts.py, metrics.py                      what a bookie consists of, and its metrics
    boot_times.py, fail_safe.py               used by several rooms

Nothing here imports the client, and only ``process/`` and ``rpc/`` know how a bookie is reached.
"""

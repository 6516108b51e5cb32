"""Background work of a bookie: what repair, offload, scrub, compaction, read-ahead and checkpoints may use.

Each of them spends its bytes from one budget, which gives way to foreground requests. Nothing here reads or writes.
"""

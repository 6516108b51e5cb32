"""Benchmarks of what a bookie does beside adds and reads: `python -m tallybook.bench.storage`.

Room that is given back (`room`), readers that catch up, beside the peer (`catch_up`), a byte that flips on the disk
(`rot`), a disk that fills up (`brim`). Each has a cluster of its own; loads are processes, as a user's would be.
"""

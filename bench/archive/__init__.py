"""Benchmarks of history: how fast ledgers go to the archive, what reads from there cost, and how fast Spark is.

`python -m tallybook.bench.archive` runs all of it on a cluster of its own, one load after the other. Each is a process
(`offload_load`, `cluster_load`, `spark_load`), so that the memory and the time of one are not those of another.
"""

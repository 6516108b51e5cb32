"""Benchmarks of the archive: rate of offloading, cost of reads from the archive, and speed of Spark.

`python -m tallybook.bench.archive` runs all of them on a cluster of its own, one load after the other. Each load is a
process (`offload_load`, `cluster_load`, `spark_load`), so that its memory and time are measured separately. Only
`gates` judges figures; servers are started by `bench/equipment`.
"""

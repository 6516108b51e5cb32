"""Benchmarks of history: how fast ledgers go to the archive, what reads from there cost, and how fast Spark is.

`python -m tallybook.bench.archive` runs all of it on a cluster of its own, one load after the other.
"""

"""Benchmarks of a cluster as it runs in production: `python -m tallybook.bench.operation`.

What TLS costs (`tls`), what becomes of a cluster that is asked for ten times of what it can do (`overload`, with the
arithmetic in `fairness` and the load in `crowd`), and how long a program waits for its imports (`imports`). What is
compared takes turns; loads are processes, as a user's would be.
"""

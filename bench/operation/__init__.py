"""Benchmarks of operation in production: `python -m tallybook.bench.operation`.

The cost of TLS (`tls`), a cluster at ten times its peak load (`overload`, with `fairness` and the load `crowd`), and
import times (`imports`). Compared runs alternate; loads are separate processes, like those of users. Only `gates`
judges figures; servers are started by `bench/equipment`.
"""

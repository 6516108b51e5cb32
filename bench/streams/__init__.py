"""Benchmarks of streams: `python -m tallybook.bench.streams`.

``stream_load.py`` and ``gateway_load.py`` are the loads, processes of their own; only ``gates.py`` judges figures.
Servers are started by ``bench/equipment``.
"""

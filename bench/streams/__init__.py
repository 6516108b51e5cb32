"""Benchmarks of streams: `python -m tallybook.bench.streams`.

``stream_load.py`` and ``gateway_load.py`` are the loads, ``gates.py`` has the gates.
"""

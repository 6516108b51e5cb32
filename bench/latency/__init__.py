"""Latency of adds beside a bad member or a busy disk: `python -m tallybook.bench.latency`.

``faults.py`` makes a bookie slow, paused or dead, or the disk busy; ``cases.py`` compares the latency of one load
before and during a fault. Only ``gates.py`` judges figures.
"""

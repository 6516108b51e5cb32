"""Benchmarks: loads for a cluster, and comparisons with other systems.

``tallybook bench`` (``cli/measure``) runs single loads on any cluster. ``python -m tallybook.bench`` runs Tallybook and
BookKeeper, or NATS and Redis, in turns on this machine and writes docs/project/benchmarks.md or benchmarks-peers.md
(``compare/``). ``archive/``, ``latency/``, ``operation/``, ``storage/``, ``streams/`` and ``soak/`` are programs with
gates and pages of their own; ``profile/`` and ``scale/`` write pages without gates, on costs. ``equipment/`` starts
servers and reads the machine. No server module may import this room.
"""

"""Benchmarks: loads to put on a cluster, and side-by-side runs against a peer.

``tallybook bench`` runs the single loads (``add_load``, ``read_load``, ``journal_probe``) on any
cluster. ``python -m tallybook.bench`` compares: it runs Tallybook and Apache BookKeeper in turns
on this machine, and writes docs/benchmarks.md. Reading order::

    gates        what must hold, and over which workloads
    comparison   rounds: starts both systems, loads them in turns, keeps every figure
    systems      Tallybook and BookKeeper as the comparison sees them
    report       figures to tables, docs/benchmarks.md
"""

"""A bookie in memory: it answers as the protocol asks, and has no disk, index or wire.

``bookie`` is the entrance. Scenario tests and short plays use it where a real bookie would only cost time; ``faults``
makes it give the three wrong answers. ``index`` is the index in memory of a real bookie on a simulated disk.
"""

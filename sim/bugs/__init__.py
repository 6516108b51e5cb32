"""Bugs planted on purpose: each changes a function of the product at run time, and a simulated run must detect it.

``catalog`` is the entrance (``BUGS``, ``planted``); the other modules list bugs by area. ``search`` finds a seed that
detects a bug, ``table`` writes the table in docs/project/planted-bugs.md. Product code must not import this package.
"""

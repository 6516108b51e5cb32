"""Blocking stream handles: the asyncio handles, driven from any thread.

``tallybook.stream.sync`` is the entrance. ``generated`` has the classes, which ``scripts/gen-blocking`` generates from
the asyncio classes; ``store``, ``writer`` and ``reader`` have their bases, where threads meet. No rules of streams
here: those are in the asyncio handles.
"""

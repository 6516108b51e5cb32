"""Blocking ledger handles: the asyncio handles, driven from any thread.

``tallybook.client.sync`` is the entrance. ``generated`` has the classes, which ``scripts/gen-blocking`` generates from
the asyncio classes; ``client``, ``writer`` and ``reader`` have their bases, where threads meet. ``thread_handoff``
passes appends from threads to the event loop in batches; the stream library uses it too. No protocol rules here: those
are in the asyncio handles.
"""

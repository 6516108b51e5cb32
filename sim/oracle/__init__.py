"""Checks of a simulated run: which invariant does it violate, and does it make progress after healing?

``oracle`` is the entrance: it records acknowledgements and violations while the run goes on; ``observed_bookie``,
``archive_oracle`` and ``stream_ledgers`` feed it. ``liveness`` and ``audit`` run after healing, with one module for
each larger check. Checks read product state, also private state; they must not change what the product does.
"""

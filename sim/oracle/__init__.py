"""Checks while a simulated run goes on: which invariant does it violate?

``oracle`` is the entrance: it records acknowledgements and violations; ``observed_bookie`` and ``stream_ledgers`` feed
it. ``injected_damage`` logs damage to durable data, which alone excuses a loss. It knows no actors and no faults, and
must not change what the product does.
"""

"""Reports for operators: cluster overview, copy check, drain progress, entry trace.

Entrance: one function or class of each module, called by the CLI and by the gateway's console; ``report`` turns their
results into JSON. Modules here read metadata and ask bookies. Only ``drain.switch_mode`` writes: the mode that an
operator wants of a bookie.
"""

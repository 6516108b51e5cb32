"""Load generators and measurements of ``tallybook bench``.

Entrance: ``adds.measure_adds``, ``reads.measure_reads`` and ``journal.measure_journal``. They take a client or a
directory and return figures; nothing here prints, judges a figure or starts a process.
"""

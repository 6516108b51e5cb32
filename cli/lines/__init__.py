"""Lines from standard input into ledgers and streams, and entries and records as lines on standard output.

Entrance: the module of each command, such as ``ledger_append`` or ``stream_read``; they share ``feed``, which reads and
appends with a bounded number of lines in flight, and ``pipes``. ``stream_options`` parses options of several commands;
nothing else here knows the command line.
"""

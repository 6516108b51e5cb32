"""The disk seam: the port, and its implementation on the operating system.

``port`` is the entrance: it defines what is durable and when. ``os_disk`` implements it with ``os_file`` (an open
file), ``os_pump`` (the thread of the journal's writes) and ``os_calls`` (system calls). ``directories`` is for files
that other libraries open, such as SQLite. Formats of files and knowledge of ledgers do not belong here.
"""

"""Memory and file descriptors of the process.

``idle_trim`` returns freed memory to the system while the process is idle, ``descriptors`` raises the limit of open
files. How the allocator itself is tuned is in ``runtime.tuning``, which is public. Nothing here knows what the process
does.
"""

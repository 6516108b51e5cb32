"""Building blocks of asyncio code: limits, rates, back-off, deadlines, iterators and thread pools.

``handle_lifetime`` decides what the close of a handle does to its waiting calls, ``async_iterators`` makes iterators
that survive a timeout, ``weighted_semaphore`` and ``rate_limit`` bound resources. Nothing here does I/O itself or logs;
time comes from the clock seam.
"""

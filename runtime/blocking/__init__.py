"""The base of the blocking APIs: an event loop in a thread, called from other threads.

``loop_thread`` is the entrance: ``LoopThread`` runs coroutines for callers that block, and ``ThreadHandOff`` passes
many small items to the loop. ``handle`` is the base of the blocking handles. ``iteration`` iterates over async
iterators from other threads. Nothing here knows ledgers or streams; the blocking clients are in ``client/blocking`` and
``stream/blocking``.
"""

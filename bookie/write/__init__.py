"""The add path: from a batch of a client to an ack.

``add_path.AddPath.take`` is the entrance. ``admission`` answers BUSY, ``space_waiters`` has the adds that wait for
space, ``pending_acks`` passes records to the journal and answers adds once they are durable, ``fencing`` refuses adds,
and ``repair_adds`` and ``overlap_trim`` treat copies that a repair brings. Nothing here reads for clients, and nothing
writes entry logs.
"""

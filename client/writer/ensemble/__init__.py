"""The members of a writer's ensemble: their state, failure detection and reconnecting.

``members``, ``failure_detector`` and ``update_errors`` are rules without I/O. ``connecting`` and ``metadata_queue`` are
shared by the writers of a client. ``client/writer/ensemble_change`` replaces members, and ``client/placement`` chooses
bookies. Nothing here knows what is appended.
"""

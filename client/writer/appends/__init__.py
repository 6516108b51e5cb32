"""Gathers a writer's entries into batches and completes the callers' appends.

Entrance: ``appends.Appends``. Nothing here knows bookies or acks: the writer machine reports what is confirmed.
"""

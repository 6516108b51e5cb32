"""Requests that read: entries, the LAC, the inventory of held ranges, and the trace of one copy.

``read_path.ReadPath`` serves reads from write cache and storage. Nothing here changes what is stored.
"""

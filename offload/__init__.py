"""Moves closed ledgers into the archive, and keeps the archive in order.

`policy` decides what goes and how it is packed, from metadata alone.
"""

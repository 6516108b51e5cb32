"""Writes a stream: gathers records into envelopes, appends them to segments, and takes over from the previous writer.

Entrance: `handle.StreamWriter`; `takeover` makes one. `flow` has the order of records, `segments` makes, seals and
recovers the ledgers. The encoding is in `stream/records`.
"""

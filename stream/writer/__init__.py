"""Writes a stream: gathers records into envelopes, appends them to segments, and takes over from the previous writer.

Entrance: `opening`, which takes the stream over (`takeover`) and gives a `handle.StreamWriter`. `admission` checks each
record, `flow` has their order, `segments` makes, seals and recovers the ledgers, `last_ids` reads the ids against which
a writer deduplicates. The encoding is in `stream/records`; nothing here decides what is retained.
"""

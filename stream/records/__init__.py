"""Records and their encoding: envelopes (one ledger entry with many records), compression, deduplication ids.

`envelope` has the format, `columnar` reads many envelopes into Arrow columns. Bytes and values only: nothing here reads
a ledger or the metadata.
"""

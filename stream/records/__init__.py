"""Records and their encoding: envelopes (one ledger entry with many records), compression, deduplication ids.

`envelope` has the format, `columnar` reads many envelopes into Arrow columns. No ledgers or metadata here, except that
`last_ids` reads the ids of a stream's last records.
"""

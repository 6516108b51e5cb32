"""What a closed ledger looks like in an object store, and how it is read from there.

An object is one plain Parquet file with an index of ours in front of its footer. `object_encoder` writes one,
`object_check` reads one back and compares, `reader` gives entries and whole batches out of many; `packing` joins
them with an object store (`objects`). docs/formats/archive-object.md shows the bytes.
"""

"""Archive objects: closed ledgers as Parquet files in an object store, and reading them from there.

An object is a plain Parquet file with our index in front of its footer. `encoder` writes one, `verifier` reads one back
and compares, `object_writer` uploads it, `reader` returns entries and whole batches from many objects. `catalog` lists
the ledgers of a bucket. `format/` has the encoding, `objects/` the object stores. Nothing here decides what is archived
or changes the metadata of ledgers (`offload` does). docs/reference/formats/archive-object.md shows the bytes.
"""

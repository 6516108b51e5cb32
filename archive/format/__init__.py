"""Encoding of archive objects: Parquet columns and our index. Pure functions and in-memory tables.

``schema`` has the columns and object names, ``index_codec`` the index as bytes, ``index_tables`` the index in memory,
``batch_rows`` converts batches to rows and back, ``row_groups`` decodes row groups, ``page_scan`` finds pages,
``root_file`` encodes the files at the root of a bucket. Nothing here calls an object store.
"""

"""Object stores: one port, and the drivers behind it.

`port` defines the interface, `open` opens the store of a URL, `retries` adds retries and rate limits. `cloud/` has the
drivers of S3, GCS and Azure, `directory_writes` writes to a file system, `encryption/` wraps a store so that objects
are encrypted; `memory` is for tests. Nothing here knows ledgers.
"""

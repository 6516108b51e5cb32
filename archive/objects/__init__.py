"""Where archive objects are kept: one port, and the stores behind it.

`port` is what a store promises, `open` turns a URL into a store, `patient` and `patience` how it is asked. Below them
`obstore_driver` reads, `directory_writes` and `s3_writes` write; `memory` and `faulty` are for trials and for tests.
"""

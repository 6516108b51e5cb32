"""Encryption of archive objects: wraps an object store.

`store` is the entrance: it encrypts uploads (`upload`) and decrypts reads and listings (`listing`). `format` has the
encoding of the header and the frames. Nothing here fetches keys: they come from `runtime/security`.
"""

"""Authentication and authorization of a process, from the directory that the option ``security`` names.

``process_security`` is the entrance: ``Security`` gives the certificates for TLS and the principal of a caller, both
from the current files. ``authority`` makes such directories, for clusters without their own certificate authority.
``tls_contexts`` are the TLS contexts of HTTP; ``denial_log``, ``in_flight``, ``reauthorization`` and
``connection_table`` are shared by the gRPC and HTTP servers. The rules themselves (who may do what) are in
``core/access``; passwords of ledgers are not handled here. Nothing is imported here: a client loads only ``identity``.
"""

"""gRPC: servers, channels, TLS, and the standard health and reflection services.

``stream_client`` and ``stream_server`` implement the transport seam for the protocol of bookies; ``call_server`` serves
RPCs of any service (``runtime.calls``), as for the gateway. ``connection_watch`` limits connections, ``load`` counts.
Messages pass as bytes: no generated code and no knowledge of ledgers belongs here, except health and reflection.
"""

"""bookie.proto on gRPC streams, served from a ``LedgerStore``.

``service.BookieService.accept`` is the entrance: it does the hello and access control, then ``add_stream`` or
``request_stream`` serves the stream. Only the port is known here, no part of the bookie behind it.
"""

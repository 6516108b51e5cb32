"""Message streams over plain TCP, with or without TLS: less work for each message than gRPC.

``framing`` cuts received bytes into messages, ``stream`` is one end of a stream, ``transport`` opens streams, and
``listener`` accepts them. docs/reference/formats/tcp.md has the protocol.
"""

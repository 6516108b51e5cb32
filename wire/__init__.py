"""The protocol between clients and bookies: encodes and decodes the messages of ``bookie.proto`` as plain values.

``messages`` has the messages of adds, reads and recovery, ``inspection`` those of repair and operators. ``batches``
puts the bytes of a batch into a message without a copy through protobuf. ``versions`` negotiates the protocol version.
``lanes`` names the streams, ``bookie_transport`` carries them over gRPC, and ``stream_sender`` sends on one. Nothing
here decides when to send.
"""

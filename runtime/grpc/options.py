"""What every gRPC channel and server of ours is set to."""

from __future__ import annotations

from typing import Final

from tallybook.core.limits import MAX_API_MESSAGE_BYTES, MAX_MESSAGE_BYTES, MIB

SERVICE: Final = "tallybook.v1.Bookie"
"""Full name of the service of ``bookie.proto``; its methods are the lanes."""

_SHARED: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 * 1024),
    # A batch in one HTTP/2 frame instead of sixteen.
    ("grpc.http2.max_frame_size", MIB),
    ("grpc.optimization_target", "throughput"),
    # A fixed flow-control window that holds a whole credit. The probe that would size it sends pings of its own, which
    # the other side counts against the keepalive rules, and under load it was dropped for them.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 8 * MIB),
)

CHANNEL_OPTIONS: Final = (
    *_SHARED,
    # A TCP connection of its own for every channel: bulk on one lane never delays a fence on another.
    ("grpc.use_local_subchannel_pool", 1),
    # A peer that vanished without a word is noticed within 15 s, also while nothing is sent.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Whoever asked for a connection decides when to try again.
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)

SERVER_OPTIONS: Final = (
    *_SHARED,
    # Without it a second server on one port would take half of the connections instead of failing.
    ("grpc.so_reuseport", 0),
    # A client needs three streams on three connections; whoever wants many must open connections, which are counted.
    ("grpc.max_concurrent_streams", 64),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # Without it the pings of a client that has no call under way would count as abuse, and end its connection.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 2),
    # A connection on which no stream is open gives its descriptor back.
    ("grpc.max_connection_idle_ms", 30_000),
    # How long a connection may take to say that it speaks HTTP/2.
    ("grpc.server_handshake_timeout_ms", 10_000),
)


def gateway_options(*, max_connections: int, max_connection_calls: int) -> tuple[tuple[str, int | str], ...]:
    """What a server is set to whose clients are programs in any language, with gRPC as it comes.

    Args:
        max_connections: more are dropped as soon as they are made.
        max_connection_calls: more calls on one connection wait, at the client.
    """
    return (
        ("grpc.max_receive_message_length", MAX_API_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_API_MESSAGE_BYTES),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.http2.max_frame_size", MIB),
        ("grpc.optimization_target", "throughput"),
        ("grpc.http2.bdp_probe", 0),
        # What a stream may have under way that nobody has read here: the credit of a client that keeps to it. With a
        # quarter of that, a client waits for leave to send (measured: a quarter fewer bytes a second).
        ("grpc.http2.lookahead_bytes", 4 * MIB),
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.max_concurrent_streams", max_connection_calls),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Libraries ping as often as they are set to; most refuse to do it more often than every ten seconds.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.max_connection_idle_ms", 300_000),
        ("grpc.server_handshake_timeout_ms", 10_000),
    )

"""Options of all gRPC channels and servers."""

from __future__ import annotations

from typing import Final

from tallybook.core.limits import MAX_API_MESSAGE_BYTES, MAX_MESSAGE_BYTES, MIB

_SHARED: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 * 1024),
    # A batch in one HTTP/2 frame instead of sixteen.
    ("grpc.http2.max_frame_size", MIB),
    ("grpc.optimization_target", "throughput"),
    # A fixed flow-control window that holds a whole credit. The BDP probe that would size it sends pings, which the
    # peer counts against the keepalive rules; under load connections were dropped for that.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 8 * MIB),
)

CHANNEL_OPTIONS: Final = (
    *_SHARED,
    # Each channel has its own TCP connection, so that bulk data on one lane never delays a fence on another.
    ("grpc.use_local_subchannel_pool", 1),
    # A peer that vanished silently is noticed within 15 s, also on an idle connection.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # The caller decides when to retry.
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)

SERVER_OPTIONS: Final = (
    *_SHARED,
    # Without it a second server on one port would take half of the connections instead of failing.
    ("grpc.so_reuseport", 0),
    # A client needs three streams on three connections; for many streams it must open connections, which are counted.
    ("grpc.max_concurrent_streams", 64),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # Without it pings of a client without a call in flight would count as abuse and end its connection.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 2),
    # Close idle connections, to free their descriptors.
    ("grpc.max_connection_idle_ms", 30_000),
    # Limit of the TLS and HTTP/2 handshake.
    ("grpc.server_handshake_timeout_ms", 10_000),
)


def call_server_options(*, max_connections: int, max_connection_calls: int) -> tuple[tuple[str, int | str], ...]:
    """Options of a server for clients in any language, with default gRPC settings.

    Args:
        max_connections: limit of connections; more are dropped when they are accepted.
        max_connection_calls: limit of concurrent calls on one connection; more wait at the client.
    """
    return (
        ("grpc.max_receive_message_length", MAX_API_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_API_MESSAGE_BYTES),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.http2.max_frame_size", MIB),
        ("grpc.optimization_target", "throughput"),
        ("grpc.http2.bdp_probe", 0),
        # Unread data that a stream may have in flight: the credit of a client. With a quarter of that, clients wait for
        # flow control (measured: a quarter fewer bytes per second).
        ("grpc.http2.lookahead_bytes", 4 * MIB),
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.max_concurrent_streams", max_connection_calls),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Client libraries ping as often as configured; most allow no interval below ten seconds.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.max_connection_idle_ms", 300_000),
        ("grpc.server_handshake_timeout_ms", 10_000),
    )

"""The transport between clients and bookies: gRPC streams of the service in ``bookie.proto``."""

from __future__ import annotations

from typing import Final

from tallybook.proto import bookie_pb2
from tallybook.runtime.grpc.load import GrpcLoad
from tallybook.runtime.grpc.stream_client import GrpcTransport
from tallybook.runtime.security.denial_log import DenialLog
from tallybook.runtime.security.identity import ServerSecurity
from tallybook.runtime.security.in_flight import RequestsInFlight

from .lanes import Lane

SERVICE: Final[str] = bookie_pb2.DESCRIPTOR.services_by_name["Bookie"].full_name


def bookie_transport(
    *,
    max_streams: int = 4096,
    max_connections: int = 8192,
    security: ServerSecurity | None = None,
    denials: DenialLog | None = None,
    in_flight: RequestsInFlight | None = None,
    load: GrpcLoad | None = None,
) -> GrpcTransport:
    """Make the transport of a client or a bookie; see `GrpcTransport` for the arguments."""
    return GrpcTransport(
        SERVICE,
        tuple(Lane),
        max_streams=max_streams,
        max_connections=max_connections,
        security=security,
        denials=denials,
        in_flight=in_flight,
        load=load,
    )

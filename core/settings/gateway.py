"""Settings of a gateway."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from ..limits import MIB
from .base import Settings, byte_size
from .client import ClientSettings
from .types import (
    BufferSize,
    Count,
    Insecure,
    Milliseconds,
    PositiveMilliseconds,
    Seconds,
    SecurityDirectory,
    Size,
    Traces,
    address,
    address_or_none,
    no_boolean,
)


class GatewayClientSettings(ClientSettings):
    """Settings of a gateway's client."""

    service: ClassVar[str] = "tallybook-gateway"

    # Messages arrive one at a time. With many batches in flight, each message would be sent as its own batch, and a
    # batch costs a bookie about the same, small or large. With fewer batches in flight, more messages share one.
    max_in_flight_batches: Count = Field(
        default=3, description="Unconfirmed batches of one ledger before appends gather."
    )


class GatewaySettings(Settings):
    """Settings of a gateway: where it serves, and the limits of its clients."""

    security: SecurityDirectory = ""
    insecure: Insecure = False
    traces: Traces = ""
    listen: Annotated[str, AfterValidator(address)] = Field(
        default="127.0.0.1:0", description="Host and port of the gRPC server; port 0 is any free one."
    )
    token_listen: Annotated[str, AfterValidator(address_or_none)] = Field(
        default="",
        description="With security, host and port for gRPC clients with a token instead of a certificate; empty: none.",
    )
    http_listen: Annotated[str, AfterValidator(address)] = Field(
        default="127.0.0.1:0", description="Host and port of health and metrics; port 0 is any free one."
    )
    metadata: str = Field(default=..., description="URI of the metadata store.", min_length=1)
    max_connections: Count = Field(
        default=1_024,
        description="Client connections; above it, those without an authenticated call are closed first.",
    )
    advertise: str = Field(
        default="",
        max_length=255,
        description="Host and port at which clients reach this gateway, as other gateways redirect clients of a stream "
        "that it writes; empty: the listen address.",
    )
    max_streams: Count = Field(
        default=1_024, description="Append, Read, Tail and Subscribe streams at once; more are refused."
    )
    max_connection_streams: Count = Field(default=64, description="The same on one connection.")
    max_reserved_bytes: Size = Field(
        default=byte_size(512 * MIB),
        ge=8 * MIB,
        description="Memory for the data of all streams: an Append stream reserves its credit, a Read, Tail or "
        "Subscribe two reads of `client.read_bytes`, a batch and a message, about 5.5 MiB. Streams that do not fit are "
        "refused.",
    )
    max_connection_bytes: Size = Field(
        default=byte_size(128 * MIB), ge=8 * MIB, description="The same for one connection."
    )
    credit_bytes: Size = Field(
        default=byte_size(16 * MIB),
        ge=MIB // 16,
        le=64 * MIB,
        description="Maximum credit of an Append stream; never more than an eighth of the free memory.",
    )
    message_bytes: BufferSize = Field(
        default=byte_size(MIB // 2),
        le=2 * MIB,
        description="Payload of a message of Read, Tail and Subscribe, unless the client requests another size.",
    )
    slow_reader_ms: PositiveMilliseconds = Field(
        default=30_000, description="Time in which a client must accept a message; slower clients are disconnected."
    )
    max_writers: Count = Field(
        default=1_024,
        description="Streams of records written through this gateway at once; more are refused, unless one of "
        "them is idle.",
    )
    max_id_bytes: Size = Field(
        default=byte_size(512 * MIB),
        description="Memory for the record ids that this gateway keeps to detect duplicates in the streams it writes: "
        "700 "
        "bytes plus the id for each of the last `dedup_records` records with an id. "
        "Records that do not fit are refused.",
    )
    writer_idle_ms: Milliseconds = Field(
        default=5_000,
        description="How long an idle stream writer is kept open; other writers of the stream wait for it.",
    )
    owner_wait_ms: Annotated[int, Field(ge=0, le=60_000), no_boolean] = Field(
        default=20_000,
        description="How long a client waits for a stream or a subscription that has another owner, unless it says "
        "otherwise. A dead owner is detected after ten seconds.",
    )
    keep_streams_s: Seconds = Field(
        default=60,
        description="Pause between maintenance passes over all streams (retention, truncation, deletion); "
        "one gateway of a cluster runs them. 0: none.",
    )
    stop_ms: Milliseconds = Field(
        default=10_000,
        description="How long a stopping gateway may take to close the ledgers and streams that it writes.",
    )
    client: GatewayClientSettings = Field(default_factory=GatewayClientSettings)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.token_listen and not self.security:
            raise ValueError("token_listen needs security")
        return self

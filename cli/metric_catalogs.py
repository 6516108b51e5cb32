"""All metric catalogs by the kind of process, for docs/reference/metrics/ and for tests of all metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tallybook.archive.metrics import ARCHIVE_METRICS, ARCHIVE_READER_METRICS
from tallybook.bookie.metrics import BOOKIE_METRICS
from tallybook.bookie.rpc import service
from tallybook.client.stats import CLIENT_METRICS
from tallybook.gateway.metrics import GATEWAY_METRICS
from tallybook.metadata.metered_store import METADATA_METRICS
from tallybook.offload.metrics import OFFLOAD_METRICS
from tallybook.repair.metrics import REPAIR_METRICS
from tallybook.runtime.grpc.load import GRPC_METRICS
from tallybook.runtime.http.load import HTTP_METRICS
from tallybook.runtime.http.server import READY_METRICS
from tallybook.runtime.metrics.catalog import MetricInfo
from tallybook.runtime.metrics.registry import PROCESS_METRICS
from tallybook.runtime.security.denial_log import DENIAL_METRICS
from tallybook.runtime.security.process_security import SECURITY_METRICS
from tallybook.runtime.tcp.load import TCP_METRICS
from tallybook.runtime.tracing.catalog import TRACE_METRICS
from tallybook.stream.load import LAG_METRICS, STREAM_METRICS

ALL_CATALOGS: Final[Mapping[str, Sequence[MetricInfo]]] = {
    "Any process": (*READY_METRICS.catalog, *PROCESS_METRICS),
    "HTTP port of any process": HTTP_METRICS.catalog,
    "Refused requests of any process": DENIAL_METRICS.catalog,
    "gRPC port of bookies and gateways": GRPC_METRICS.catalog,
    "TCP port of bookies": TCP_METRICS.catalog,
    "Any process with security": SECURITY_METRICS.catalog,
    "A bookie": (*BOOKIE_METRICS.catalog, *service.METRICS.catalog),
    "An offloader": OFFLOAD_METRICS.catalog,
    "A repair": REPAIR_METRICS.catalog,
    "A gateway": GATEWAY_METRICS.catalog,
    "Streams, in a gateway": STREAM_METRICS.catalog,
    "Subscriptions, in the gateway that leads the stream janitor": LAG_METRICS,
    "Clients: offloaders, repairs, gateways, consoles, your own": CLIENT_METRICS,
    "Object stores, in offloaders and in clients that read from the archive": (ARCHIVE_METRICS.catalog),
    "Clients that read from the archive": ARCHIVE_READER_METRICS.catalog,
    "Traces, in bookies and clients": TRACE_METRICS,
    "The metadata store, in any process": METADATA_METRICS.catalog,
}

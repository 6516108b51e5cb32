"""All fuzz targets, in the order in which they run."""

from __future__ import annotations

from ..harness import Target
from . import (
    archive_index,
    archive_objects,
    batches,
    bookie_files,
    encrypted_objects,
    entry_logs,
    envelopes,
    gateway_requests,
    http_requests,
    journal,
    ledger_metadata,
    records,
    security,
    spark_inputs,
    texts,
    wire,
)

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        batches.TARGET, wire.TARGET, journal.TARGET, entry_logs.TARGET, bookie_files.TARGET, ledger_metadata.TARGET,
        records.TARGET, archive_index.TARGET, archive_objects.TARGET, encrypted_objects.TARGET, envelopes.TARGET,
        texts.TARGET, spark_inputs.TARGET, gateway_requests.TARGET, security.TARGET,
        http_requests.TARGET,
    )
}  # fmt: skip

"""Names, defaults and descriptions of all options; the checks and docs/reference/spark-options.md use this list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option. ``default`` in text form; empty: none."""

    name: str
    default: str
    text: str


LOCATION_OPTIONS: Final = (
    OptionInfo("metadata", "", "URI of the cluster's metadata store: `sqlite:///...`, `zk://...` or `zks://...`."),
    OptionInfo(
        "archive",
        "",
        "URL of a bucket to read without its cluster; with `metadata`: the location of the archive.",
    ),
    OptionInfo("password", "", "Password of all ledgers that have one. Streams have none."),
    OptionInfo(
        "security",
        "",
        "Directory of certificates and keys, on the driver and on every executor, for a cluster with "
        "security: docs/operate/security.md.",
    ),
    OptionInfo(
        "archiveKeys",
        "",
        "File with the keys of an encrypted archive, on the driver and on every executor: docs/operate/security.md.",
    ),
    OptionInfo("s3AccessKey", "", "Access key of an archive on S3, instead of the one of the environment."),
    OptionInfo("s3SecretKey", "", "Secret key of `s3AccessKey`."),
    OptionInfo("s3SessionToken", "", "Session token of temporary keys."),
    OptionInfo("s3Region", "", "Region, with `s3AccessKey`; default: from the environment."),
    OptionInfo("s3Endpoint", "", "Endpoint, with `s3AccessKey`; default: from the environment."),
    OptionInfo("azureAccount", "", "Storage account of an archive on Azure, instead of the one of the environment."),
    OptionInfo("azureSecretKey", "", "Key of the storage account."),
    OptionInfo("azureSasToken", "", "Shared access signature, instead of the key of the storage account."),
)

READ_OPTIONS: Final = (
    OptionInfo(
        "table", "entries", "Table to read: `entries`, or a table of metadata: `ledgers`, `fragments`, `objects`, "
        "`receipts`, `bookies`.",
    ),
    OptionInfo("ledger", "", "Id of the ledger to read."),
    OptionInfo("ledgers", "all", "Ids of the ledgers to read, as `1,5-9`. In a batch, up to 10,000 must exist."),
    OptionInfo("stream", "", "Name of the stream to read."),
    OptionInfo(
        "streamPattern", "", "Pattern of the streams to read, as `orders/*`; `**` matches any number of parts."
    ),
    OptionInfo("namespace", "default", "Namespace of the streams."),
    OptionInfo(
        "columns", "", "Columns of the table, as `entry_id,payload`; default: all. No others are read from archive "
        "objects, except `ledger_id` and `entry_id`, and the payload if it is parsed or contains records.",
    ),
    OptionInfo("startingEntry", "0", "First entry id of each ledger."),
    OptionInfo("endingEntry", "", "Last entry id of each ledger, inclusive."),
    OptionInfo("startingTime", "", "Entries written from this time on: `2026-11-01T00:00:00Z`; UTC without a zone."),
    OptionInfo("endingTime", "", "Entries written before this time."),
    OptionInfo("snapshot", "", "Text from `take_snapshot`: read exactly these entries, wherever they are stored now."),
    OptionInfo(
        "tier", "auto", "`archive` or `bookies`: only ledgers stored there; `auto`: all ledgers."
    ),
    OptionInfo("openLedgers", "true", "Whether open ledgers are read, up to the last add confirmed."),
    OptionInfo(
        "failOnDataLoss", "true", "Whether lost or deleted entries fail the query; if not, column `gap` reports "
        "them.",
    ),
    OptionInfo(
        "includeMetadata", "false", "Whether to add columns `tier` and `object`: where an entry was read from. For "
        "streams, also where a record is stored.",
    ),
    OptionInfo("maxBytesPerPartition", "128m", "Approximate payload bytes per task."),
    OptionInfo(
        "minPartitions", "1", "Minimum number of tasks, if there are as many entries. Does not apply to objects "
        "that `read_ledgers` reads through Spark's Parquet reader.",
    ),
    OptionInfo(
        "payloadFormat", "raw", "`json`, `avro` or `arrow`: parse payloads into column `value`, a struct, with "
        "`payloadSchema`.",
    ),
    OptionInfo(
        "payloadSchema", "", "Fields as `carrier STRING, delay DOUBLE`; for Avro, the writer's schema as JSON."
    ),
    OptionInfo("payloadReaderSchema", "", "For Avro, the reader's schema, if it differs from the writer's."),
    OptionInfo(
        "badRecords", "keep", "`keep`: payloads that cannot be parsed are in `bad_payload`, with the reason in "
        "`bad_reason`; `fail`: they fail the query.",
    ),
    OptionInfo(
        "startingPosition", "earliest", "Where a new `readStream` starts; `latest`: after the ledgers closed by then. "
        "For streams, where reading starts: `earliest`, `latest`, a position, `sequence:1000`, `txid:42` or a time.",
    ),
    OptionInfo(
        "endingPosition", "latest", "For streams, in a batch: where reading ends, exclusive. Values as of "
        "`startingPosition`.",
    ),
    OptionInfo("maxBytesPerTrigger", "", "For `readStream`: approximate payload bytes of a micro-batch."),
    OptionInfo("maxEntriesPerTrigger", "", "For `readStream`: maximum entries of a micro-batch; for streams, records."),
)  # fmt: skip

WRITE_OPTIONS: Final = (
    OptionInfo("stream", "", "Name of the stream to append to; without it, rows are written to new ledgers."),
    OptionInfo("namespace", "default", "Namespace of the stream."),
    OptionInfo("createStream", "false", "Whether to create the stream if it does not exist."),
    OptionInfo(
        "sink", "", "Name of the output, unique per streaming query. Default for `writeStream`: the id of the query."
    ),
    OptionInfo(
        "transaction", "", "Number of a batch, ascending: a second write with the same number changes nothing.",
    ),
    OptionInfo("ensemble", "3", "Ensemble size of each ledger."),
    OptionInfo("writeQuorum", "3", "Bookies that store each entry."),
    OptionInfo("ackQuorum", "2", "Bookies that must store an entry before it is acknowledged."),
)  # fmt: skip

SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of ``writeStream`` that Spark reads itself and passes on to the source."""


def lower_names(*options: tuple[OptionInfo, ...]) -> frozenset[str]:
    """The option names in lower case, as Spark passes them."""
    return frozenset(info.name.lower() for group in options for info in group)


PROPER_NAMES: Final = {info.name.lower(): info.name for info in (*LOCATION_OPTIONS, *READ_OPTIONS, *WRITE_OPTIONS)}
"""Spelling of each option by its lower-case name."""

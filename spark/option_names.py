"""What the options are called and what they mean: the one list behind the checks and docs/spark-options.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option. ``default`` is as people would write it; empty where there is none."""

    name: str
    default: str
    text: str


PLACE_OPTIONS: Final = (
    OptionInfo("metadata", "", "URI of the cluster's metadata store: `sqlite:///...`, `zk://...` or `zks://...`."),
    OptionInfo(
        "archive",
        "",
        "URL of a bucket that is read without its cluster; with `metadata`, where the archive is.",
    ),
    OptionInfo("password", "", "Password of every ledger that has one. Streams have none."),
    OptionInfo(
        "security",
        "",
        "Directory of certificates and keys, on the driver and on every executor, for a cluster with "
        "security: docs/security.md.",
    ),
    OptionInfo(
        "archiveKeys",
        "",
        "File with the keys of a sealed archive, on the driver and on every executor: docs/security.md.",
    ),
    OptionInfo("s3AccessKey", "", "Access key of an archive on S3, in place of that of the environment."),
    OptionInfo("s3SecretKey", "", "Secret key that goes with it."),
    OptionInfo("s3SessionToken", "", "Session token of temporary keys."),
    OptionInfo("s3Region", "", "Region, with `s3AccessKey`; that of the environment unless given."),
    OptionInfo("s3Endpoint", "", "Endpoint, with `s3AccessKey`; that of the environment unless given."),
    OptionInfo("azureAccount", "", "Storage account of an archive on Azure, in place of that of the environment."),
    OptionInfo("azureSecretKey", "", "Key of the storage account."),
    OptionInfo("azureSasToken", "", "Shared access signature, in place of the key of the storage account."),
)

READ_OPTIONS: Final = (
    OptionInfo(
        "table", "entries", "What is read: `entries`, or a table of metadata: `ledgers`, `fragments`, `objects`, "
        "`receipts`, `bookies`.",
    ),
    OptionInfo("ledger", "", "Id of the one ledger that is read."),
    OptionInfo("ledgers", "all", "Ids of the ledgers that are read, as `1,5-9`. In a batch, up to 10,000 must exist."),
    OptionInfo("stream", "", "Name of the one stream whose records are read."),
    OptionInfo(
        "streamPattern", "", "Streams whose records are read, as `orders/*`; `**` stands for any number of parts."
    ),
    OptionInfo("namespace", "default", "Where the names of streams belong to."),
    OptionInfo("startingEntry", "0", "First entry id of each ledger."),
    OptionInfo("endingEntry", "", "Last entry id of each ledger, included."),
    OptionInfo("startingTime", "", "Entries written from then on: `2026-11-01T00:00:00Z`; UTC where no zone is given."),
    OptionInfo("endingTime", "", "Entries written before then."),
    OptionInfo("snapshot", "", "What `take_snapshot` gave: these entries and no others, wherever they are by now."),
    OptionInfo(
        "tier", "auto", "`archive` and `bookies` choose ledgers that are there; `auto` takes all of them."
    ),
    OptionInfo("openLedgers", "true", "Whether ledgers that are still written are read, up to what is confirmed."),
    OptionInfo(
        "failOnDataLoss", "true", "Whether entries that are lost or deleted fail the query; if not, column `gap` "
        "reports them.",
    ),
    OptionInfo(
        "includeMetadata", "false", "Whether there are columns `tier` and `object`: where an entry came from. Of "
        "streams, also where a record is kept.",
    ),
    OptionInfo("maxBytesPerPartition", "128m", "Payload that one task reads, about."),
    OptionInfo(
        "minPartitions", "1", "Tasks at least, where there are so many entries. Of what `read_ledgers` leaves to "
        "Parquet, Spark decides.",
    ),
    OptionInfo(
        "payloadFormat", "raw", "`json`, `avro` or `arrow`: payloads become column `value`, a struct, by "
        "`payloadSchema`.",
    ),
    OptionInfo(
        "payloadSchema", "", "Fields as `carrier STRING, delay DOUBLE`; for Avro, the schema of the writer as JSON."
    ),
    OptionInfo("payloadReaderSchema", "", "For Avro, the schema that payloads are read by, if it is another one."),
    OptionInfo(
        "badRecords", "keep", "`keep`: payloads that do not fit are in `bad_payload`, and why in `bad_reason`; `fail`: "
        "they fail the query.",
    ),
    OptionInfo(
        "startingPosition", "earliest", "Where a new `readStream` begins; `latest`: behind what has closed by then. Of "
        "streams, where reading begins: `earliest`, `latest`, a position, `sequence:1000`, `txid:42` or a time.",
    ),
    OptionInfo("endingPosition", "latest", "Of streams, in a batch: where reading ends, not included. As above."),
    OptionInfo("maxBytesPerTrigger", "", "Of `readStream`: payload of a micro-batch, about."),
    OptionInfo("maxEntriesPerTrigger", "", "Of `readStream`: entries of a micro-batch; of streams, records."),
)  # fmt: skip

WRITE_OPTIONS: Final = (
    OptionInfo("stream", "", "Name of the stream that rows become records of; without it, they become ledgers."),
    OptionInfo("namespace", "default", "Where the name of the stream belongs to."),
    OptionInfo("createStream", "false", "Whether the stream is made if there is none of that name."),
    OptionInfo(
        "sink", "", "Names the output. A stream's is its query unless given; it must be that stream's alone."
    ),
    OptionInfo(
        "transaction", "", "Number of a batch, ascending: of two writes with the same one, the second changes "
        "nothing.",
    ),
    OptionInfo("ensemble", "3", "Bookies of each ledger."),
    OptionInfo("writeQuorum", "3", "Bookies that hold each entry."),
    OptionInfo("ackQuorum", "2", "Bookies that must hold an entry before it counts."),
)  # fmt: skip

SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of a stream's writer that Spark reads itself, and passes on."""


def lower_names(*options: tuple[OptionInfo, ...]) -> frozenset[str]:
    """The names as Spark gives them."""
    return frozenset(info.name.lower() for group in options for info in group)


PROPER_NAMES: Final = {info.name.lower(): info.name for info in (*PLACE_OPTIONS, *READ_OPTIONS, *WRITE_OPTIONS)}
"""How options are written, by their names in lower case."""

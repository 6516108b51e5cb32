"""Parses and checks the options of ``format("tallybook")`` before anything is read.

Spark passes options as text with lower-case names. An unknown name is an error: it is usually a typing mistake, and
ignoring a mistyped bound would read the whole history.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args

from pydantic import ByteSize, TypeAdapter, ValidationError

from tallybook.archive.objects.credentials import StoreCredentials
from tallybook.core.errors import InvalidArgument, InvalidConfig
from tallybook.core.ids import MAX_ID
from tallybook.stream.names import DEFAULT_NAMESPACE, check_namespace, check_stream_name

from .catalog_tables import NO_TABLES
from .credentials import credentials_of
from .option_names import LOCATION_OPTIONS, PROPER_NAMES, READ_OPTIONS, SPARKS_OWN, WRITE_OPTIONS, lower_names
from .query.bounds import RecordBounds, bounds_of, parse_bound
from .query.id_ranges import IdRanges
from .query.partitions import DEFAULT_PARTITION_BYTES
from .query.record_snapshot import RecordSnapshot
from .query.snapshot import ALL_TIMES, Snapshot, TimeRange, parse_snapshot

T = TypeVar("T")

Tier: TypeAlias = Literal["auto", "archive", "bookies"]
TableName: TypeAlias = Literal["entries", "ledgers", "fragments", "objects", "receipts", "bookies"]
PayloadKind: TypeAlias = Literal["raw", "json", "avro", "arrow"]
BadRecords: TypeAlias = Literal["keep", "fail"]
StartingOffset: TypeAlias = Literal["earliest", "latest"]

NO_LIMIT: Final = 1 << 62
_MAX_DIGITS: Final = 100


@dataclass(frozen=True, slots=True)
class LocationOptions:
    """Options that locate ledgers: the metadata URI of a cluster, or a bucket to read without its cluster."""

    metadata: str | None
    archive: str | None
    password: bytes = field(default=b"", repr=False)
    """Password of all ledgers that have one."""
    security: str = ""
    """The security directory, the same on every host; empty: none."""
    archive_keys: str = ""
    """File with the keys of an encrypted archive, the same on every host; empty: none."""
    credentials: StoreCredentials | None = None
    """Credentials of the archive's object store; ``None``: from the environment of each process."""

    def check_cluster(self, planned: str, found: str) -> None:
        """Check that a step of a query accesses the cluster that the query was planned on.

        Args:
            planned: id of that cluster; empty: not planned yet, or not known.
            found: id of the cluster found by this step; empty: not known.

        Raises:
            InvalidConfig: the ids differ.
        """
        if planned and planned != found:
            kind, where = ("URI", self.metadata) if self.metadata is not None else ("URL", self.archive)
            raise InvalidConfig(
                f"the query was planned on cluster {planned}, and at {where} this machine finds "
                f"{f'cluster {found}' if found else 'an archive without a cluster id'}: give a {kind} that "
                "names the same store on the driver and on every executor"
            )


@dataclass(frozen=True, slots=True)
class PayloadOptions:
    """How payloads are parsed.

    Args:
        schema: for JSON and Arrow the fields in Spark DDL; for Avro the writer's schema as JSON.
        reader_schema: for Avro the reader's schema as JSON; empty: the same.
    """

    kind: PayloadKind = "raw"
    schema: str = ""
    bad_records: BadRecords = "keep"
    reader_schema: str = ""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a batch or streaming read."""

    location: LocationOptions
    table: TableName = "entries"
    ledgers: IdRanges | None = None
    """``None``: all ledgers."""
    first_entry: int = 0
    last_entry: int = MAX_ID
    written: TimeRange = ALL_TIMES
    records: RecordBounds | None = None
    """The streams to read; ``None``: ledgers or a snapshot are read."""
    snapshot: Snapshot | RecordSnapshot | None = None
    tier: Tier = "auto"
    open_ledgers: bool = True
    """Whether open ledgers are read, up to the last add confirmed."""
    fail_on_data_loss: bool = True
    include_metadata: bool = False
    partition_bytes: int = DEFAULT_PARTITION_BYTES
    min_partitions: int = 1
    payload: PayloadOptions = PayloadOptions()
    columns: tuple[str, ...] = ()
    """The columns that are read, in order; empty: all."""
    start: StartingOffset = "earliest"
    max_bytes_per_trigger: int = NO_LIMIT
    max_entries_per_trigger: int = NO_LIMIT
    """For streams: records."""

    @property
    def leaves_archive_to_spark(self) -> bool:
        """Whether Spark may read archive objects itself. It cannot use credentials given as options."""
        return self.location.credentials is None

    @property
    def of_streams(self) -> bool:
        """Whether rows are records of streams instead of entries of ledgers."""
        return self.records is not None or isinstance(self.snapshot, RecordSnapshot)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write to ledgers or to a stream."""

    location: LocationOptions
    sink: str | None
    """Name of the output; a second write of the same batch to one sink changes nothing."""
    transaction: int | None
    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    stream: str | None = None
    namespace: str = DEFAULT_NAMESPACE
    create_stream: bool = False
    cluster_id: str = ""
    """Id of the cluster that the write was planned on; empty: not planned yet."""


_LEDGER_BOUNDS: Final = frozenset({
    "ledger", "ledgers", "startingentry", "endingentry", "startingtime", "endingtime", "tier", "openledgers",
})  # fmt: skip
_STREAM_BOUNDS: Final = frozenset({"stream", "streampattern", "namespace", "startingposition", "endingposition"})
SNAPSHOT_BOUNDS: Final = _LEDGER_BOUNDS | _STREAM_BOUNDS
"""Options that cannot be combined with a snapshot."""

READ: Final = lower_names(LOCATION_OPTIONS, READ_OPTIONS)
WRITE: Final = lower_names(LOCATION_OPTIONS, WRITE_OPTIONS) | SPARKS_OWN


def options_of(metadata: str | None, options: Mapping[str, object]) -> dict[str, str]:
    """Convert options with Python names (``starting_entry=7``) to the form of Spark."""
    named: Mapping[str, object] = options if metadata is None else {"metadata": metadata, **options}
    return {
        name.replace("_", "").lower(): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in named.items()
    }


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a reader.

    Raises:
        InvalidConfig: an option is unknown or invalid, or contradicts another one.
    """
    options = _Options(given, READ)
    snapshot = options.parsed("snapshot", parse_snapshot)
    ledgers = options.ledgers()
    if snapshot is not None and set(options.given) & SNAPSHOT_BOUNDS:
        raise InvalidConfig("a snapshot defines the entries to read: give no other bounds with it")
    records = options.records()
    found = ReadOptions(
        location=options.location(),
        table=options.choice("table", TableName, "entries"),
        ledgers=ledgers,
        first_entry=options.number("startingentry", 0),
        last_entry=options.number("endingentry", MAX_ID),
        written=TimeRange(options.time("startingtime"), options.time("endingtime")),
        records=records,
        snapshot=snapshot,
        tier=options.choice("tier", Tier, "auto"),
        open_ledgers=options.flag("openledgers", default=True),
        fail_on_data_loss=options.flag("failondataloss", default=True),
        include_metadata=options.flag("includemetadata", default=False),
        partition_bytes=options.size("maxbytesperpartition", DEFAULT_PARTITION_BYTES),
        min_partitions=options.number("minpartitions", 1, least=1),
        payload=options.payload(),
        columns=options.columns(),
        start="earliest" if records else options.choice("startingposition", StartingOffset, "earliest"),
        max_bytes_per_trigger=options.size("maxbytespertrigger", NO_LIMIT),
        max_entries_per_trigger=options.number("maxentriespertrigger", NO_LIMIT, least=1),
    )
    if found.last_entry < found.first_entry:
        raise InvalidConfig(f"endingEntry {found.last_entry} is before startingEntry {found.first_entry}")
    first_us, end_us = found.written.first_us, found.written.end_us
    if first_us is not None and end_us is not None and end_us <= first_us:
        raise InvalidConfig("endingTime, which is exclusive, is not after startingTime")
    _check_streams(found)
    if found.columns and found.table != "entries":
        raise InvalidConfig("option columns is for entries and records: choose columns of other tables with select()")
    if found.location.metadata is None and (found.tier == "bookies" or found.table == "bookies"):
        raise InvalidConfig("a bucket has no bookies: give the metadata URI of the cluster, too")
    return found


def batch_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a batch reader.

    Raises:
        InvalidConfig: an option has no effect in a batch; or as ``read_options``.
    """
    found = read_options(given)
    ignored = [] if found.of_streams else ["startingposition"]
    ignored += ["maxbytespertrigger", "maxentriespertrigger"]
    for name in {name.lower() for name in given}.intersection(ignored):
        raise InvalidConfig(f"option {PROPER_NAMES[name]} is for readStream and has no effect in a batch")
    return found


def _check_streams(found: ReadOptions) -> None:
    if found.of_streams and found.table != "entries":
        raise InvalidConfig("option table is for ledgers: give no stream and no snapshot of streams with it")
    if found.of_streams and found.location.metadata is None:
        raise InvalidConfig("a bucket has no metadata of streams: give the metadata URI of the cluster")


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a writer.

    Raises:
        InvalidConfig: an option is unknown, missing or invalid.
    """
    options = _Options(given, WRITE)
    location = options.location()
    if location.metadata is None or location.archive is not None:
        raise InvalidConfig("rows are written to a cluster: give its metadata URI, and no archive")
    sink = options.given.get("sink")
    if sink is not None and (not sink or len(sink) > 100 or not sink.replace("-", "").replace("_", "").isalnum()):
        raise InvalidConfig(f"option sink: {sink!r} is not a name of up to 100 letters, digits, - or _")
    transaction = options.number("transaction", -1)
    made = sorted(PROPER_NAMES[each] for each in ("ensemble", "writequorum", "ackquorum") if each in options.given)
    if made and "stream" in options.given:
        raise InvalidConfig(f"a stream is replicated by its policy: give {', '.join(made)} for ledgers only")
    if location.password and "stream" in options.given:
        raise InvalidConfig("streams have no password: give option password for ledgers only")
    if transaction >= 0 and sink is None:
        raise InvalidConfig("option transaction needs option sink")
    return WriteOptions(
        location,
        sink,
        None if transaction < 0 else transaction,
        options.number("ensemble", 3, least=1),
        options.number("writequorum", 3, least=1),
        options.number("ackquorum", 2, least=1),
        options.written_stream(),
        options.given.get("namespace", DEFAULT_NAMESPACE),
        options.flag("createstream", default=False),
    )


class _Options:
    """Parses options by their lower-case names."""

    def __init__(self, given: Mapping[str, str], known: frozenset[str]) -> None:
        self.given = {name.lower(): value for name, value in given.items()}
        for name in self.given:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {PROPER_NAMES.get(near[0], near[0])}?" if near else ""
                raise InvalidConfig(f"unknown option {name}{hint}")

    def location(self) -> LocationOptions:
        metadata, archive = self.given.get("metadata"), self.given.get("archive")
        if not metadata and not archive:
            raise InvalidConfig(
                "give the location of the ledgers: option metadata, the URI of the cluster's metadata store, or option "
                "archive, the URL of a bucket to read without the cluster" + ("" if self.given else f" ({NO_TABLES})")
            )
        if metadata and metadata.startswith("sqlite:") and _is_relative(metadata):
            raise InvalidConfig(
                f"{metadata} is relative to the working directory, which differs on executors: give an absolute path"
            )
        try:
            password = self.given.get("password", "").encode()
        except UnicodeEncodeError:
            raise self._wrong("password", "it cannot be encoded as UTF-8") from None
        return LocationOptions(
            metadata or None,
            archive or None,
            password,
            self.given.get("security", ""),
            self.given.get("archivekeys", ""),
            credentials_of(self.given),
        )

    def ledgers(self) -> IdRanges | None:
        one, many = self.given.get("ledger"), self.given.get("ledgers", "all")
        if one is not None:
            if "ledgers" in self.given:
                raise InvalidConfig("give either option ledger or option ledgers, not both")
            return IdRanges.of([self.number("ledger", 0)])
        return None if many.strip().lower() == "all" else self.parsed("ledgers", IdRanges.parse)

    def records(self) -> RecordBounds | None:
        """The streams to read, if any."""
        name, pattern = self.given.get("stream"), self.given.get("streampattern")
        if name is None and pattern is None:
            for option in ("namespace", "endingposition"):
                if option in self.given:
                    raise self._wrong(option, "it needs option stream or streamPattern")
            return None
        other = sorted(_LEDGER_BOUNDS & set(self.given))
        if other:
            proper = ", ".join(PROPER_NAMES[each] for each in other)
            raise InvalidConfig(
                f"{proper} cannot be combined with streams: give startingPosition and endingPosition, which take "
                "positions, sequence numbers and times"
            )
        start, end = (self.parsed(each, parse_bound) for each in ("startingposition", "endingposition"))
        try:
            namespace = self.given.get("namespace", DEFAULT_NAMESPACE)
            return bounds_of(namespace, name, pattern, start, end)
        except InvalidArgument as error:
            raise InvalidConfig(error.message) from error

    def written_stream(self) -> str | None:
        """The stream to write to, if any."""
        name = self.given.get("stream")
        try:
            check_namespace(self.given.get("namespace", DEFAULT_NAMESPACE))
            if name is not None:
                return check_stream_name(name)
        except InvalidArgument as error:
            raise InvalidConfig(error.message) from error
        for option in ("namespace", "createstream"):
            if option in self.given:
                raise self._wrong(option, "it needs option stream")
        return None

    def columns(self) -> tuple[str, ...]:
        """The names of the columns; empty: all."""
        if "columns" not in self.given:
            return ()
        names = [name.strip().lower() for name in self.given["columns"].split(",")]
        if "" in names or len(set(names)) < len(names):
            raise self._wrong("columns", f"{self.given['columns']!r:.200} is not a list of different names")
        return tuple(names)

    def payload(self) -> PayloadOptions:
        kind = self.choice("payloadformat", PayloadKind, "raw")
        schema = self.given.get("payloadschema", "")
        if (kind == "raw") != (not schema):
            raise InvalidConfig("give options payloadFormat (json, avro or arrow) and payloadSchema together")
        reader_schema = self.given.get("payloadreaderschema", "")
        if kind == "avro":
            self.parsed("payloadschema", json.loads)
            self.parsed("payloadreaderschema", json.loads)
        elif reader_schema:
            raise self._wrong("payloadreaderschema", "it is for payloadFormat avro")
        return PayloadOptions(kind, schema, self.choice("badrecords", BadRecords, "keep"), reader_schema)

    def parsed(self, name: str, parse: Callable[[str], T]) -> T | None:
        """Parse an option; ``None``: it is not given."""
        if name not in self.given:
            return None
        try:
            return parse(self.given[name])
        except (InvalidArgument, ValueError, RecursionError) as error:
            raise self._wrong(name, str(error)) from error

    def number(self, name: str, default: int, *, least: int = 0) -> int:
        text = self.given.get(name)
        if text is None:
            return default
        bare = text.strip()
        # Python's own error for numbers of thousands of digits would not name the option.
        if not bare.isdecimal() or len(bare) > _MAX_DIGITS or not least <= int(bare) <= MAX_ID:
            raise self._wrong(name, f"{text!r:.200} is not a whole number from {least} on")
        return int(bare)

    def size(self, name: str, default: int) -> int:
        text = self.given.get(name)
        if text is None:
            return default
        try:
            found = int(TypeAdapter(ByteSize).validate_python(_with_unit(text)))
        except ValidationError as error:
            raise self._wrong(name, f"{text!r} is not a size such as 64m or 67108864") from error
        if found < 1:
            raise self._wrong(name, "it must be at least one byte")
        return found

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.given.get(name, str(default)).strip().lower()
        if text not in {"true", "false"}:
            raise self._wrong(name, f"{text!r} is neither true nor false")
        return text == "true"

    def choice(self, name: str, kind: Any, default: str) -> Any:
        """One of the values of a ``Literal``."""
        found = self.given.get(name, default).strip().lower()
        if found not in get_args(kind):
            raise self._wrong(name, f"{found!r} is not one of {', '.join(get_args(kind))}")
        return found

    def time(self, name: str) -> int | None:
        """Microseconds since the epoch; a time without a zone is in UTC."""
        text = self.given.get(name)
        if text is None:
            return None
        try:
            found = datetime.fromisoformat(text.strip())
        except ValueError as error:
            raise self._wrong(name, f"{text!r} is not a time such as 2026-11-01T00:00:00Z") from error
        aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return (aware - _EPOCH) // timedelta(microseconds=1)

    def _wrong(self, name: str, what: str) -> InvalidConfig:
        return InvalidConfig(f"option {PROPER_NAMES.get(name, name)}: {what}")


def _is_relative(uri: str) -> bool:
    from tallybook.metadata.uri import SqliteUri, parse_uri  # noqa: PLC0415 (only needed for a file)

    found = parse_uri(uri)
    return isinstance(found, SqliteUri) and not found.path.startswith("/")


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _with_unit(text: str) -> str:
    """Convert Spark's one-letter sizes, which are powers of two: 64m is 64 MiB."""
    bare = text.strip().lower()
    return f"{bare}iB" if bare[-1:] in {"k", "m", "g", "t"} else bare

"""The options of ``format("tallybook")``, understood and checked before anything is read.

Spark gives options as text, with names in lower case. A name that nobody knows is an error: it is most often a
mistyped one, and a bound that is not heeded reads the whole history.
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
from .id_ranges import IdRanges
from .option_names import PLACE_OPTIONS, PROPER_NAMES, READ_OPTIONS, SPARKS_OWN, WRITE_OPTIONS, lower_names
from .plan import DEFAULT_PARTITION_BYTES
from .records.bounds import RecordBounds, bounds_of, parse_place
from .records.snapshot import RecordSnapshot
from .snapshot import ALL_TIMES, Snapshot, TimeRange, parse_snapshot

T = TypeVar("T")

Tier: TypeAlias = Literal["auto", "archive", "bookies"]
TableName: TypeAlias = Literal["entries", "ledgers", "fragments", "objects", "receipts", "bookies"]
PayloadKind: TypeAlias = Literal["raw", "json", "avro", "arrow"]
BadRecords: TypeAlias = Literal["keep", "fail"]
Start: TypeAlias = Literal["earliest", "latest"]

NO_LIMIT: Final = 1 << 62
_MOST_DIGITS: Final = 100


@dataclass(frozen=True, slots=True)
class Place:
    """Where ledgers are: a cluster by the URI of its metadata, or a bucket that is read without one."""

    metadata: str | None
    archive: str | None
    password: bytes = field(default=b"", repr=False)
    """Of every ledger that has one."""
    security: str = ""
    """The security directory, the same on every host; empty: none."""
    archive_keys: str = ""
    """File with the keys of a sealed archive, the same on every host; empty: none."""
    credentials: StoreCredentials | None = None
    """Of the archive's object store; ``None``: those of the environment of each process."""

    def check_cluster(self, planned: str, found: str) -> None:
        """Make sure that a step of a query has found the cluster that the query was planned on.

        Args:
            planned: id of that cluster; empty where nothing has been planned yet, or where its place does not say it.
            found: id of the cluster that is here; empty where its place does not say it.

        Raises:
            InvalidConfig: it is another one.
        """
        if planned and planned != found:
            kind, where = ("URI", self.metadata) if self.metadata is not None else ("URL", self.archive)
            raise InvalidConfig(
                f"the query was planned on cluster {planned}, and at {where} this machine finds "
                f"{f'cluster {found}' if found else 'what does not say of which cluster it is'}: give a {kind} that "
                "names the same store on the driver and on every executor"
            )


@dataclass(frozen=True, slots=True)
class PayloadOptions:
    """What payloads are taken for.

    Args:
        schema: fields in Spark's DDL for JSON and Arrow; for Avro the schema that payloads were written with, as JSON.
        reader_schema: for Avro the schema that they are read by, as JSON; empty: the same.
    """

    kind: PayloadKind = "raw"
    schema: str = ""
    bad_records: BadRecords = "keep"
    reader_schema: str = ""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a batch or a stream reads."""

    place: Place
    table: TableName = "entries"
    ledgers: IdRanges | None = None
    """``None``: all of them."""
    first_entry: int = 0
    last_entry: int = MAX_ID
    written: TimeRange = ALL_TIMES
    records: RecordBounds | None = None
    """Which streams; ``None``: ledgers are read, or what a snapshot names."""
    snapshot: Snapshot | RecordSnapshot | None = None
    tier: Tier = "auto"
    open_ledgers: bool = True
    """Whether ledgers that are still written are read, up to what is confirmed."""
    fail_on_data_loss: bool = True
    include_metadata: bool = False
    partition_bytes: int = DEFAULT_PARTITION_BYTES
    min_partitions: int = 1
    payload: PayloadOptions = PayloadOptions()
    start: Start = "earliest"
    max_bytes_per_trigger: int = NO_LIMIT
    max_entries_per_trigger: int = NO_LIMIT
    """Of streams, records."""

    @property
    def leaves_archive_to_spark(self) -> bool:
        """Whether Spark may read objects of the archive by itself. It does not know credentials of a query."""
        return self.place.credentials is None

    @property
    def of_streams(self) -> bool:
        """Whether rows are records of streams, not entries of ledgers."""
        return self.records is not None or isinstance(self.snapshot, RecordSnapshot)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How rows become ledgers, or records of a stream."""

    place: Place
    sink: str | None
    """Names the output; of two writes of the same batch to one sink, the second changes nothing."""
    transaction: int | None
    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    stream: str | None = None
    namespace: str = DEFAULT_NAMESPACE
    create_stream: bool = False
    cluster_id: str = ""
    """Of the cluster that the write was planned on; empty before it is planned."""


_LEDGER_BOUNDS: Final = frozenset({
    "ledger", "ledgers", "startingentry", "endingentry", "startingtime", "endingtime", "tier", "openledgers",
})  # fmt: skip
_STREAM_BOUNDS: Final = frozenset({"stream", "streampattern", "namespace", "startingposition", "endingposition"})
SNAPSHOT_BOUNDS: Final = _LEDGER_BOUNDS | _STREAM_BOUNDS
"""What a snapshot has settled."""

READ: Final = lower_names(PLACE_OPTIONS, READ_OPTIONS)
WRITE: Final = lower_names(PLACE_OPTIONS, WRITE_OPTIONS) | SPARKS_OWN


def options_of(metadata: str | None, options: Mapping[str, object]) -> dict[str, str]:
    """Options as Python names them (``starting_entry=7``) as Spark has them."""
    named: Mapping[str, object] = options if metadata is None else {"metadata": metadata, **options}
    return {
        name.replace("_", "").lower(): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in named.items()
    }


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """What a reader is told.

    Raises:
        InvalidConfig: an option is unknown, makes no sense, or contradicts another one.
    """
    options = _Options(given, READ)
    snapshot = options.parsed("snapshot", parse_snapshot)
    ledgers = options.ledgers()
    if snapshot is not None and set(options.given) & SNAPSHOT_BOUNDS:
        raise InvalidConfig("a snapshot says already which entries are meant: give no other bounds with it")
    records = options.records()
    found = ReadOptions(
        place=options.place(),
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
        start="earliest" if records else options.choice("startingposition", Start, "earliest"),
        max_bytes_per_trigger=options.size("maxbytespertrigger", NO_LIMIT),
        max_entries_per_trigger=options.number("maxentriespertrigger", NO_LIMIT, least=1),
    )
    if found.last_entry < found.first_entry:
        raise InvalidConfig(f"endingEntry {found.last_entry} lies before startingEntry {found.first_entry}")
    first_us, end_us = found.written.first_us, found.written.end_us
    if first_us is not None and end_us is not None and end_us <= first_us:
        raise InvalidConfig("endingTime, which is not included, does not lie behind startingTime")
    _check_streams(found)
    if found.place.metadata is None and (found.tier == "bookies" or found.table == "bookies"):
        raise InvalidConfig("a bucket has no bookies: give the metadata URI of the cluster, too")
    return found


def batch_options(given: Mapping[str, str]) -> ReadOptions:
    """What a reader of a batch is told.

    Raises:
        InvalidConfig: an option would not be heeded; or as ``read_options``.
    """
    found = read_options(given)
    ignored = [] if found.of_streams else ["startingposition"]
    ignored += ["maxbytespertrigger", "maxentriespertrigger"]
    for name in {name.lower() for name in given}.intersection(ignored):
        raise InvalidConfig(f"option {PROPER_NAMES[name]} is for readStream, and a batch would not heed it")
    return found


def _check_streams(found: ReadOptions) -> None:
    if found.of_streams and found.table != "entries":
        raise InvalidConfig("option table is about ledgers: give no stream, or snapshot of streams, with it")
    if found.of_streams and found.place.metadata is None:
        raise InvalidConfig("a bucket does not say which ledgers are a stream: give the metadata URI of the cluster")


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """What a writer is told.

    Raises:
        InvalidConfig: an option is unknown, missing, or makes no sense.
    """
    options = _Options(given, WRITE)
    place = options.place()
    if place.metadata is None or place.archive is not None:
        raise InvalidConfig("rows are written to a cluster: give its metadata URI, and no archive")
    sink = options.given.get("sink")
    if sink is not None and (not sink or len(sink) > 100 or not sink.replace("-", "").replace("_", "").isalnum()):
        raise InvalidConfig(f"option sink: {sink!r} is not a name of up to 100 letters, digits, - or _")
    transaction = options.number("transaction", -1)
    made = sorted(PROPER_NAMES[each] for each in ("ensemble", "writequorum", "ackquorum") if each in options.given)
    if made and "stream" in options.given:
        raise InvalidConfig(f"the policy of a stream says how it is kept, and {', '.join(made)} is of ledgers")
    if place.password and "stream" in options.given:
        raise InvalidConfig("streams have no password: rows would be written for everybody to read")
    if transaction >= 0 and sink is None:
        raise InvalidConfig("a transaction is known by its sink: give that, too")
    return WriteOptions(
        place,
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
    """Options by name, in lower case, turned into values."""

    def __init__(self, given: Mapping[str, str], known: frozenset[str]) -> None:
        self.given = {name.lower(): value for name, value in given.items()}
        for name in self.given:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; is {PROPER_NAMES.get(near[0], near[0])} meant?" if near else ""
                raise InvalidConfig(f"option {name} is not known{hint}")

    def place(self) -> Place:
        metadata, archive = self.given.get("metadata"), self.given.get("archive")
        if not metadata and not archive:
            raise InvalidConfig(
                "say where the ledgers are: option metadata, the URI of the cluster's metadata store, or option "
                "archive, the URL of a bucket that is to be read without the cluster"
                + ("" if self.given else f" ({NO_TABLES})")
            )
        if metadata and metadata.startswith("sqlite:") and _is_relative(metadata):
            raise InvalidConfig(
                f"{metadata} is relative to the working directory, and executors have others: give the absolute path"
            )
        try:
            password = self.given.get("password", "").encode()
        except UnicodeEncodeError:
            raise self._wrong("password", "it is no text that has an encoding") from None
        return Place(
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
                raise InvalidConfig("give either option ledger or option ledgers")
            return IdRanges.of([self.number("ledger", 0)])
        return None if many.strip().lower() == "all" else self.parsed("ledgers", IdRanges.parse)

    def records(self) -> RecordBounds | None:
        """Which streams are read, if any are."""
        name, pattern = self.given.get("stream"), self.given.get("streampattern")
        if name is None and pattern is None:
            for option in ("namespace", "endingposition"):
                if option in self.given:
                    raise self._wrong(option, "it is about streams: give option stream or streamPattern, too")
            return None
        other = sorted(_LEDGER_BOUNDS & set(self.given))
        if other:
            proper = ", ".join(PROPER_NAMES[each] for each in other)
            raise InvalidConfig(
                f"streams and ledgers are bounded by different options, and {proper} is of ledgers: of streams, "
                "startingPosition and endingPosition take positions, numbers and times"
            )
        start, end = (self.parsed(each, parse_place) for each in ("startingposition", "endingposition"))
        try:
            namespace = self.given.get("namespace", DEFAULT_NAMESPACE)
            return bounds_of(namespace, name, pattern, start, end)
        except InvalidArgument as error:
            raise InvalidConfig(error.message) from error

    def written_stream(self) -> str | None:
        """The stream that is written to, if one is."""
        name = self.given.get("stream")
        try:
            check_namespace(self.given.get("namespace", DEFAULT_NAMESPACE))
            if name is not None:
                return check_stream_name(name)
        except InvalidArgument as error:
            raise InvalidConfig(error.message) from error
        for option in ("namespace", "createstream"):
            if option in self.given:
                raise self._wrong(option, "it is about a stream: give option stream, too")
        return None

    def payload(self) -> PayloadOptions:
        kind = self.choice("payloadformat", PayloadKind, "raw")
        schema = self.given.get("payloadschema", "")
        if (kind == "raw") != (not schema):
            raise InvalidConfig("options payloadFormat (json, avro or arrow) and payloadSchema go together")
        reader_schema = self.given.get("payloadreaderschema", "")
        if kind == "avro":
            self.parsed("payloadschema", json.loads)
            self.parsed("payloadreaderschema", json.loads)
        elif reader_schema:
            raise self._wrong("payloadreaderschema", "it is about payloads in Avro")
        return PayloadOptions(kind, schema, self.choice("badrecords", BadRecords, "keep"), reader_schema)

    def parsed(self, name: str, parse: Callable[[str], T]) -> T | None:
        """What ``parse`` makes of an option, ``None`` where it is not given."""
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
        # Python refuses to read a number of thousands of digits, in words of its own.
        if not bare.isdecimal() or len(bare) > _MOST_DIGITS or not least <= int(bare) <= MAX_ID:
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
            raise self._wrong(name, "at least one byte is wanted")
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
            raise self._wrong(name, f"{found!r} is none of {', '.join(get_args(kind))}")
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
    from tallybook.metadata.uri import SqliteUri, parse_uri  # noqa: PLC0415 (for those who have a file)

    found = parse_uri(uri)
    return isinstance(found, SqliteUri) and not found.path.startswith("/")


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _with_unit(text: str) -> str:
    """Sizes in Spark are powers of two, with one letter: 64m is 64 MiB."""
    bare = text.strip().lower()
    return f"{bare}iB" if bare[-1:] in {"k", "m", "g", "t"} else bare

"""Options of ``format("tallybook")``: each one, each contradiction, and errors for unknown ones."""

import dataclasses
import re

import pytest

from tallybook.archive.objects.credentials import AzureCredentials, S3Credentials
from tallybook.core.errors import InvalidConfig
from tallybook.core.ids import MAX_ID
from tallybook.core.ranges import LedgerEntryRange
from tallybook.spark.option_names import LOCATION_OPTIONS
from tallybook.spark.options import (
    READ,
    LocationOptions,
    PayloadOptions,
    ReadOptions,
    batch_options,
    read_options,
    write_options,
)
from tallybook.spark.query.bounds import RecordBounds
from tallybook.spark.query.id_ranges import NO_IDS, IdRanges
from tallybook.spark.query.snapshot import Snapshot, TimeRange

GOOD = '{"tallybook_snapshot": 1, "cluster": "c", "ledgers": [{"ledger": 7, "first": 0, "last": 9}]}'

HERE = {"metadata": "sqlite:///x"}


def of(**given: str) -> ReadOptions:
    return read_options(HERE | given)


def test_without_options_everything_of_a_place_is_read() -> None:
    assert of() == ReadOptions(LocationOptions("sqlite:///x", None))
    assert read_options({"archive": "file:///b"}) == ReadOptions(LocationOptions(None, "file:///b"))
    assert of(archive="s3://b").location == LocationOptions("sqlite:///x", "s3://b")
    for nowhere in ({}, {"metadata": ""}, {"archive": "", "metadata": ""}):
        with pytest.raises(InvalidConfig, match="give the location of the ledgers"):
            read_options(nowhere)


S3 = {"s3AccessKey": "AKIAQUERY", "s3SecretKey": "hidden-1", "s3SessionToken": "hidden-2"}
AZURE = {"azureAccount": "account", "azureSecretKey": "hidden-3"}


def test_credentials_of_a_query_are_those_of_its_archive_and_are_never_shown() -> None:
    found = of(**S3, s3Region="eu-west-1", s3Endpoint="https://s3.example").location
    assert found.credentials == S3Credentials("AKIAQUERY", "hidden-1", "hidden-2", "eu-west-1", "https://s3.example")
    assert of(**AZURE).location.credentials == AzureCredentials("account", "hidden-3")
    assert of(azureAccount="account", azureSasToken="sig=1").location.credentials == AzureCredentials(
        "account", "", "sig=1"
    )
    assert write_options(HERE | S3).location.credentials == S3Credentials("AKIAQUERY", "hidden-1", "hidden-2")
    shown = repr((of(**S3), of(**AZURE), write_options(HERE | S3)))
    assert "hidden" not in shown
    assert "AKIAQUERY" not in shown


def test_spark_hides_the_credentials_of_a_query_in_plans() -> None:
    hidden = re.compile("(?i)secret|password|token|access[.]?key")  # the default of spark.redaction.regex
    plain = {"s3Region", "s3Endpoint", "azureAccount"}
    names = {each.name for each in LOCATION_OPTIONS if each.name.startswith(("s3", "azure"))}
    assert {name for name in names if not hidden.search(name)} == plain


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"s3AccessKey": "hidden"}, "give both s3AccessKey and s3SecretKey"),
        ({"s3Endpoint": "https://elsewhere"}, "give both s3AccessKey and s3SecretKey"),
        ({"azureAccount": "a"}, "either azureSecretKey or azureSasToken"),
        ({"azureSecretKey": "hidden"}, "azureAccount and either"),
        ({**AZURE, "azureSasToken": "hidden"}, "either azureSecretKey or azureSasToken"),
        ({**S3, **AZURE}, "credentials of one store"),
    ],
)
def test_credentials_that_are_not_complete_are_refused_without_being_shown(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said) as raised:
        of(**given)
    assert "hidden" not in raised.value.message


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("table", "Ledgers", "table", "ledgers"),
        ("ledger", " 7 ", "ledgers", IdRanges.of([7])),
        ("ledgers", "1,5-9", "ledgers", IdRanges(((1, 1), (5, 9)))),
        ("ledgers", " ALL ", "ledgers", None),
        ("ledgers", "", "ledgers", NO_IDS),
        ("startingEntry", "0", "first_entry", 0),
        ("startingEntry", str(MAX_ID), "first_entry", MAX_ID),
        ("endingEntry", "99", "last_entry", 99),
        ("startingTime", "2026-11-01T00:00:00Z", "written", TimeRange(1_793_491_200_000_000)),
        ("startingTime", "2026-11-01", "written", TimeRange(1_793_491_200_000_000)),
        ("startingTime", "2026-11-01 01:00:00+01:00", "written", TimeRange(1_793_491_200_000_000)),
        ("startingTime", "2026-11-01T00:00:00.000001", "written", TimeRange(1_793_491_200_000_001)),
        ("endingTime", "1969-12-31T23:59:59.999999Z", "written", TimeRange(None, -1)),
        ("endingTime", "0001-01-01T00:00:00+23:59", "written", TimeRange(None, -62_135_683_140_000_000)),
        ("endingTime", "9999-12-31T23:59:59.999999-23:59", "written", TimeRange(None, 253_402_387_139_999_999)),
        ("stream", "orders/eu", "records", RecordBounds("default", "orders/eu", "")),
        ("streamPattern", "orders/*", "records", RecordBounds("default", None, "orders/*")),
        ("snapshot", GOOD, "snapshot", Snapshot("c", (LedgerEntryRange(7, 0, 9),))),
        ("tier", "archive", "tier", "archive"),
        ("tier", "bookies", "tier", "bookies"),
        ("openLedgers", "FALSE", "open_ledgers", False),
        ("failOnDataLoss", "false", "fail_on_data_loss", False),
        ("includeMetadata", "true", "include_metadata", True),
        ("maxBytesPerPartition", "64m", "partition_bytes", 64 << 20),
        ("maxBytesPerPartition", "67108864", "partition_bytes", 64 << 20),
        ("maxBytesPerPartition", "1G", "partition_bytes", 1 << 30),
        ("maxBytesPerPartition", "1.5k", "partition_bytes", 1536),
        ("maxBytesPerPartition", "2t", "partition_bytes", 2 << 40),
        ("maxBytesPerPartition", "3MiB", "partition_bytes", 3 << 20),
        ("maxBytesPerPartition", "3 MB", "partition_bytes", 3_000_000),
        ("maxBytesPerPartition", "7b", "partition_bytes", 7),
        ("minPartitions", "8", "min_partitions", 8),
        ("badRecords", "fail", "payload", PayloadOptions(bad_records="fail")),
        ("columns", "Entry_ID, payload", "columns", ("entry_id", "payload")),
        ("startingPosition", "latest", "start", "latest"),
        ("maxBytesPerTrigger", "1m", "max_bytes_per_trigger", 1 << 20),
        ("maxEntriesPerTrigger", "5", "max_entries_per_trigger", 5),
        ("password", "sécret", "location", LocationOptions("sqlite:///x", None, "sécret".encode())),
        ("security", "/etc/tb", "location", LocationOptions("sqlite:///x", None, security="/etc/tb")),
        ("archivekeys", "/etc/keys", "location", LocationOptions("sqlite:///x", None, archive_keys="/etc/keys")),
    ],
)  # fmt: skip
def test_each_option_is_understood_in_any_case(name: str, value: str, field: str, expected: object) -> None:
    for written in (name, name.lower(), name.upper()):
        assert of(**{written: value}) == dataclasses.replace(of(), **{field: expected})


def test_no_option_is_without_a_test() -> None:
    mark = next(mark for mark in test_each_option_is_understood_in_any_case.pytestmark)
    tried = {case[0].lower() for case in mark.args[1]}
    others = {
        "metadata", "archive", "payloadformat", "payloadschema", "payloadreaderschema", "namespace", "endingposition",
        *(name.lower() for name in {**S3, **AZURE}), "s3region", "s3endpoint", "azuresastoken",
    }  # fmt: skip
    assert tried | others == set(READ)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingentry": "x"}, "startingEntry: 'x' is not a whole number"),
        ({"startingentry": "-1"}, "startingEntry"), ({"startingentry": "1.5"}, "startingEntry"),
        ({"startingentry": ""}, "startingEntry"), ({"startingentry": "²"}, "startingEntry"),
        ({"startingentry": "9223372036854775808"}, "startingEntry"), ({"startingentry": "1" * 5000}, "startingEntry"),
        ({"endingentry": "-5"}, "endingEntry"), ({"ledger": "x"}, "ledger"), ({"ledger": "1-2"}, "ledger"),
        ({"ledgers": "9-1"}, "ledgers"), ({"ledgers": "some"}, "ledgers: 'some' is neither an id"),
        ({"startingtime": "yesterday"}, "startingTime: 'yesterday' is not a time such as"),
        ({"startingtime": ""}, "startingTime"), ({"endingtime": "2026-13-01"}, "endingTime"),
        ({"table": "entrys"}, "table: 'entrys' is not one of entries, ledgers"), ({"tier": ""}, "tier"),
        ({"openledgers": "yes"}, "openLedgers: 'yes' is neither true nor false"), ({"failondataloss": ""}, "fail"),
        ({"includemetadata": "1"}, "includeMetadata"), ({"maxbytesperpartition": "much"}, "such as 64m"),
        ({"maxbytesperpartition": "0"}, "at least one byte"), ({"maxbytesperpartition": "-1m"}, "maxBytesPerPartition"),
        ({"maxbytesperpartition": ""}, "maxBytesPerPartition"), ({"maxbytesperpartition": "0.1"}, "at least one byte"),
        ({"minpartitions": "0"}, "minPartitions"), ({"badrecords": "drop"}, "'drop' is not one of keep, fail"),
        ({"payloadformat": "xml", "payloadschema": "a INT"}, "'xml' is not one of raw, json, avro, arrow"),
        ({"payloadformat": "avro", "payloadschema": "a INT"}, "payloadSchema"),
        ({"snapshot": "x"}, "option snapshot: a snapshot is JSON"), ({"snapshot": "[" * 100_000}, "option snapshot"),
        ({"startingposition": "7"}, "startingPosition"), ({"maxbytespertrigger": "0k"}, "maxBytesPerTrigger"),
        ({"maxentriespertrigger": "0"}, "maxEntriesPerTrigger"),
        # contradictions
        ({"ledger": "1", "ledgers": "2"}, "either option ledger or option ledgers"),
        ({"startingentry": "5", "endingentry": "4"}, "endingEntry 4 is before startingEntry 5"),
        ({"startingtime": "2026-11-02", "endingtime": "2026-11-01"}, "endingTime"),
        ({"startingtime": "2026-11-02", "endingtime": "2026-11-02"}, "endingTime"),
        ({"payloadformat": "json"}, "payloadSchema together"), ({"payloadschema": "a INT"}, "payloadSchema together"),
        ({"payloadformat": "raw", "payloadschema": "a INT"}, "payloadSchema together"),
        *(({"snapshot": GOOD, name: "1"}, "a snapshot defines")
          for name in ("ledger", "ledgers", "startingentry", "endingentry")),
        *(({"snapshot": GOOD, name: "2026-11-01"}, "a snapshot defines") for name in ("startingtime", "endingtime")),
        ({"metadata": "", "archive": "x", "tier": "bookies"}, "no bookies"),
        ({"metadata": "", "archive": "x", "table": "bookies"}, "no bookies"),
        # names
        ({"startingentri": "1"}, "unknown option startingentri; did you mean startingEntry"),
        ({"end_entry": "1"}, "unknown option end_entry; did you mean endingEntry"),
        ({"snapshots": "1"}, "did you mean snapshot"), ({"qqq": "1"}, "unknown option qqq$"),
        ({"sink": "x"}, "unknown option sink"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_reported_by_name(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        read_options(HERE | given)


def test_payloads_are_parsed_by_a_schema() -> None:
    assert of(payloadformat="JSON", payloadschema="a INT").payload == PayloadOptions("json", "a INT")
    assert of(payloadformat="arrow", payloadschema="a INT").payload.kind == "arrow"
    assert of(payloadformat="avro", payloadschema='{"type": "record"}').payload.schema == '{"type": "record"}'


def test_passwords_are_not_shown() -> None:
    assert "secret" not in repr(of(password="secret"))


def test_writers_have_options_of_their_own() -> None:
    found = write_options(HERE | {"sink": "my-sink_1", "transaction": "7", "checkpointLocation": "x"})
    assert (found.sink, found.transaction, found.ensemble, found.write_quorum, found.ack_quorum) == (
        "my-sink_1", 7, 3, 3, 2,
    )  # fmt: skip
    found = write_options(HERE | {"ensemble": "5", "writeQuorum": "4", "ackQuorum": "3", "queryName": "x"})
    assert (found.sink, found.transaction, found.ensemble, found.write_quorum, found.ack_quorum) == (
        None,
        None,
        5,
        4,
        3,
    )
    assert write_options(HERE | {"sink": "x" * 100, "transaction": "0"}).transaction == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metadata": ""}, "give the location"), ({"archive": "file:///b"}, "no archive"),
        ({"metadata": "", "archive": "file:///b"}, "metadata URI"), ({"sink": ""}, "sink"), ({"sink": "a/b"}, "sink"),
        ({"sink": "x" * 101}, "sink"), ({"sink": ".."}, "sink"), ({"transaction": "1"}, "needs option sink"),
        ({"sink": "x", "transaction": "-1"}, "transaction"), ({"ensemble": "0"}, "ensemble"),
        ({"writequorum": "0"}, "writeQuorum"), ({"ackquorum": "x"}, "ackQuorum"), ({"table": "entries"}, "table"),
        ({"sinc": "x"}, "did you mean sink"),
    ],
)  # fmt: skip
def test_options_of_writers_that_make_no_sense_are_reported_by_name(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        write_options(HERE | given)


@pytest.mark.parametrize(
    "given",
    [
        {"maxBytesPerTrigger": "1m"},
        {"maxEntriesPerTrigger": "5", "stream": "s"},
        {"startingPosition": "latest"},
        {"startingPosition": "latest", "table": "ledgers"},
    ],
)
def test_a_batch_refuses_what_only_a_stream_heeds(given: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig, match=f"{next(iter(given))} is for readStream"):
        batch_options(HERE | given)


def test_a_batch_takes_every_other_option() -> None:
    given = HERE | {"stream": "s", "startingPosition": "sequence:5", "minPartitions": "2"}
    assert batch_options(given) == read_options(given)
    assert batch_options(HERE) == read_options(HERE)

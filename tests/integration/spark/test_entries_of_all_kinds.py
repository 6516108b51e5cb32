"""Extreme ledgers and entries in Spark: none, empty, of maximal size, text in no encoding, Avro and Arrow."""

import io
import json

import fastavro
import pyarrow as pa
import pytest

from tallybook.core.limits import MAX_ENTRY_BYTES
from tallybook.spark import read_ledgers

pytestmark = pytest.mark.nightly

LARGEST = bytes(range(256)) * (MAX_ENTRY_BYTES // 256) + bytes(MAX_ENTRY_BYTES % 256)
AVRO = {"type": "record", "name": "flight", "fields": [
    {"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "double"]},
]}  # fmt: skip


@pytest.fixture(scope="module")
def kinds(written):
    """A ledger without entries, one with empty entries, one with entries of maximal size."""
    assert len(LARGEST) == MAX_ENTRY_BYTES
    return written.ledger([]), written.ledger([b""] * 20), written.ledger([b"", LARGEST, b"x", LARGEST])


def test_a_ledger_without_entries_and_entries_without_or_with_all_bytes_are_rows_like_any(
    written, kinds, spark, load, rows
):
    empty, *_ = kinds
    chosen = ",".join(map(str, kinds))

    def streamed():
        stream = spark.readStream.format("tallybook").option("metadata", written.metadata).option("ledgers", chosen)
        query = stream.load().writeStream.format("memory").queryName("kinds").trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()
        return spark.table("kinds")

    expected = written.rows(*kinds)
    assert rows(load(written.metadata, ledgers=chosen, minPartitions=3)) == expected
    assert rows(load(written.metadata, ledger=empty)) == []
    assert rows(streamed()) == expected
    written.offload("deletion_lag_s=0")
    assert rows(load(written.metadata, ledgers=chosen, minPartitions=3)) == expected
    assert rows(read_ledgers(spark, written.metadata, ledgers=chosen)) == expected
    assert rows(read_ledgers(spark, written.metadata, ledger=empty)) == []
    assert rows(spark.read.format("tallybook").option("archive", written.archive).load()) == expected


def test_text_in_no_encoding_is_kept_beside_what_is_json(written, load):
    bad = [b'{"a": "\xe9"}', '{"a": "x"}'.encode("utf-16"), b'{"a": "\\ud800"}', b"\xff\xfe", b"\x00", b""]
    ledger = written.ledger([b'{"a": "\xc3\xa9"}', *bad, b'{"a": null}'])
    table = load(written.metadata, ledger=ledger, payloadFormat="json", payloadSchema="a STRING")
    found = table.orderBy("entry_id").selectExpr("value IS NULL AS lost", "value.a", "bad_payload", "bad_reason")
    [first, *kept, last] = found.collect()
    assert (first.lost, first.a, first.bad_payload, last.lost, last.a) == (False, "é", None, False, None)
    assert [bytes(row.bad_payload) for row in kept] == bad
    assert all(row.lost and row.bad_reason for row in kept)


def avro(value: dict) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, AVRO, value)
    return out.getvalue()


def arrow(*values: dict) -> bytes:
    table, out = pa.Table.from_pylist(list(values)), io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return out.getvalue()


def test_payloads_in_avro_are_columns_and_bad_ones_are_kept(written, load):
    late, early = {"carrier": "AA", "delay": 3.5}, {"carrier": "Ünited", "delay": None}
    ledger = written.ledger([avro(late), b"\xff" * 9, avro(early), avro(late) + b"more"])
    table = load(written.metadata, ledger=ledger, payloadFormat="avro", payloadSchema=json.dumps(AVRO))
    found = table.orderBy("entry_id").collect()
    assert [row.value and row.value.asDict() for row in found] == [late, None, early, None]
    assert [row.bad_payload and bytes(row.bad_payload) for row in found] == [
        None,
        b"\xff" * 9,
        None,
        avro(late) + b"more",
    ]
    assert [bool(row.bad_reason) for row in found] == [False, True, False, True]


def test_payloads_in_arrow_are_rows_and_bad_ones_are_kept(written, load):
    flights = [{"carrier": "AA", "delay": 3.5}, {"carrier": None, "delay": 0.0}, {"carrier": "UA", "delay": None}]
    ledger = written.ledger([arrow(*flights), b"no stream", arrow(flights[2])])
    written.offload()
    table = load(written.metadata, ledger=ledger, payloadFormat="arrow", payloadSchema="carrier STRING, delay DOUBLE")
    found = table.orderBy("entry_id", "slot").collect()
    assert [(row.entry_id, row.slot) for row in found] == [(0, 0), (0, 1), (0, 2), (1, None), (2, 0)]
    assert [row.value and row.value.asDict() for row in found] == [*flights, None, flights[2]]
    assert [row.bad_payload and bytes(row.bad_payload) for row in found] == [None, None, None, b"no stream", None]

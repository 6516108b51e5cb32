"""Rows as envelopes of a staged ledger: complete, split where an entry is full, refused if too large."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark

from tallybook.core.errors import DamagedFile, EntryTooLarge, InvalidArgument, InvalidConfig, OutOfOrder
from tallybook.core.limits import MAX_ENTRY_BYTES
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.metadata.transactions import Transaction, is_staged
from tallybook.metadata.transactions.model import settled
from tallybook.spark.ledgers.planning import is_wanted
from tallybook.spark.options import read_options
from tallybook.spark.streams.staging import EnvelopeStager, check_rows
from tallybook.stream.catalog.delivery_record import (
    MAX_ID_BYTES,
    PART,
    Delivery,
    DeliveryStage,
    delivered,
    delivery_id,
    part_of,
    staging,
)
from tallybook.stream.records.envelope import MAX_RECORDS, Envelope
from tallybook.stream.writer.flow import ENVELOPE_BYTES

STREAM_ID = "5f0c9a21" + "0" * 24
ROWS = st.lists(
    st.tuples(
        st.binary(max_size=200),
        st.none() | st.binary(max_size=5),
        st.none() | st.integers(-(10**12), 10**12),
        st.none() | st.integers(0, 3),
    ),
    max_size=30,
)


def staging_of(most_bytes=MAX_ENTRY_BYTES):
    return EnvelopeStager(70, most_bytes, lambda: 17)


def records_of(envelopes):
    return [each for entry, payload in enumerate(envelopes) for each in Envelope(payload, 1, entry, "x").records()]


@given(st.lists(ROWS, max_size=3), st.sampled_from([400, 2_000, MAX_ENTRY_BYTES]))
def test_rows_become_records_with_all_they_say_in_their_order(parts, most_bytes):
    made, envelopes, lowest = staging_of(most_bytes), [], 0
    expected = []
    for part in parts:
        rows = []
        for payload, key, micros, step in part:
            lowest += step or 0
            rows.append((payload, key, micros, None if step is None else lowest))
        columns = list(zip(*rows, strict=True)) or [[]] * 4
        batch = pa.RecordBatch.from_pydict({
            "payload": pa.array(columns[0], pa.binary()), "key": pa.array(columns[1], pa.binary()),
            "timestamp": pa.array(columns[2], pa.timestamp("us", "UTC")), "txid": pa.array(columns[3], pa.int64()),
        })  # fmt: skip
        envelopes += made.envelopes(batch)
        expected += rows
    records = records_of(envelopes)
    assert [(each.payload, each.key, each.timestamp_ms, each.txid) for each in records] == [
        (payload, key, 17 if micros is None else micros // 1000, txid) for payload, key, micros, txid in expected
    ]
    assert [each.sequence for each in records] == list(range(len(expected)))
    for entry, payload in enumerate(envelopes):
        ids = [each.dedup_id for each in Envelope(payload, 1, entry, "x").records()]
        assert [delivered(each) for each in ids] == [None] * (len(ids) - 1) + [(70, entry)]
        assert len(payload) <= most_bytes
    txids = [txid for *_, txid in expected if txid is not None]
    assert made.txids == ((txids[0], txids[-1]) if txids else None)


def test_an_envelope_is_full_by_its_bytes_or_by_its_records():
    large = pa.RecordBatch.from_pydict({"payload": pa.array([bytes(1_000)] * 200, pa.binary())})
    first = next(staging_of().envelopes(large))
    assert ENVELOPE_BYTES - 3_000 < len(first) <= ENVELOPE_BYTES
    empty = pa.RecordBatch.from_pydict({"payload": pa.array([""] * 5_000, pa.string())})
    assert all(Envelope(each, 1, 0, "x").count <= MAX_RECORDS for each in staging_of().envelopes(empty))


def test_a_row_that_is_no_record_is_refused_by_its_number():
    made = staging_of(10_000)
    first = pa.RecordBatch.from_pydict({"payload": pa.array([b"a", b"b"])})
    assert len(list(made.envelopes(first))) == 1
    with pytest.raises(InvalidArgument, match="row 3 of a task has no payload"):
        list(made.envelopes(pa.RecordBatch.from_pydict({"payload": pa.array([b"a", None])})))
    with pytest.raises(EntryTooLarge, match="row 2 of a task has 10000 bytes"):
        list(made.envelopes(pa.RecordBatch.from_pydict({"payload": pa.array([bytes(10_000)])})))


def test_the_largest_row_that_is_taken_fits_an_entry():
    made = staging_of()
    with pytest.raises(EntryTooLarge) as told:
        list(made.envelopes(pa.RecordBatch.from_pydict({"payload": pa.array([bytes(MAX_ENTRY_BYTES)])})))
    most = int(told.value.message.rpartition(" ")[2])
    [payload] = made.envelopes(pa.RecordBatch.from_pydict({"payload": pa.array([bytes(most)])}))
    assert len(payload) <= MAX_ENTRY_BYTES
    assert len(delivery_id(2**63 - 1, 2**63 - 1)) == MAX_ID_BYTES


@pytest.mark.parametrize("parts", [[[5, 4]], [[5, None, 4]], [[5], [4]], [[1, 5], [None], [4]]])
def test_a_transaction_id_that_falls_is_refused(parts):
    made = staging_of()

    def stage():
        for txids in parts:
            columns = {"payload": [b""] * len(txids), "txid": pa.array(txids, pa.int32())}
            list(made.envelopes(pa.RecordBatch.from_pydict(columns)))

    with pytest.raises(OutOfOrder, match="transaction id 4 comes after 5"):
        stage()


def test_columns_that_no_record_has_are_refused():
    def schema(**kinds):
        return spark.StructType([spark.StructField(name, kind) for name, kind in kinds.items()])

    text, number = spark.StringType(), spark.LongType()
    check_rows(schema(payload=text, key=text, timestamp=spark.TimestampType(), txid=number), overwrite=False)
    for wrong in (
        schema(value=text), schema(payload=number), schema(payload=text, txid=text), schema(payload=text, more=text),
        schema(key=text),
    ):  # fmt: skip
        with pytest.raises(InvalidConfig, match="records need column payload"):
            check_rows(wrong, overwrite=False)
    with pytest.raises(InvalidConfig, match="never overwritten"):
        check_rows(schema(payload=text), overwrite=True)


# --- what is kept of deliveries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", DeliveryStage)
def test_the_record_of_a_delivery_says_all_of_it(stage):
    found = Delivery(17, 1000, stage)
    assert Delivery.decode("x", found.encode()) == found


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b"{}", b'{"format":0,"number":1,"since":0,"stage":"done"}',
     b'{"format":1,"number":-1,"since":0,"stage":"done"}', b'{"format":1,"number":1,"since":true,"stage":"done"}',
     b'{"format":1,"number":1,"since":0,"stage":"lost"}'],
)  # fmt: skip
def test_a_record_of_something_else_is_damaged(value):
    with pytest.raises(DamagedFile, match="the record x"):
        Delivery.decode("x", value)


def test_a_staged_ledger_is_known_by_its_sink_and_its_part():
    marks = staging(STREAM_ID, "sales", 17).marks
    one = SimpleNamespace(custom={**marks, PART: b"3"}, ledger_id=9)
    assert is_staged(one)
    assert part_of(one) == (3, 9)
    assert part_of(SimpleNamespace(custom={PART: b"x"}, ledger_id=9)) > part_of(one)
    assert not is_staged(SimpleNamespace(custom=Transaction("sales", 17).marks, ledger_id=9))
    assert not is_staged(SimpleNamespace(custom={}, ledger_id=9))
    for other in (None, b"", b"delivery/1-", b"delivery/1-2-3", b"xdelivery/1-2", b"delivery/1-2\n", b"order-42"):
        assert delivered(other) is None


def test_no_table_of_entries_has_a_staged_ledger_not_even_once_it_is_committed():
    def ledger(custom):
        closed = {"state": LedgerState.CLOSED, "last_entry_id": 9, "length": 90}
        return LedgerMetadata(7, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0, custom=custom, **closed)

    options = read_options({"metadata": "sqlite:///x"})
    assert is_wanted(ledger({}), options)
    staged = ledger(staging(STREAM_ID, "sales", 17).marks)
    assert not is_wanted(staged, options)
    assert not is_wanted(settled(staged), options)
    assert is_wanted(settled(ledger(Transaction("sales", 17).marks)), options)


def test_times_before_the_epoch_are_rounded_down():
    moment = datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
    [payload] = staging_of().envelopes(
        pa.RecordBatch.from_pydict({"payload": [b""], "timestamp": pa.array([moment], pa.timestamp("us", "UTC"))})
    )
    assert [each.timestamp_ms for each in records_of([payload])] == [-1]

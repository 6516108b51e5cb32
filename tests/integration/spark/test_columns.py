"""Option ``columns``: what is not asked for is neither read from the archive nor passed to Spark."""

import io
from contextlib import redirect_stdout
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from tallybook.spark import read_ledgers

PAYLOADS = [bytes([at % 251]) * 700 for at in range(300)]


def plan_of(table, mode: str = "extended") -> str:
    """The output of EXPLAIN."""
    with redirect_stdout(io.StringIO()) as printed:
        table.explain(mode)
    return printed.getvalue()


def spoil_payloads(path: Path) -> None:
    """Overwrite every byte of the payload column in an archive object."""
    footer = pq.read_metadata(path)
    with path.open("r+b") as file:
        for number in range(footer.num_row_groups):
            column = footer.row_group(number).column(4)
            assert column.path_in_schema == "payload"
            file.seek(column.data_page_offset)
            file.write(b"\xff" * column.total_compressed_size)


def test_chosen_columns_do_not_need_the_bytes_of_others(written, load):
    ledger = written.ledger(PAYLOADS)
    written.offload()
    [path] = [each for each in written.bucket.glob("*/*.parquet") if each.name.startswith(f"{ledger:019d}-")]
    spoil_payloads(path)
    everything = load(written.metadata, ledger=ledger, includeMetadata=True)
    assert {row.tier for row in everything.collect()} == {"bookies"}, "the copy in the archive is damaged"
    some = load(written.metadata, ledger=ledger, includeMetadata=True, columns="tier, Entry_ID,crc32c,object")
    assert some.columns == ["tier", "entry_id", "crc32c", "object"]
    assert "ReadSchema: struct<tier:string,entry_id:bigint,crc32c:bigint,object:string>" in plan_of(some, "formatted")
    rows = some.orderBy("entry_id").collect()
    assert [(row.tier, row.entry_id) for row in rows] == [("archive", at) for at in range(len(PAYLOADS))]
    assert {row.object.rpartition("/")[2] for row in rows} == {path.name}
    assert [row.crc32c for row in rows] == [row.crc32c for row in everything.orderBy("entry_id").collect()]


def test_bounds_in_time_need_no_column_of_the_result(written, load):
    ledger = written.ledger(PAYLOADS)
    written.offload()
    later = load(written.metadata, ledger=ledger, columns="entry_id", startingTime="2020-01-01T00:00:00Z")
    assert sorted(row.entry_id for row in later.collect()) == list(range(len(PAYLOADS)))
    earlier = load(written.metadata, ledger=ledger, columns="entry_id", endingTime="2020-01-01T00:00:00Z")
    assert earlier.count() == 0


def test_columns_of_read_ledgers_are_those_chosen_wherever_rows_come_from(written, spark, rows):
    archived = written.ledger([b"a", b"b"])
    written.offload()
    mine = written.ledger([b"c"], close=False)
    table = read_ledgers(spark, written.metadata, ledgers=f"{archived},{mine}", columns="payload,entry_id")
    assert table.columns == ["payload", "entry_id"]
    assert sorted((bytes(row.payload), row.entry_id) for row in table.collect()) == [(b"a", 0), (b"b", 1), (b"c", 0)]
    plan = plan_of(table)
    assert "FileScan parquet" in plan
    assert "SubqueryAlias `read in Python: 1 ledger not in the archive`" in plan


def test_columns_of_records_are_those_chosen(written, streams, spark, load):
    streams.create("cols")
    streams.append("cols", [b"1", b"2", b"3"])
    written.offload()
    streams.append("cols", [b"4"], rest=False)
    for table in (
        load(written.metadata, stream="cols", columns="payload,position"),
        read_ledgers(spark, written.metadata, stream="cols", columns="payload,position"),
    ):
        assert table.columns == ["payload", "position"]
        found = [(bytes(row.payload), row.position) for row in table.orderBy("payload").collect()]
        assert found == list(zip([b"1", b"2", b"3", b"4"], streams.positions("cols"), strict=True))
    assert "SubqueryAlias `read in Python: 1 ledger not in the archive`" in plan_of(table)
    assert load(written.metadata, stream="cols", columns="tier", includeMetadata=True).count() == 4


def test_payloads_that_cannot_be_parsed_are_told_from_nulls_in_the_chosen_columns(written, load):
    options = {"ledger": written.ledger([b'{"a": 1}', b"no json"]), "payloadFormat": "json", "payloadSchema": "a INT"}
    kept = load(written.metadata, columns="value,bad_reason", **options)
    assert sorted((row.value and row.value.a, bool(row.bad_reason)) for row in kept.collect() if row.value) == [
        (1, False)
    ]
    assert [bool(row.bad_reason) for row in kept.collect() if row.value is None] == [True]
    failing = load(written.metadata, columns="value", badRecords="fail", **options)
    with pytest.raises(PySparkException, match="entry 1"):
        failing.collect()


def test_gaps_are_rows_of_the_chosen_columns_also_in_readstream(written, streams, spark, tmp_path):
    streams.create("gaps", roll_bytes=1024, offload_after=0)
    streams.append("gaps", [b"%d" % number + b"." * 100 for number in range(30)])
    whole = read_ledgers(spark, written.metadata, stream="gaps", include_metadata=True).collect()
    ledger = sorted(whole, key=lambda row: row.sequence)[15].ledger_id
    gone = sorted(row.sequence for row in whole if row.ledger_id == ledger)
    written.entries[ledger] = []
    written.delete(ledger)
    options = {"stream": "gaps", "columns": "payload,gap", "failOnDataLoss": False}
    batch = read_ledgers(spark, written.metadata, **options)
    assert "1 ledger lost" in plan_of(batch)
    followed = spark.readStream.format("tallybook").option("metadata", written.metadata).options(**options).load()
    assert followed.columns == ["payload", "gap"]
    query = (
        followed.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(100)
    finally:
        query.stop()
    for table in (batch, spark.read.parquet(str(tmp_path / "out"))):
        rows = table.collect()
        [gap] = [row for row in rows if row.gap is not None]
        assert (gap.payload, gap.gap.kind, gap.gap.first, gap.gap.last) == (None, "lost", gone[0], gone[-1])
        assert len(rows) == 30 - len(gone) + 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": "entry_id,tier"}, "there is no column tier"),
        ({"columns": "entry_id", "failOnDataLoss": False}, "failOnDataLoss=false, name column gap, too"),
        ({"columns": "entry_id", "payloadFormat": "json", "payloadSchema": "a INT"}, "name column value, too"),
        (
            {"columns": "value", "payloadFormat": "json", "payloadSchema": "a INT"},
            "name column bad_reason or bad_payload",
        ),
        ({"columns": "entry_id,"}, "not a list of different names"),
        ({"columns": "entry_id,ENTRY_ID"}, "not a list of different names"),
        ({"columns": "ledger_id", "table": "ledgers"}, "columns is for entries and records"),
    ],
)
def test_columns_that_cannot_be_are_refused_when_the_query_is_planned(written, load, options, said):
    with pytest.raises(PySparkException, match=said):
        load(written.metadata, **options)

"""Ledgers in Spark: metadata tables, a SQL query, and an export to Parquet.

    tallybook demo --data ./flights --no-spark      # two ledgers of flights, archived
    python examples/flights.py sqlite:///$PWD/flights/metadata.db exported-flights

Each block can be pasted into a notebook.
"""

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tallybook.spark import TallybookDataSource, read_ledgers, take_snapshot
from tallybook.spark.pipelines import export, verify

# In a notebook: METADATA, TARGET = "sqlite:////data/flights/metadata.db", "/data/exported-flights"
parser = argparse.ArgumentParser(description="Ledgers in Spark: metadata tables, a SQL query, and an export.")
parser.add_argument("metadata", help="URI of the cluster's metadata store, as sqlite:////srv/tallybook/metadata.db")
parser.add_argument(
    "target", nargs="?", default="exported-flights", help="folder for the export (default: %(default)s)"
)
given = parser.parse_args()
METADATA, TARGET = given.metadata, given.target
if "://" not in TARGET:
    TARGET = str(Path(TARGET).resolve())

# A local session, whose tasks use this Python. On a cluster, every executor needs the extra spark, and Spark needs its
# own package for the object store.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
spark.dataSource.register(TallybookDataSource)

# Metadata tables: all ledgers, and the objects of the archive.
ledgers = spark.read.format("tallybook").option("metadata", METADATA).option("table", "ledgers").load()
ledgers.select("ledger_id", "state", "entries", "payload_bytes", "archived", "copies_released").show()
objects = spark.read.format("tallybook").option("metadata", METADATA).option("table", "objects").load()
objects.select("key", "bytes", "ledgers", "entries").show(truncate=48)

# A snapshot always gives the same rows: it names entries, not locations.
snapshot = take_snapshot(METADATA)
print(snapshot)
entries = read_ledgers(spark, METADATA, snapshot=snapshot)

# Payloads are bytes. These are JSON, which Spark parses.
schema = "year INT, month INT, day INT, carrier STRING, origin STRING, dest STRING, dep_delay DOUBLE, distance INT"
flights = entries.select(F.from_json(F.col("payload").cast("string"), schema).alias("flight")).select("flight.*")
flights.createOrReplaceTempView("flights")
spark.sql("""
    SELECT carrier, count(*) AS flights, round(avg(dep_delay), 2) AS delay, round(percentile(dep_delay, 0.95)) AS p95
    FROM flights GROUP BY carrier ORDER BY delay DESC
""").show()

# The plan: Spark reads plain Parquet, with pushed-down filters.
entries.where("entry_id < 1000").explain()

# Read every object completely and compare all checksums.
verify(spark, METADATA).select("key", "entries", "problem").show(truncate=48)

# Export closed ledgers as Parquet by day of writing. A second run writes only new ledgers.
export(spark, METADATA, TARGET, partition_by=("day",))
print(spark.read.parquet(TARGET).count(), "rows exported to", TARGET)
spark.stop()

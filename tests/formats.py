"""Every stored or transmitted format, with the newest version that is read and written here.

docs/operate/upgrade.md has the list for operators, and docs/reference/damage.md the effect of damage to each.
Tests compare both with this list, and check that the newest fixture has one of each format.
"""

from tallybook.archive import encryption_record, manifest, stream_records, url_record
from tallybook.archive.format import schema
from tallybook.archive.objects.encryption import format as seal_format
from tallybook.bookie.directories import cookie, limbo
from tallybook.bookie.directories import layout as directories
from tallybook.bookie.directories import storage_directories as places
from tallybook.bookie.journal import format as journal_format
from tallybook.bookie.journal import superblock
from tallybook.bookie.ledgers import state as ledger_state
from tallybook.bookie.scrub import scrubber as scrub
from tallybook.bookie.storage.entry_log import format as entry_log_format
from tallybook.bookie.storage.entry_log import lengths as entry_log_lengths
from tallybook.bookie.storage.index import durable_mark as index_mark
from tallybook.bookie.storage.index import format as index_format
from tallybook.core import batch
from tallybook.metadata import codec
from tallybook.metadata.records import format as record_format
from tallybook.metadata.sqlite import schema as sqlite_schema
from tallybook.metadata.transactions import sink_record
from tallybook.metadata.zookeeper import layout
from tallybook.runtime.security import archive_keys
from tallybook.spark.ledgers import offset as stream_offset
from tallybook.spark.query import snapshot
from tallybook.spark.streams import offsets
from tallybook.stream import namespaces
from tallybook.stream.catalog import catalog, delivery_record, head_codec
from tallybook.stream.catalog import subscription_record as subscription
from tallybook.stream.records import envelope
from tallybook.wire.versions import SPOKEN

FORMATS = {
    "batch": batch.VERSION,
    "superblock of a journal": superblock.VERSION,
    "segment and block of a journal": journal_format.VERSION,
    "record of a journal": journal_format.NEWEST_KIND,
    "entry log": entry_log_format.VERSION,
    "lengths of entry logs": entry_log_lengths._VERSION,
    "row and state in the index": index_format.VERSION,
    "state of a ledger": ledger_state.NEWEST_VERSION,
    "mark of the index": index_mark._VERSION,
    "cookie": cookie.VERSION,
    "format file": directories.FORMAT_WITH_DIRECTORIES,
    "cookie of a place": places.DIRECTORY_VERSION,
    "limbo marker": limbo.VERSION,
    "note of the scrub": scrub.VERSION,
    "run file": record_format.FIRST,
    "ledger and live bookie": codec.FORMAT,
    "SQLite schema": sqlite_schema.FORMAT,
    "ZooKeeper layout": layout.FORMAT,
    "sink": sink_record.FORMAT,
    "place of the archive": url_record.FORMAT,
    "sealing of the archive": encryption_record.FORMAT,
    "sealed object": seal_format.VERSION,
    "keys of an archive": archive_keys.FORMAT,
    "leader, repair, offloader": record_format.FIRST,
    "archive object": schema.FORMAT,
    "manifest of the archive": manifest.FORMAT,
    "records of streams in the archive": stream_records.FORMAT,
    "name of a stream": catalog.FORMAT,
    "stream and chapter": head_codec.FORMAT,
    "namespace": namespaces.FORMAT,
    "subscription": subscription.FORMAT,
    "delivery": delivery_record.FORMAT,
    "envelope": envelope.VERSION,
    "Spark offset over ledgers": stream_offset.FORMAT,
    "Spark offset over streams": offsets.FORMAT,
    "snapshot": snapshot.FORMAT,
    "wire": SPOKEN.newest,
}

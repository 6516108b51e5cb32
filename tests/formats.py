"""Every format that is stored or said, with the newest version that is read and written here.

docs/upgrade.md has the list for people, and docs/corruption.md says what damage to each comes to. Tests hold both to
this one, and the newest fixture to having one of each.
"""

from tallybook.archive import location, manifest, schema, sealing
from tallybook.archive import records as stream_records
from tallybook.archive.objects import seal_format
from tallybook.bookie import cookie, directories, ledger_state, limbo, places, scrub
from tallybook.bookie.journal import format as journal_format
from tallybook.bookie.journal import records, superblock
from tallybook.bookie.storage import entry_log_format, entry_log_lengths, index_format, index_mark
from tallybook.core import batch
from tallybook.metadata import codec, record_format, sink_record
from tallybook.metadata.sqlite import schema as sqlite_schema
from tallybook.metadata.zookeeper import layout
from tallybook.runtime.security import archive_keys
from tallybook.runtime.wire_versions import SPOKEN
from tallybook.spark import snapshot, stream_offset
from tallybook.spark.records import offsets
from tallybook.stream import catalog, delivery_record, envelope, head_codec, namespaces
from tallybook.stream.subscription import record as subscription

FORMATS = {
    "batch": batch.VERSION,
    "superblock of a journal": superblock.VERSION,
    "segment and block of a journal": journal_format.VERSION,
    "record of a journal": records.NEWEST_KIND,
    "entry log": entry_log_format.VERSION,
    "lengths of entry logs": entry_log_lengths._VERSION,
    "row and state in the index": index_format.VERSION,
    "state of a ledger": ledger_state.NEWEST_VERSION,
    "mark of the index": index_mark._VERSION,
    "cookie": cookie.VERSION,
    "format file": directories.FORMAT_WITH_PLACES,
    "cookie of a place": places.PLACE_VERSION,
    "limbo marker": limbo.VERSION,
    "note of the scrub": scrub.VERSION,
    "run file": record_format.FIRST,
    "ledger and live bookie": codec.FORMAT,
    "SQLite schema": sqlite_schema.FORMAT,
    "ZooKeeper layout": layout.FORMAT,
    "sink": sink_record.FORMAT,
    "place of the archive": location.FORMAT,
    "sealing of the archive": sealing.FORMAT,
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

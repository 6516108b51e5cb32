"""Fuzz target: batches, as bookies receive them from clients and readers from bookies."""

from __future__ import annotations

from collections.abc import Iterator

from tallybook.archive.format.batch_rows import RowGroupBuilder, attributes_of, plain_values, rebuild_batch
from tallybook.core.batch import cut_entry, decode_header, encode_batch, entries, peek_ids, seal_batch, verify_batch
from tallybook.core.errors import EntryTooLarge, InvalidBatch

from ..harness import REFUSED, Target, attempt, same
from ..mutations import with_crc

TARGET = Target("batches", words=(b"TBAT", b"TBAT\x01\x00\x00\x00", b"\xff" * 8, b"\x00" * 8))

KEY = bytes(range(32))


def some_batches() -> Iterator[bytes]:
    """One entry, several, empty ones, with a digest, at the limits of ids."""
    yield encode_batch(7, 0, [b"hello"], lac=-1, ledger_length=5, written_at_us=1_700_000_000_000_000)
    yield encode_batch(7, 5, [b"a", b"", b"ccc"], lac=4, ledger_length=99, written_at_us=0)
    yield encode_batch(7, 5, [b"a", b"bb"], lac=3, ledger_length=3, written_at_us=-5, digest_key=KEY)
    yield encode_batch(2**63 - 1, 2**63 - 2, [b"", b""], lac=-1, ledger_length=2**63 - 1, written_at_us=2**63 - 1)


@TARGET.decoder(
    "core/batch.py:decode_header",
    "core/batch.py:peek_ids",
    "core/batch.py:verify_batch",
    "core/batch.py:_verify_digest",
    "core/batch.py:payload_slices",
    "core/batch.py:EntrySlice.verify",
    "core/batch.py:_sum_of_lengths",
    "core/batch.py:_table",
    "archive/format/batch_rows.py:rebuild_batch",
    "archive/format/batch_rows.py:RowGroupBuilder.add",
    "archive/format/batch_rows.py:PayloadBuffer.put",
    seeds=some_batches,
)
def batch(data: bytes) -> None:
    """A batch: its entries one by one and all at once, and a round trip through an archive."""
    for given in (data, with_crc(data, 60, (0, 60), (64, None))):
        attempt(InvalidBatch, decode_header, given)
        attempt(InvalidBatch, peek_ids, memoryview(given))
        attempt(InvalidBatch, verify_batch, given, KEY)
        header = attempt(InvalidBatch, verify_batch, given)
        if header is REFUSED:
            continue
        found = entries(given, header)
        same(len(found), header.entry_count, "number of entries")
        cut = [cut_entry(given, header, entry.entry_id) for entry in found]
        attempt(InvalidBatch, cut_entry, given, header, header.last_entry_id + 1)
        facts = attributes_of(given, header)
        payloads = [entry.payload for entry in found]
        if REFUSED in [attempt(InvalidBatch, each.verify) for each in cut]:
            # Its checksums of entries are no writer's. Taking all of them does not verify these.
            same(
                attempt((InvalidBatch, EntryTooLarge), rebuild_batch, header.ledger_id, facts, payloads), REFUSED, "it"
            )
            continue
        sealed = seal_batch(
            header.ledger_id,
            header.first_entry_id,
            payloads,
            lac=header.lac,
            ledger_length=header.ledger_length,
            written_at_us=header.written_at_us,
            digest=facts.digest,
        )
        same(sealed, given, "a batch")
        same(rebuild_batch(header.ledger_id, facts, payloads), given, "a batch that was archived")
        rows = RowGroupBuilder()
        rows.add(given, header)
        same(rows.table()["payload"].to_pylist(), payloads, "payloads as a column")


def some_pages() -> Iterator[bytes]:
    """A count, and values."""
    for values in ([b""], [b"a", b"bb"], [b"x" * 70]):
        yield len(values).to_bytes(2, "little") + b"".join(len(each).to_bytes(4, "little") + each for each in values)


@TARGET.decoder("archive/format/batch_rows.py:plain_values", seeds=some_pages)
def page_values(data: bytes) -> None:
    """The values of a page of an archive object."""
    count, page = int.from_bytes(data[:2], "little"), data[2:]
    found = attempt(InvalidBatch, plain_values, memoryview(page), count)
    if found is not REFUSED:
        same(b"".join(len(each).to_bytes(4, "little") + each for each in found), page, "a page")

"""The archive oracle of the simulation: it detects each planted violation, and reports no others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tallybook.archive.encoder import EncoderOptions
from tallybook.archive.format.schema import object_key
from tallybook.archive.object_writer import Batches, LedgerSource, read_back, receipts, write_object
from tallybook.core.batch import decode_header, encode_batch
from tallybook.core.quorum import Quorum
from tallybook.metadata.codec import encode_ledger
from tallybook.metadata.ledger.archived import ArchiveAttempt, begin_archiving, commit_archived, release_copies
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.runtime.tasks import InlineWorkers
from tallybook.sim.checks.archive_oracle import ArchiveOracle
from tallybook.sim.cluster.bucket import Bucket, BucketFaults
from tallybook.sim.coverage import CoverageMarks
from tallybook.sim.deterministic import World
from tallybook.sim.oracle.oracle import Oracle
from tallybook.sim.workload.history import History

from ..simulated import Parts, on_stage

PAYLOADS = [b"0/0/.", b"0/1/..", b"0/2/"]
OBJECT_ID = "00000000-0000-4000-8000-000000000007"
KEY = object_key(OBJECT_ID, [0])
CLOSED = LedgerMetadata(
    0,
    Quorum(1, 1, 1),
    (Fragment(0, ("b0",)),),
    "creator",
    0,
    state=LedgerState.CLOSED,
    last_entry_id=len(PAYLOADS) - 1,
    length=sum(map(len, PAYLOADS)),
)


class Archive:
    """A closed ledger with confirmed entries, and its metadata."""

    def __init__(self, world: World) -> None:
        self.oracle = Oracle(CoverageMarks(), world.note, lambda: 0)
        history = History()
        for entry_id, payload in enumerate(PAYLOADS):
            history.append("writer", 0, payload).ok(entry_id=entry_id)
        loop = world.loop
        self.bucket = Bucket(world.rng, BucketFaults(), loop.call_later, world.note, self.oracle.mark)
        self.archivist = ArchiveOracle(self.oracle, history, self.bucket)
        self.metadata: LedgerMetadata | None = None
        self.becomes(CLOSED)

    def becomes(self, after: LedgerMetadata | None) -> None:
        before, self.metadata = self.metadata, after
        self.oracle.changed(0, before, after)
        self.archivist.changed(before, after)

    def announce(self) -> None:
        attempt = ArchiveAttempt(OBJECT_ID, 0)
        self.becomes(begin_archiving(self.metadata, attempt, from_object=None, ttl_ms=1000))

    async def write(self, payloads: list[bytes] = PAYLOADS) -> LedgerMetadata:
        """Put an object into the bucket; return the metadata after its commit."""

        async def batches():
            batch = encode_batch(0, 0, payloads, lac=-1, ledger_length=sum(map(len, payloads)), written_at_us=0)
            found: Batches = [(decode_header(batch), batch)]
            yield found

        source = LedgerSource(0, encode_ledger(CLOSED), batches)
        store, workers = self.bucket.store, InlineWorkers()
        encoded = await write_object(
            store, workers, [source], object_id=OBJECT_ID, key=KEY, created_at_ms=0, options=EncoderOptions()
        )
        found = await read_back(store, workers, KEY, encoded)
        receipt = receipts(encoded, found, KEY, 0)[0]
        # For any object: the metadata accept receipts of whole ledgers only.
        whole = replace(receipt, entries=len(PAYLOADS), payload_bytes=CLOSED.length)
        return commit_archived(self.metadata, whole)

    @property
    def found(self) -> list[str]:
        return [invariant for invariant, _ in self.oracle.violations]


@asynccontextmanager
async def one_archive(world: World) -> AsyncIterator[Parts]:
    yield {"stage": Archive(world)}


archive = on_stage(one_archive, seed=7)


@archive
async def test_a_ledger_on_its_way_to_the_archive_and_out_of_it_breaks_nothing(stage: Archive) -> None:
    stage.announce()
    stage.becomes(await stage.write())
    stage.becomes(release_copies(stage.metadata, OBJECT_ID))
    assert stage.oracle.check_gone("b0", 0)
    stage.becomes(None)
    await stage.bucket.store.delete(KEY)
    stage.archivist.removed(KEY)
    assert stage.found == []


@archive
async def test_a_receipt_of_an_object_that_is_not_there_is_detected(stage: Archive) -> None:
    stage.announce()
    committed = await stage.write()
    await stage.bucket.store.delete(KEY)
    stage.becomes(committed)
    assert stage.found == ["I17"]


@pytest.mark.parametrize(
    "torn", [lambda data: data[:-1], lambda data: data[:8] + b"?" + data[9:]], ids=["shorter", "changed"]
)
@archive
async def test_a_receipt_of_an_object_with_other_bytes_is_detected(
    stage: Archive, *, torn: Callable[[bytes], bytes]
) -> None:
    stage.announce()
    committed = await stage.write()
    await stage.bucket.store.put(KEY, torn(stage.bucket.peek(KEY)))
    stage.becomes(committed)
    assert stage.found == ["I17"]


@pytest.mark.parametrize(
    "payloads",
    [PAYLOADS[:2], [*PAYLOADS, b"0/3/"], [b"0/0/.", b"0/2/..", b"0/1/"], [b"0/0/", b"0/1/..", b"0/2/"]],
    ids=["too few", "too many", "in another order", "shorter"],
)
@archive
async def test_an_object_with_other_entries_than_were_confirmed_is_detected(
    stage: Archive, *, payloads: list[bytes]
) -> None:
    stage.announce()
    stage.becomes(await stage.write(payloads))
    assert stage.found == ["I17"]


@archive
async def test_copies_that_are_released_when_the_archive_has_other_bytes_are_detected(stage: Archive) -> None:
    stage.announce()
    committed = await stage.write()
    stage.becomes(committed)
    stage.archivist.removed(KEY)
    await stage.bucket.store.put(KEY, b"other bytes")
    stage.becomes(release_copies(committed, OBJECT_ID))
    assert stage.found == ["I17", "I16"]


@archive
async def test_copies_that_are_needed_again_are_detected(stage: Archive) -> None:
    stage.announce()
    stage.becomes(await stage.write())
    stage.becomes(release_copies(stage.metadata, OBJECT_ID))
    stage.becomes(replace(stage.metadata, copies_released=False))
    assert stage.found == ["I3"]


@archive
async def test_an_object_that_goes_while_a_ledger_is_in_it_or_on_its_way_into_it_is_detected(stage: Archive) -> None:
    stage.archivist.removed(KEY)
    assert stage.found == [], "no ledger is in it yet"
    stage.announce()
    stage.archivist.removed(KEY)
    assert stage.found == ["I17"]
    stage.becomes(await stage.write())
    stage.archivist.removed(KEY)
    assert stage.found == ["I17", "I17"]


@archive
async def test_a_bookie_that_drops_an_archived_ledger_before_its_release_is_detected(stage: Archive) -> None:
    stage.announce()
    stage.becomes(await stage.write())
    assert not stage.oracle.check_gone("b0", 0)
    assert stage.found == ["I16"]

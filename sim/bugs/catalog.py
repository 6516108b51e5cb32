"""The planted bugs: what a useful simulation must detect.

Each bug replaces one or a few functions of the product at run time. ``planted(name)`` plants one inside a block;
``python -m tallybook.sim bugs`` searches seeds until each is detected. If no seed detects a bug, the simulation has to
be improved.
"""

# A wrong function has the arguments of the correct one, and does not use all of them.
# ruff: noqa: ARG001

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from tallybook.bookie.ledgers.state import Ledger
from tallybook.bookie.process.registration import BookieRegistration
from tallybook.bookie.read.read_path import ReadPath
from tallybook.bookie.storage.checkpoint import Checkpointer
from tallybook.bookie.storage.flushed_batches import FlushedBatches
from tallybook.bookie.write.add_path import AddPath
from tallybook.bookie.write.fencing import LedgerFencing
from tallybook.bookie.write.pending_acks import PendingAcks
from tallybook.client import client
from tallybook.client.reader import fetcher
from tallybook.client.recovery import driver as recovery_driver
from tallybook.client.recovery import window as recovery_window
from tallybook.client.recovery.machine import RecoveryMachine
from tallybook.client.writer import appends
from tallybook.client.writer.actions import ChangeEnsemble
from tallybook.client.writer.batch_limits import BatchLimits
from tallybook.client.writer.bookie_link import BookieLink
from tallybook.client.writer.ensemble_change import EnsembleChanger
from tallybook.client.writer.machine import WriterMachine
from tallybook.core.batch import decode_header
from tallybook.core.errors import (
    OK_CODE,
    Conflict,
    DiskFailed,
    EntryAbsent,
    EntryCorrupt,
    EntryUnknown,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    TallybookError,
)
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import MAX_BATCH_BYTES
from tallybook.core.quorum import Quorum
from tallybook.metadata import ledger_update as update
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.store import WriteResult

from ..cluster.metadata import SimStore
from ..deterministic import SimDisk
from ..deterministic.file import SimFile
from .archive import ARCHIVE_BUGS
from .bug import Bug
from .metadata import METADATA_BUGS
from .repair import REPAIR_BUGS
from .storage import STORAGE_BUGS
from .streams import STREAM_BUGS


def _ack_before_fsync(right: Any) -> Any:
    def append(self: PendingAcks, record: Any, ledger: Any, add: Any = None) -> None:
        right(self, record, ledger)
        if add is not None:
            asyncio.get_running_loop().call_soon(self.answer, add)

    return append


def _fence_in_memory(_right: Any) -> Any:
    async def fence_durably(self: LedgerFencing, ledger: Any, key: bytes) -> None:
        await self._verifiers.authorize(ledger, key)
        ledger.set_fenced()

    return fence_durably


def _fence_without_effect(right: Any) -> Any:
    def settle(self: Ledger) -> None:
        right(self)
        self.refuses_add = OK_CODE

    return settle


def _mark_before_flush(right: Any) -> Any:
    async def checkpoint(self: Checkpointer) -> None:
        marks = self._journals.durable_marks()
        if marks > self._marks:
            await self._journals.trim(marks)
            self._marks = marks
        await right(self)

    return checkpoint


def _mark_taken_late(_right: Any) -> Any:
    async def checkpoint(self: Checkpointer) -> None:
        self._wanted.clear()
        waiters, self._waiters = self._waiters, []
        self._flush.begin()
        await self._flush.finish(wait_for_space=True)
        marks = self._journals.durable_marks()
        if marks > self._marks:
            await self._journals.trim(marks)
            self._marks = marks
        self.checkpoints += 1
        for waiter in waiters:
            waiter.set_result(None)

    return checkpoint


def _nothing_synced(_right: Any) -> Any:
    async def sync_directory(self: SimDisk, path: str) -> None:
        """Report success without syncing."""

    return sync_directory


def _failed_sync_retried(right: Any) -> Any:
    async def sync(self: SimFile) -> None:
        try:
            await right(self)
        except DiskFailed:
            await right(self)

    return sync


def _read_without_fence(_right: Any) -> Any:
    async def recovery_read(self: ReadPath, ledger_id: int, entry_id: int, key: bytes, max_bytes: int = 0) -> Any:
        return await self.read(ledger_id, entry_id, MAX_ID if max_bytes else entry_id, max(max_bytes, 1))

    return recovery_read


def _absent_for_corrupt(right: Any) -> Any:
    async def read(self: FlushedBatches, ledger_id: int, first: int, *rest: int, **how: bool) -> Any:
        try:
            return await right(self, ledger_id, first, *rest, **how)
        except (EntryCorrupt, EntryUnknown):
            return [] if rest else None

    return read


def _absent_in_limbo(_right: Any) -> Any:
    def nothing(self: ReadPath, ledger: Any, entry_id: int) -> Any:
        raise EntryAbsent(f"entry {entry_id} of ledger {ledger.ledger_id} is not here")

    return nothing


def _recover_from_0(right: Any) -> Any:
    def read(self: RecoveryMachine) -> Any:
        if not self._reads and self._header is None:
            self.entry_id = 0
        return right(self)

    return read


def _holder_of_any_entry(right: Any) -> Any:
    def holder(self: RecoveryMachine, entry_id: int, position: int) -> str:
        bookie: str = right(self, max(entry_id, self.metadata.last_fragment.first_entry_id), position)
        return bookie

    return holder


def _lac_of_unacked(right: Any) -> Any:
    def encode_batch(ledger_id: int, first: int, payloads: Any, **facts: Any) -> bytes:
        facts["lac"] = first - 1
        encoded: bytes = right(ledger_id, first, payloads, **facts)
        return encoded

    return encode_batch


def _ack_out_of_order(right: Any) -> Any:
    def confirm_head(self: WriterMachine, actions: Any) -> None:
        complete = {at: batch for at, batch in self._unconfirmed.items() if len(batch.acked) >= self.quorum.ack_quorum}
        rest = {at: batch for at, batch in self._unconfirmed.items() if at not in complete}
        self._unconfirmed.clear()
        self._unconfirmed.update({**complete, **rest})
        right(self, actions)

    return confirm_head


def _confirm_during_change(right: Any) -> Any:
    def confirm_head(self: WriterMachine, actions: Any) -> None:
        change, self._change = self._change, None
        right(self, actions)
        self._change = change

    return confirm_head


def _replaced_acks_kept(right: Any) -> Any:
    def changed(self: WriterMachine, now: float) -> Any:
        kept = {first: set(batch.acked) for first, batch in self._unconfirmed.items()}
        actions = right(self, now)
        for first, batch in self._unconfirmed.items():
            batch.acked |= kept[first]
        self._confirm_head(actions)
        return actions

    return changed


def _local_change(_right: Any) -> Any:
    async def write(self: EnsembleChanger, change: ChangeEnsemble) -> None:
        self._perform(self._machine.changed(self._attention.now()))

    return write


def _one_entry_further(right: Any) -> Any:
    def bookies_of(self: LedgerMetadata, entry_id: int) -> tuple[str, ...]:
        found: tuple[str, ...] = right(self, entry_id + 1)
        return found

    return bookies_of


def _one_absent_too_few(_right: Any) -> Any:
    def absent(self: Quorum, positions: Any, entry_id: int) -> bool:
        count: int = sum(at in positions for at in self.write_set(entry_id))
        return count >= max(1, int(self.decisive) - 1)

    return absent


def _silence_is_absence(right: Any) -> Any:
    def read_failed(self: RecoveryMachine, position: int, entry_id: int, error: TallybookError) -> Any:
        return right(self, position, entry_id, EntryAbsent("no answer"))

    return read_failed


def _nothing_written_back(right: Any) -> Any:
    def take(self: RecoveryMachine, header: Any, batch: Any) -> Any:
        for add in right(self, header, batch):
            self._window.answer(add.entry_id, add.position, None)
        self._drop_settled()
        return []

    return take


def _waits_for_all(_right: Any) -> Any:
    def after_answer(self: RecoveryMachine) -> Any:
        return [] if self._window.unanswered else self._settle()

    return after_answer


def _no_compare(right: Any) -> Any:
    async def update_ledger(self: SimStore, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        known = self._metadata.versions[metadata.ledger_id]
        result: WriteResult = await right(self, metadata, known[-1].version)
        return result

    return update_ledger


def _unknown_taken_for_not_done(right: Any) -> Any:
    async def update(self: LedgerUpdater, *arguments: Any, **named: Any) -> Any:
        try:
            return await right(self, *arguments, **named)
        except MetadataOutcomeUnknown as error:
            raise MetadataUnavailable(error.message) from error

    return update


def _reads_of_replacements(_right: Any) -> Any:
    async def read(self: recovery_driver._RecoveryRun, action: Any) -> None:
        original, self._bookies = self._bookies, self._machine._fragments[-1].bookies  # noqa: SLF001 - that is the bug
        try:
            await _READ(self, action)
        finally:
            self._bookies = original

    return read


_READ: Final = recovery_driver._RecoveryRun._read  # noqa: SLF001 - the right one


def _fragment_starts_late(right: Any) -> Any:
    def begin_change(self: WriterMachine, replacements: Any, now: float) -> Any:
        lac = self.lac
        if self._unconfirmed:
            self.lac = next(reversed(self._unconfirmed.values())).last
        try:
            return right(self, replacements, now)
        finally:
            self.lac = lac

    return begin_change


def _loss_unnoticed(_right: Any) -> Any:
    async def until_lost_or_changed(self: BookieRegistration, registration: Any) -> None:
        await asyncio.Event().wait()

    return until_lost_or_changed


def _any_bytes_held(right: Any) -> Any:
    def decide(self: AddPath, *arguments: Any) -> bool:
        try:
            found: bool = right(self, *arguments)
        except Conflict:
            return True
        return found

    return decide


def _unverified(_right: Any) -> Any:
    def verify_batch(batch: Any, digest_key: Any = None) -> Any:
        return decode_header(batch)

    return verify_batch


def _any_life(_right: Any) -> Any:
    def identified(self: WriterMachine, position: int, life: Any) -> list[Any]:
        return []

    return identified


def _forced_immediately(_right: Any) -> Any:
    async def force(self: AddPath, ledger_id: int, key: bytes) -> None:
        """Report success without waiting for the journal."""

    return force


def _adopted_again(right: Any) -> Any:
    def adopt(metadata: LedgerMetadata, writer_token: str) -> Any:
        return right(replace(metadata, writer_token=None), writer_token=writer_token)

    return adopt


def _any_succession(_right: Any) -> Any:
    def check_succession(before: LedgerMetadata, after: LedgerMetadata) -> None:
        """Accept any successor."""

    return check_succession


def _one_page_is_all(_right: Any) -> Any:
    async def list_ledgers(self: client.Client) -> Any:
        for ledger_id in (await self.world.store.list_ledgers()).ledger_ids:
            yield ledger_id

    return list_ledgers


def _any_key(_right: Any) -> Any:
    def fits(self: Ledger, key: bytes) -> bool:
        return True

    return fits


def _any_size_fits(_right: Any) -> Any:
    def limit(self: BatchLimits, bookie_id: str) -> int:
        return MAX_BATCH_BYTES

    return limit


def _owed_from_the_start(_right: Any) -> Any:
    def owed_since(self: BookieLink, first: int) -> None:
        """Ignore when the batch was sent: count from the moment it was handed over."""

    return owed_since


BUGS: Final[dict[str, Bug]] = {
    "ack before fsync": Bug(
        "a bookie acks adds before they are durable",
        "I1 I2 I10 I11 I12",
        [(PendingAcks, "append", _ack_before_fsync)],
    ),
    "fence kept in memory only": Bug(
        "a bookie acks a fence before it is durable",
        "I2 I5 I13",
        [(LedgerFencing, "fence_durably", _fence_in_memory)],
    ),
    "fence without effect": Bug(
        "a fenced bookie still accepts adds of the writer",
        "I2 I5",
        [(Ledger, "_settle", _fence_without_effect)],
    ),
    "mark before index flush": Bug(
        "the journal's trim mark moves before entry log and index are flushed",
        "I1 I2 I10 I11 I12 I13 I14",
        [(Checkpointer, "_checkpoint", _mark_before_flush)],
    ),
    "journal trimmed early": Bug(
        "the journal's trim mark is taken after the flush began, not before",
        "I1 I2 I10 I11 I12 I13 I14",
        [(Checkpointer, "_checkpoint", _mark_taken_late)],
    ),
    "directory fsync skipped": Bug(
        "new files are not made durable in their directory",
        "I1 I2 I10 I11 I12 I13 boot",
        [(SimDisk, "sync_directory", _nothing_synced)],
    ),
    "failed fsync retried": Bug(
        "a failed sync is retried, and its success is believed",
        "I1 I2 I10 I11 I12 I13 boot",
        [(SimFile, "sync", _failed_sync_retried)],
    ),
    "no fence on recovery reads": Bug(
        "a read by a recovery does not fence",
        "I1 I2 I5 I13",
        [(ReadPath, "recovery_read", _read_without_fence)],
    ),
    "ABSENT for corrupt": Bug(
        "a bookie answers ABSENT for a damaged copy",
        "I2 I11",
        [(FlushedBatches, each, _absent_for_corrupt) for each in ("read_run", "read_entry")],
    ),
    "ABSENT in limbo": Bug(
        "a bookie in limbo answers ABSENT for entries that it may have lost",
        "I2 I11",
        [(ReadPath, "_not_found", _absent_in_limbo)],
    ),
    "recover from 0": Bug(
        "a recovery starts at entry 0, below the last fragment",
        "I1 I2 I10 I26 L1",
        [(RecoveryMachine, "_read", _recover_from_0), (RecoveryMachine, "_holder", _holder_of_any_entry)],
    ),
    "LAC from unacked": Bug(
        "a batch carries a LAC of entries that are not confirmed",
        "I6",
        [(appends, "encode_batch", _lac_of_unacked)],
    ),
    "ack out of order": Bug(
        "entries are confirmed past a gap",
        "I1 I2 I7",
        [(WriterMachine, "_confirm_head", _ack_out_of_order)],
    ),
    "confirm during an ensemble change": Bug(
        "entries are confirmed while an ensemble change is being written",
        "I1 I2 I10",
        [(WriterMachine, "_confirm_head", _confirm_during_change)],
    ),
    "acks of a replaced bookie kept": Bug(
        "acks of a replaced bookie count for its replacement",
        "I1 I2 I10",
        [(WriterMachine, "changed", _replaced_acks_kept)],
    ),
    "local-only ensemble change": Bug(
        "an ensemble change is not written to the metadata",
        "I1 I2 I10",
        [(EnsembleChanger, "_write", _local_change)],
    ),
    "off-by-one in write set": Bug(
        "an entry is read from the write set of the next entry",
        "I1 I2 I10",
        [(LedgerMetadata, "bookies_of", _one_entry_further)],
    ),
    "ABSENT count off by one": Bug(
        "a recovery ends on one ABSENT too few",
        "I1 I2 I5",
        [(Quorum, "absent", _one_absent_too_few)],
    ),
    "silence taken for ABSENT": Bug(
        "a recovery counts a missing answer as ABSENT",
        "I1 I2 I5",
        [(RecoveryMachine, "read_failed", _silence_is_absence)],
    ),
    "recovery writes nothing back": Bug(
        "a recovery does not write back the batches that it reads",
        "I1 I2 I6 I10",
        [(RecoveryMachine, "_take", _nothing_written_back)],
    ),
    "recovery waits for a slow member with each batch": Bug(
        "a recovery writes back one batch at a time and waits for all members each time",
        "L8",
        [
            (recovery_window, "WINDOW_BATCHES", lambda _right: 1),
            (RecoveryMachine, "_after_answer", _waits_for_all),
        ],
    ),
    "close without compare-and-set": Bug(
        "a metadata update ignores the expected version",
        "I1 I2 I3 I4",
        [(SimStore, "update_ledger", _no_compare)],
    ),
    "unknown outcome taken for not done": Bug(
        "an update with unknown outcome is reported as not done",
        "I21",
        [(LedgerUpdater, name, _unknown_taken_for_not_done) for name in ("update", "create")],
    ),
    "reads planned on the local replacement": Bug(
        "a recovery whose window is one batch reads from replacement bookies that it has just chosen itself",
        "I1 I2 I5 I27",
        [
            # In an ordinary window, it has read to the end before it chooses one.
            (recovery_window, "WINDOW_BATCHES", lambda _right: 1),
            (recovery_driver._RecoveryRun, "_read", _reads_of_replacements),  # noqa: SLF001
        ],
    ),
    "new fragment starts after the unconfirmed": Bug(
        "a new fragment starts above the last add confirmed + 1",
        "I1 I2 I10",
        [(WriterMachine, "begin_change", _fragment_starts_late)],
    ),
    "lost registration not noticed": Bug(
        "a bookie that lost its registration does not register again",
        "L0",
        [(BookieRegistration, "_until_lost_or_changed", _loss_unnoticed)],
    ),
    "idempotent add ignores the body": Bug(
        "a bookie acks other bytes for an entry that it already holds",
        "I8",
        [(AddPath, "_decide", _any_bytes_held)],
    ),
    "reader believes without a digest": Bug(
        "a reader does not verify digests",
        "I1 I8 I9",
        [(fetcher, "verify_batch", _unverified)],
    ),
    "another life taken for the same": Bug(
        "acks of a bookie still count after its directory was replaced",
        "I1 I2 I10",
        [(WriterMachine, "identified", _any_life)],
    ),
    "force does not wait": Bug(
        "a force is acked before all entries are durable",
        "I1 I2 I10 I11 I12",
        [(AddPath, "force", _forced_immediately)],
    ),
    "adopted a second time": Bug(
        "a ledger that has a writer can be adopted by another one",
        "I22",
        [(client, "adopt", _adopted_again), (update, "check_succession", _any_succession)],
    ),
    "cut-off listing taken for whole": Bug(
        "an incomplete page of a listing is taken for the last one",
        "I1",
        [(client.Client, "list_ledgers", _one_page_is_all)],
    ),
    "any key fits": Bug(
        "a bookie does not check the ledger's key",
        "I23",
        [(Ledger, "fits", _any_key)],
    ),
    "what a bookie takes not kept to": Bug(
        "a writer ignores the maximum batch sizes of its bookies",
        "I24",
        [(BatchLimits, "limit", _any_size_fits)],
    ),
    "silence of what was not sent": Bug(
        "a bookie counts as silent for batches that still wait in the client",
        "L10",
        [(BookieLink, "owed_since", _owed_from_the_start)],
    ),
    **STORAGE_BUGS,
    **ARCHIVE_BUGS,
    **REPAIR_BUGS,
    **METADATA_BUGS,
    **STREAM_BUGS,
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug inside the block."""
    right = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in BUGS[name].changes]
    for owner, attribute, wrong in BUGS[name].changes:
        setattr(owner, attribute, wrong(getattr(owner, attribute)))
    try:
        yield
    finally:
        for owner, attribute, function in right:
            setattr(owner, attribute, function)

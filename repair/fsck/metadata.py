"""Checks the metadata: ledgers, other records, cookies of bookies, and whether the store is an older copy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from tallybook.bookie.directories.cookie import decode_cookie
from tallybook.core.errors import DamagedFile, NewerFormat, NoSuchLedger
from tallybook.metadata.records.kinds import LedgerOwner, RecordKind
from tallybook.metadata.records.restored_store import RECORD, REMEDY, UNREADABLE, unapproved_restore
from tallybook.metadata.store import Membership, MetadataRecord, MetadataStore

from .finding import FsckFinding, RemoveRecord, RepairStep, cut_off

PAGE: Final = 1_000
CONCURRENT_READS: Final = 32
RESTORE: Final = "restore it from a copy of the metadata"
NEWER: Final = "leave it as it is, and run fsck of that version"


async def check_restored_store(store: MetadataStore, step: RepairStep) -> AsyncIterator[FsckFinding]:
    """Report that the store was restored from an older copy, unless an operator has approved that.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    step()
    try:
        found = await unapproved_restore(store)
    except NewerFormat:
        return  # reported by ``check_records``
    if found is not None and found is not UNREADABLE:  # likewise
        yield FsckFinding(f"{found.description}; bookies drop nothing", f"record {RECORD}", "bad", REMEDY)


async def check_ledgers(
    store: MetadataStore, owners: Sequence[LedgerOwner], step: RepairStep
) -> AsyncIterator[FsckFinding]:
    """Check that every ledger's metadata can be decoded, that no id can be assigned twice, and that its owner names it.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    after = -1
    while True:
        page = await store.list_ledgers(after, PAGE)
        for at in range(0, len(page.ledger_ids), CONCURRENT_READS):
            chunk = page.ledger_ids[at : at + CONCURRENT_READS]
            for found in await asyncio.gather(*(_ledger(store, owners, ledger_id) for ledger_id in chunk)):
                step()
                if found is not None:
                    yield found
        if page.ledger_ids:
            # Read after the listing: the ids of all listed ledgers were assigned before.
            counter = await store.id_counter()
            for ledger_id in page.ledger_ids:
                if ledger_id >= counter:
                    yield FsckFinding(
                        f"its id is not below the counter of ids, {counter}",
                        f"ledger {ledger_id}",
                        "bad",
                        "the counter was set back, or restored from an older copy: a new ledger may get the same id; "
                        "raise the counter above all ids before a ledger is created",
                    )
        if page.complete:
            return
        if not page.ledger_ids:
            yield cut_off("metadata")
            return
        after = page.ledger_ids[-1]


async def _ledger(store: MetadataStore, owners: Sequence[LedgerOwner], ledger_id: int) -> FsckFinding | None:
    where = f"ledger {ledger_id}"
    try:
        custom = (await store.read_ledger(ledger_id)).value.custom
        for owner in owners:
            value = custom.get(owner.key)
            if value is None or await owner.is_named(store, ledger_id, value):
                continue
            # The ledger may have been deleted just now; or one of the reads above was stale.
            await store.read_ledger(ledger_id, linearizable=True)
            return FsckFinding(
                f"it was made for {owner.what} {value.decode(errors='replace')}, which does not name it",
                where,
                "bad",
                "the process that created it was interrupted: no reader uses it, and it takes space until it is "
                f"deleted ('tallybook ledger rm {ledger_id}')",
            )
    except NoSuchLedger:
        return None
    except NewerFormat as error:
        return FsckFinding(error.message, where, "note", NEWER)
    except DamagedFile as error:
        return FsckFinding(f"its metadata cannot be decoded: {error.message}", where, "bad", RESTORE)
    return None


async def check_records(
    store: MetadataStore, kinds: Sequence[RecordKind], step: RepairStep
) -> AsyncIterator[FsckFinding]:
    """Check that every record is of a known kind, can be decoded, and names only ledgers that exist.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    after = ""
    while True:
        page = await store.list_records("", after, PAGE)
        for name in page.names:
            async for found in _record(store, kinds, name):
                yield found
            step()
        if page.complete:
            return
        if not page.names:
            yield cut_off("metadata")
            return
        after = page.names[-1]


async def _record(store: MetadataStore, kinds: Sequence[RecordKind], name: str) -> AsyncIterator[FsckFinding]:
    kind = next((each for each in kinds if name.startswith(each.prefix)), None)
    if kind is None:
        yield FsckFinding("a record of no known kind", name, "note", "a newer Tallybook may have written it: leave it")
        return
    known: MetadataRecord | None = None
    while (record := await store.read_record(name, linearizable=True)) is not None:
        problems = [found async for found in _problems(store, kind, name, record)]
        if not problems or (known is not None and known.version == record.version):
            for found in problems:
                yield found
            return
        # Its writer may have deleted a ledger meanwhile: report a problem only if the same version has it twice.
        known = record


async def _problems(
    store: MetadataStore, kind: RecordKind, name: str, record: MetadataRecord
) -> AsyncIterator[FsckFinding]:
    try:
        async for each in kind.understand(store, name, record.value):
            if isinstance(each, str):
                yield FsckFinding(each, name, "bad", kind.remedy)
            elif not await _exists(store, each):
                yield FsckFinding(
                    f"{kind.what} names ledger {each}, which does not exist",
                    name,
                    "lost",
                    "the ledger was deleted by itself: readers get an error for the gap; only an earlier copy of the "
                    "metadata can bring it back",
                )
    except NewerFormat as error:
        yield FsckFinding(error.message, name, "note", NEWER)
    except DamagedFile as error:
        fix = RemoveRecord(name, record.version) if kind.removable else None
        yield FsckFinding(f"{kind.what} cannot be decoded: {error.message}", name, "bad", kind.remedy, fix)


async def _exists(store: MetadataStore, ledger_id: int) -> bool:
    try:
        await store.read_ledger(ledger_id, linearizable=True)
    except NoSuchLedger:
        return False
    except (DamagedFile, NewerFormat):
        return True  # reported by ``check_ledgers``
    return True


async def check_cookies(store: MetadataStore, membership: Membership, step: RepairStep) -> AsyncIterator[FsckFinding]:
    """Check that every registered bookie has the cookie of the directory that it is registered with.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    for name, info in (await membership.bookies()).items():
        step()
        cookie = await store.read_cookie(name)
        if cookie is None:
            yield FsckFinding(
                "it is registered, and has no cookie in the metadata",
                f"bookie {name}",
                "bad",
                "its cookie was removed while it ran, and it cannot start again without it; drain it, or restore the "
                "cookie from its data directory",
            )
            continue
        try:
            directory_uuid = decode_cookie(cookie, f"the cookie of {name}").directory_uuid
        except NewerFormat as error:
            yield FsckFinding(error.message, f"bookie {name}", "note", NEWER)
            continue
        except DamagedFile as error:
            yield FsckFinding(f"its cookie cannot be decoded: {error.message}", f"bookie {name}", "bad", RESTORE)
            continue
        if directory_uuid != info.incarnation.directory_uuid:
            current = (await membership.bookies()).get(name)
            if current is not None and current.incarnation.directory_uuid != directory_uuid:
                yield FsckFinding(
                    f"it runs with directory {info.incarnation.directory_uuid}, and its cookie names {directory_uuid}",
                    f"bookie {name}",
                    "bad",
                    "its id was given to another directory while it ran: stop it",
                )

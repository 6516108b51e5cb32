"""The metadata part of a check of everything: ledgers, records beside them, cookies of bookies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from tallybook.bookie.cookie import decode_cookie
from tallybook.core.errors import DamagedFile, NewerFormat, NoSuchLedger
from tallybook.metadata.store import Membership, MetadataStore, Record

from .fsck_finding import Finding, RemoveRecord, Step
from .fsck_records import LedgerOwner, RecordKind

PAGE: Final = 1_000
CONCURRENT_READS: Final = 32
RESTORE: Final = "restore it from a copy of the metadata"
NEWER: Final = "leave it as it is, and look again with that version"
CUT_OFF: Final = Finding("a listing was cut off", "metadata", "bad", "the rest was not looked at: run fsck again")


async def check_ledgers(store: MetadataStore, owners: Sequence[LedgerOwner], step: Step) -> AsyncIterator[Finding]:
    """Every ledger's metadata can be decoded, no id can be given out twice, and who it was made for names it.

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
            # Read after the listing: all that are listed were given out before.
            counter = await store.id_counter()
            for ledger_id in page.ledger_ids:
                if ledger_id >= counter:
                    yield Finding(
                        f"its id is not below the counter of ids, {counter}",
                        f"ledger {ledger_id}",
                        "bad",
                        "the counter was set back, or restored from an older copy: new ledgers may meet its id; raise "
                        "the counter above all ids before anything is created",
                    )
        if page.complete:
            return
        if not page.ledger_ids:
            yield CUT_OFF
            return
        after = page.ledger_ids[-1]


async def _ledger(store: MetadataStore, owners: Sequence[LedgerOwner], ledger_id: int) -> Finding | None:
    where = f"ledger {ledger_id}"
    try:
        custom = (await store.read_ledger(ledger_id)).value.custom
        for owner in owners:
            value = custom.get(owner.key)
            if value is None or await owner.is_named(store, ledger_id, value):
                continue
            # It may have been deleted just now, and struck off; or what was read above was old.
            await store.read_ledger(ledger_id, linearizable=True)
            return Finding(
                f"it was made for {owner.what} {value.decode(errors='replace')}, which does not name it",
                where,
                "bad",
                "its maker was cut off, or slept for too long: nobody reads it, and it takes room until it is deleted "
                f"('tallybook ledger rm {ledger_id}')",
            )
    except NoSuchLedger:
        return None
    except NewerFormat as error:
        return Finding(error.message, where, "note", NEWER)
    except DamagedFile as error:
        return Finding(f"its metadata cannot be understood: {error.message}", where, "bad", RESTORE)
    return None


async def check_records(store: MetadataStore, kinds: Sequence[RecordKind], step: Step) -> AsyncIterator[Finding]:
    """Every record is of a kind that is known, can be decoded, and names only ledgers that there are.

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
            yield CUT_OFF
            return
        after = page.names[-1]


async def _record(store: MetadataStore, kinds: Sequence[RecordKind], name: str) -> AsyncIterator[Finding]:
    kind = next((each for each in kinds if name.startswith(each.prefix)), None)
    if kind is None:
        yield Finding("a record of no known kind", name, "note", "a newer Tallybook may have written it: leave it")
        return
    known: Record | None = None
    while (record := await store.read_record(name, linearizable=True)) is not None:
        problems = [found async for found in _problems(store, kind, name, record)]
        if not problems or (known is not None and known.version == record.version):
            for found in problems:
                yield found
            return
        # Whoever writes it may have deleted a ledger meanwhile: what is wrong must be so twice in one version.
        known = record


async def _problems(store: MetadataStore, kind: RecordKind, name: str, record: Record) -> AsyncIterator[Finding]:
    try:
        async for told in kind.understand(store, name, record.value):
            if isinstance(told, str):
                yield Finding(told, name, "bad", kind.remedy)
            elif not await _is_there(store, told):
                yield Finding(
                    f"{kind.what} names ledger {told}, which is not there",
                    name,
                    "lost",
                    "somebody deleted the ledger by itself: readers are told of a gap there; nothing brings it back "
                    "but a copy of the metadata from before",
                )
    except NewerFormat as error:
        yield Finding(error.message, name, "note", NEWER)
    except DamagedFile as error:
        fix = RemoveRecord(name, record.version) if kind.removable else None
        yield Finding(f"{kind.what} cannot be understood: {error.message}", name, "bad", kind.remedy, fix)


async def _is_there(store: MetadataStore, ledger_id: int) -> bool:
    try:
        await store.read_ledger(ledger_id, linearizable=True)
    except NoSuchLedger:
        return False
    except (DamagedFile, NewerFormat):
        return True  # and told of by ``check_ledgers``
    return True


async def check_cookies(store: MetadataStore, membership: Membership, step: Step) -> AsyncIterator[Finding]:
    """Every living bookie has the cookie of the directory that it is registered with.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    for name, info in (await membership.bookies()).items():
        step()
        cookie = await store.read_cookie(name)
        if cookie is None:
            yield Finding(
                "it is registered, and has no cookie in the metadata",
                f"bookie {name}",
                "bad",
                "it does not start again like this: its registration was taken away while it ran; drain it, or restore "
                "the cookie from its data directory",
            )
            continue
        try:
            directory_uuid = decode_cookie(cookie, f"the cookie of {name}").directory_uuid
        except NewerFormat as error:
            yield Finding(error.message, f"bookie {name}", "note", NEWER)
            continue
        except DamagedFile as error:
            yield Finding(f"its cookie cannot be understood: {error.message}", f"bookie {name}", "bad", RESTORE)
            continue
        if directory_uuid != info.incarnation.directory_uuid:
            current = (await membership.bookies()).get(name)
            if current is not None and current.incarnation.directory_uuid != directory_uuid:
                yield Finding(
                    f"it runs on directory {info.incarnation.directory_uuid}, and its cookie names {directory_uuid}",
                    f"bookie {name}",
                    "bad",
                    "its id was given to another directory while it ran: stop it",
                )

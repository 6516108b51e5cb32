"""Requests and metadata that cannot be accepted: each has its own error, and nothing is lost."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from crc32c import crc32c

from tallybook.client.client import Client
from tallybook.core.answers import AddAnswer
from tallybook.core.batch import encode_batch
from tallybook.core.errors import (
    BookieUnavailable,
    DamagedFile,
    LedgerClosed,
    LedgerFenced,
    LedgerHasWriter,
    NewerFormat,
    NoSuchLedger,
    Outcome,
)
from tallybook.metadata.codec import encode_ledger
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, MissedRange

from ..simulated import scenario
from ..support.ledger_scenario import SMALL, eventually, lines, read_all
from ..support.memory_cluster import MemoryCluster
from .parts import written_ledger

QUICK = SMALL.model_copy(update={"away_timeout_ms": 300, "reconnect_ms": 50})

# -- recovery ---------------------------------------------------------------------------------------


@scenario()
async def test_a_ledger_that_is_deleted_under_its_recovery_ends_it(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 5)
    ledger.abandon()

    async def delete(method: str, ledger_id: int) -> None:
        if method == "recovery_read":
            cluster.metadata.ledgers.pop(ledger_id, None)

    for bookie in cluster.bookies.values():
        bookie.gate = delete
    with pytest.raises(NoSuchLedger):
        await client.recover_ledger(ledger.id)


# -- earlier lives ----------------------------------------------------------------------------------


@scenario()
async def test_a_request_for_an_earlier_incarnation_of_a_bookie_is_not_done(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    await ledger.append(b"zero")
    bookie = cluster.bookies[ledger.metadata.last_fragment.bookies[0]]
    async with cluster.client(QUICK) as other:
        connection = await other.world.connections.get(bookie.bookie_id)
        await connection.read_lac(ledger.id)
        bookie.restart()
        held = bookie.durable_batches(ledger.id)
        late = encode_batch(ledger.id, 1, [b"late"], lac=0, ledger_length=8, written_at_us=1)
        answers: list[AddAnswer] = []
        connection.add(late, b"", answers.append)
        with pytest.raises(BookieUnavailable):
            await connection.fence(ledger.id, b"")
        await eventually(lambda: bool(answers), cluster)
    assert answers[0].code == BookieUnavailable.wire_code
    assert bookie.durable_batches(ledger.id) == held
    assert not bookie.durably_fenced(ledger.id)


# -- owners -----------------------------------------------------------------------------------------


@scenario()
async def test_a_second_writer_on_an_owned_ledger_is_refused_and_the_first_continues(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    await ledger.append(b"mine")
    async with cluster.client(SMALL) as other:
        with pytest.raises(LedgerHasWriter, match="recover it and create the next one"):
            await other.adopt_ledger(ledger.id)
    assert await ledger.append(b"still mine") == 1
    closed = await ledger.close()
    async with cluster.client(SMALL) as other:
        with pytest.raises(LedgerClosed):
            await other.adopt_ledger(ledger.id)
    assert closed.last_entry_id == 1


# -- metadata that cannot be ------------------------------------------------------------------------


def sealed(body: bytes, version: int) -> bytes:
    """Stored metadata with a valid checksum and any content."""
    header = struct.pack("<4sHHI", b"TLED", version, 0, len(body))
    return header + struct.pack("<I", crc32c(body, crc32c(header))) + body


def as_stored(metadata: LedgerMetadata, **fields: object) -> bytes:
    """Encoded metadata that Tallybook would not write."""
    twin = replace(metadata)
    for name, value in fields.items():
        object.__setattr__(twin, name, value)
    return encode_ledger(twin)


def illegal(metadata: LedgerMetadata) -> dict[str, tuple[bytes, str]]:
    """Invalid metadata of a ledger, and the error message."""
    bookies = metadata.last_fragment.bookies
    body = encode_ledger(metadata)[16:]
    return {
        "overlapping fragments": (
            as_stored(metadata, fragments=(Fragment(0, bookies), Fragment(5, bookies), Fragment(5, bookies))),
            "strictly increase",
        ),
        "fragments out of order": (
            as_stored(metadata, fragments=(Fragment(0, bookies), Fragment(9, bookies), Fragment(5, bookies))),
            "strictly increase",
        ),
        "nothing at the start": (as_stored(metadata, fragments=(Fragment(3, bookies),)), "must start at entry 0"),
        "no fragments": (as_stored(metadata, fragments=()), "must start at entry 0"),
        "a bookie twice": (as_stored(metadata, fragments=(Fragment(0, (bookies[0],) * 3),)), "different bookies"),
        "a missed range backwards": (
            as_stored(metadata, missed=(MissedRange(bookies[0], 5, 4),)),
            "not a valid missed range",
        ),
        "an end of an open ledger": (as_stored(metadata, last_entry_id=3), "is not closed"),
        "an unknown version": (sealed(body, 9), "is of format 9, this Tallybook knows 1"),
        "cut short": (encode_ledger(metadata)[:-1], "length or checksum"),
        "of another ledger": (as_stored(metadata, ledger_id=metadata.ledger_id + 1), "are stored under ledger"),
        "nothing": (b"", "too few for a header"),
    }


@scenario()
async def test_illegal_metadata_are_refused_by_every_component_and_nothing_is_lost(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 20)
    stored = cluster.metadata.ledgers[ledger.id]
    good = stored.value
    for what, (edited, complaint) in illegal(ledger.metadata).items():
        stored.value = edited
        attempts = {
            "open": client.open_ledger(ledger.id),
            "open without recovery": client.open_ledger(ledger.id, recover=False),
            "recover": client.recover_ledger(ledger.id),
            "adopt": client.adopt_ledger(ledger.id),
            "delete": client.delete_ledger(ledger.id),
        }
        for how, attempt in attempts.items():
            with pytest.raises(NewerFormat if what == "an unknown version" else DamagedFile, match=complaint) as caught:
                await attempt
            assert caught.value.outcome is Outcome.NOT_DONE, (what, how)
        assert stored.value == edited, f"{what}: another client overwrote it"
    stored.value = good
    assert await ledger.append(b"the writer never noticed") == 20
    ledger.abandon()
    assert await read_all(client, ledger.id) == [*lines(20), b"the writer never noticed"]


@scenario(bookies=4)
async def test_a_writer_that_meets_illegal_metadata_ends_and_its_entries_are_recovered_later(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await written_ledger(writer, 10)
        stored = cluster.metadata.ledgers[ledger.id]
        good = stored.value
        stored.value, _ = illegal(ledger.metadata)["overlapping fragments"]
        cluster.die(ledger.metadata.last_fragment.bookies[0])
        ledger.append_nowait(b"makes it notice")
        await eventually(lambda: ledger.ended, cluster)
        with pytest.raises(DamagedFile, match="strictly increase"):
            await ledger.append(b"late")
        stored.value = good
    assert (await read_all(client, ledger.id))[:10] == lines(10)


@scenario()
async def test_a_last_fragment_that_is_not_the_writers_any_more_fences_it(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.add("spare")
    await cluster.register("spare")
    async with cluster.client(QUICK) as writer:
        ledger = await written_ledger(writer, 10)
        before = ledger.metadata.last_fragment.bookies
        stored = cluster.metadata.ledgers[ledger.id]
        moved = (Fragment(0, ("spare", *before[1:])),) if "spare" not in before else (Fragment(0, before[::-1]),)
        stored.value, stored.version = encode_ledger(replace(ledger.metadata, fragments=moved)), stored.version + 1
        cluster.die(before[0])
        ledger.append_nowait(b"makes it look for another bookie")
        await eventually(lambda: ledger.ended, cluster)
        with pytest.raises(LedgerFenced):
            await ledger.append(b"late")

"""The audit of a chaos run, with bookies that lose what they promised."""

from __future__ import annotations

from tallybook.bench.loads.payloads import MIN_BYTES, Payloads
from tallybook.client.client import Client
from tallybook.client.ports import ClientWorld
from tallybook.sim.chaos.audit import AuditClient, check_lacs, close_all, count_copies, keep_promises, read_all
from tallybook.sim.chaos.records import BookiePromises
from tallybook.sim.chaos.watched import WatchedConnections
from tallybook.sim.workload.history import History, check

from ..simulated import scenario
from ..support.ledger_scenario import SMALL
from ..support.memory_cluster import MemoryCluster

ENTRIES = 40


class Audit:
    """Audit one ledger that was written and fenced through watched connections."""

    def __init__(self, cluster: MemoryCluster, client: Client) -> None:
        inside = client.world
        self.promises, self.history, self.payloads = BookiePromises(), History(), Payloads()
        self.found: set[str] = set()
        watched = WatchedConnections(inside.connections, self.promises.note)
        self.world = ClientWorld(inside.store, inside.membership, watched, inside.clock, inside.rng)
        self.auditor = AuditClient("auditor", Client(self.world, SMALL), self.world)
        self.cluster = cluster

    async def write(self, *, ack_quorum: int = 2) -> tuple[str, ...]:
        """Write one ledger and leave it open; return its bookies."""
        writer = await self.auditor.client.create_ledger(ack_quorum=ack_quorum)
        for number in range(ENTRIES):
            append = self.history.append("writer", writer.id, self.payloads.of(writer.id, number, MIN_BYTES))
            append.ok(entry_id=await writer.append(append.payload))
        await self.cluster.world.clock.sleep(1)
        writer.abandon()
        return writer.metadata.last_fragment.bookies

    async def close(self) -> list[int]:
        return await close_all(self.auditor, self.history, self.world.clock, 10, self.wrong)

    async def look(self, known: list[int]) -> set[str]:
        """The violated invariants."""
        await read_all(self.auditor, known, self.history, self.payloads, self.wrong)
        await count_copies(self.auditor, known, self.wrong)
        await keep_promises(self.auditor, self.promises, self.wrong)
        await check_lacs(self.auditor, known, self.history, self.promises, self.wrong)
        return self.found | {violation.invariant for violation in check(self.history)}

    def wrong(self, invariant: str, _ledger_id: int, _detail: str) -> None:
        self.found.add(invariant)


@scenario()
async def test_a_ledger_that_nothing_happened_to_passes_and_its_promises_are_known(
    cluster: MemoryCluster, client: Client
) -> None:
    audit = Audit(cluster, client)
    members = await audit.write()
    known = await audit.close()
    assert await audit.look(known) == set()
    for bookie_id in members:
        acked = audit.promises.acked[known[0], bookie_id]
        assert {entry for first, last in acked.items() for entry in range(first, last + 1)} == set(range(ENTRIES))
    assert len({bookie_id for _, bookie_id in audit.promises.fenced}) >= 2


@scenario()
async def test_one_copy_that_is_lost_is_a_broken_promise_though_no_reader_misses_it(
    cluster: MemoryCluster, client: Client
) -> None:
    audit = Audit(cluster, client)
    members = await audit.write()
    known = await audit.close()
    cluster.bookies[members[0]].drop(known[0], 0)
    assert await audit.look(known) == {"I12"}


@scenario()
async def test_fewer_copies_than_an_ack_quorum_are_found(cluster: MemoryCluster, client: Client) -> None:
    audit = Audit(cluster, client)
    members = await audit.write(ack_quorum=3)
    known = await audit.close()
    cluster.bookies[members[0]].replace()
    assert {"I10", "I12"} <= await audit.look(known)


@scenario()
async def test_a_fence_that_is_forgotten_is_found(cluster: MemoryCluster, client: Client) -> None:
    audit = Audit(cluster, client)
    members = await audit.write()
    [ledger_id, *_] = [ledger_id for ledger_id, _ in audit.promises.acked]
    audit.promises.note("fenced", members[0], ledger_id, 0, 0)
    await keep_promises(audit.auditor, audit.promises, audit.wrong)
    assert audit.found == {"I13"}


@scenario()
async def test_a_ledger_that_cannot_be_closed_is_found(cluster: MemoryCluster, client: Client) -> None:
    audit = Audit(cluster, client)
    for bookie_id in (await audit.write())[1:]:
        cluster.bookies[bookie_id].kill()
    await audit.close()
    assert audit.found == {"L1"}


@scenario()
async def test_a_ledger_that_vanished_is_found_without_a_reader(cluster: MemoryCluster, client: Client) -> None:
    audit = Audit(cluster, client)
    await audit.write()
    gone = 4711
    audit.history.append("writer", gone, audit.payloads.of(gone, 0, MIN_BYTES)).ok(entry_id=0)
    known = await audit.close()
    assert gone not in known
    assert await audit.look(known) == {"I1"}


@scenario()
async def test_a_ledger_that_vanished_while_it_was_empty_is_found(cluster: MemoryCluster, client: Client) -> None:
    audit = Audit(cluster, client)
    made = audit.history.create("writer")
    made.ledger_id = 4711
    made.ok()
    await audit.close()
    assert audit.found == {"I1"}


@scenario()
async def test_an_entry_shown_as_confirmed_that_an_ack_quorum_never_acked_is_found(
    cluster: MemoryCluster, client: Client
) -> None:
    audit = Audit(cluster, client)
    await audit.write()
    known = await audit.close()
    for (ledger_id, _), acked in list(audit.promises.acked.items())[1:]:
        assert ledger_id == known[0]
        acked.pop(max(acked))
    assert await audit.look(known) == {"I6"}


@scenario()
async def test_an_entry_shown_as_confirmed_that_was_then_cut_off_is_found(
    cluster: MemoryCluster, client: Client
) -> None:
    audit = Audit(cluster, client)
    for bookie_id in await audit.write():
        audit.promises.note("acked", bookie_id, 0, ENTRIES, 1)
    known = await audit.close()
    audit.history.reading("reader", known[0]).lac(ENTRIES)
    await check_lacs(audit.auditor, known, audit.history, audit.promises, audit.wrong)
    assert audit.found == {"I6"}

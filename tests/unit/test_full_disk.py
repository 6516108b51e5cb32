"""A disk filled to the last byte, three times: read-only, writable again when there is space, and nothing lost."""

import pytest

from tallybook.bookie.directories import disk_monitor
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.core.add_kind import AddKind
from tallybook.core.errors import BookieReadOnly, Busy, DiskFull, LedgerFenced
from tallybook.core.limits import KIB
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..simulated import on_stage, simulated, world_alone

KEPT = 1
ROUNDS = 3
ROOM_BYTES = 800 * KIB
"""Space for entry logs in each round; the journal is preallocated."""
FILLER = "/data/of-another-program"
READ_ONLY = BookieReadOnly.wire_code
SETTINGS = tiny_settings(
    entry_log_bytes=32 * KIB, flush_interval_ms=500, collect_interval_ms=900, compact_below_percent=50
)
POLL_SECONDS = 0.3
"""Concurrent writes leave compaction some space before the disk is full, as on a disk of ordinary size."""
PATIENCE_SECONDS = 60.0


class Filling:
    """A bookie on a small disk, and the entries that it must keep."""

    def __init__(self, world: World) -> None:
        self.node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata(), SETTINGS)
        self.clock = world.clock
        self.kept: list[bytes] = []
        self.recovered: list[int] = []

    async def add(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the bookie accepted the add, with retries on BUSY; otherwise it is read-only."""
        batch = batch_of(entry_id, ledger_id=ledger_id, payload=b"x" * 3 * KIB)
        while (code := (await self.node.add(batch)).code) == Busy.wire_code:
            await self.clock.sleep(0.1)
        assert code in (0, READ_ONLY)
        if code == 0 and ledger_id == KEPT:
            self.kept.append(batch)
        return code == 0

    async def fill(self, ledger_id: int) -> None:
        """Write a ledger, and one entry of the one that is kept for each three of it, until no more is taken."""
        entry_id = 0
        while await self.add(KEPT if entry_id % 4 == 3 else ledger_id, self._next(ledger_id, entry_id)):
            entry_id += 1
            await self.clock.sleep(0.1)
        assert self.node.bookie.read_only
        assert entry_id > 30

    def _next(self, ledger_id: int, entry_id: int) -> int:
        return len(self.kept) if entry_id % 4 == 3 else entry_id

    async def to_the_brim(self, number: int) -> None:
        """Another program takes the rest of the disk. Only recoveries and fences are served, as long as space lasts."""
        node = self.node
        await node.disk.replace_file(FILLER, bytes(node.disk.free_bytes()))
        assert node.disk.free_bytes() == 0
        await self.clock.sleep(10 * POLL_SECONDS)
        assert (await node.add(batch_of(0, ledger_id=100 + number), kind=AddKind.RECOVERY)).code == 0
        await node.bookie.fence(100 + number, b"")
        self.recovered.append(100 + number)
        await self.clock.sleep(10 * POLL_SECONDS)
        assert not await self.add(200, 0)
        await self.look()
        await node.disk.unlink(FILLER)
        await node.disk.sync_directory("/data")

    async def until_it_writes(self) -> None:
        deadline = self.clock.monotonic() + PATIENCE_SECONDS
        while self.node.bookie.read_only:
            assert self.clock.monotonic() < deadline, "it never takes adds again"
            await self.clock.sleep(1)

    async def look(self) -> None:
        """All acked entries of kept ledgers are there, and fenced ledgers are fenced."""
        for entry_id, batch in enumerate(self.kept):
            assert (await self.node.bookie.read_batches(KEPT, entry_id, entry_id, 1)).batches == (batch,)
        for ledger_id in self.recovered:
            batch = batch_of(0, ledger_id=ledger_id)
            assert (await self.node.bookie.read_batches(ledger_id, 0, 0, 1)).batches == (batch,)
            code = (await self.node.add(batch_of(1, ledger_id=ledger_id))).code
            assert code in (LedgerFenced.wire_code, READ_ONLY)
        assert self.node.failures == []


@simulated
async def test_j17_e04_a_disk_filled_completely_three_times_has_space_each_time_that_a_ledger_is_dropped(
    world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_monitor, "POLL_SECONDS", POLL_SECONDS)

    filling = Filling(world)
    node = filling.node
    await node.boot()
    await world.clock.sleep(1)  # the journal has made all its segments by then
    node.disk.capacity_bytes = node.disk.state.used_bytes() + ROOM_BYTES
    for number in range(ROUNDS):
        ledger_id = 10 + number
        await filling.fill(ledger_id)
        await filling.to_the_brim(number)
        if number == 1:
            await node.lose_power()
            await node.boot()
        await world.clock.sleep(10 * POLL_SECONDS)
        assert node.bookie.read_only, "nothing has gone yet"
        node.metadata.dispositions[ledger_id] = LedgerDisposition.RELEASED
        await filling.until_it_writes()
        await filling.look()
    assert node.bookie.stats()["compacted_bytes_total"] > 0
    await node.bookie.collect()  # it accepts adds during a pass, as space is freed piece by piece
    await node.lose_power()
    await node.boot()
    await filling.look()
    assert await filling.add(KEPT, len(filling.kept))
    await node.stop()
    assert node.failures == []
    assert sum(len(node.disk.peek(f"{ROOT}/ledgers/{name}")) for name in logs(node.disk)) < ROOM_BYTES * 3 // 4


@simulated
async def test_logs_go_from_a_ledger_disk_of_its_own_that_has_no_byte_left_for_anything(world: World) -> None:
    filling = Filling(world)
    node = filling.node
    await node.boot()
    for entry_id in range(40):
        await filling.add(10 if entry_id % 4 else KEPT, entry_id if entry_id % 4 else entry_id // 4)
        if entry_id % 4 == 3:
            await node.bookie.flush()
    node.disk.fail("write", f"{ROOT}/ledgers/", times=10**9, error=DiskFull)
    node.metadata.dispositions[10] = node.metadata.dispositions[KEPT] = LedgerDisposition.RELEASED
    before = len(logs(node.disk))
    await world.clock.sleep(5)
    assert node.bookie.stats()["entry_logs_removed_total"] >= before - 1
    removed = [name for name in logs(node.disk) if name.endswith(".removed")]
    assert len(removed) == before - 1
    assert not any(node.disk.peek(f"{ROOT}/ledgers/{name}") for name in removed)
    await node.lose_power()
    node.disk.faults.clear()
    await node.boot()
    assert await filling.add(11, 0)
    await node.bookie.flush()
    assert not [name for name in logs(node.disk) if name.endswith(".removed")]
    await node.stop()
    assert node.failures == []


def logs(disk: SimDisk) -> list[str]:
    return [name for name in disk.state.names(f"{ROOT}/ledgers") if name.startswith("entrylog-")]


@pytest.mark.parametrize("step", ["apply", "sync"])
@on_stage(world_alone, deadline_seconds=3600)
async def test_a_bookie_whose_index_alone_has_no_space_is_read_only_until_it_has(
    world: World, *, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata(), SETTINGS)
    await node.boot()
    first, is_full = batch_of(0, ledger_id=KEPT), True
    change = getattr(node.parts.index, step)

    async def while_there_is_room(*args: object, **more: object) -> None:
        if is_full:
            raise DiskFull("the index cannot be written: No space left on device")
        await change(*args, **more)

    monkeypatch.setattr(node.parts.index, step, while_there_is_room)
    assert (await node.add(first)).code == 0
    await world.clock.sleep(5)
    assert node.bookie.read_only
    assert (await node.add(batch_of(1, ledger_id=KEPT))).code == READ_ONLY
    assert (await node.bookie.read_batches(KEPT, 0, 0, 1)).batches == (first,)
    await node.bookie.fence(99, b"")
    is_full = False
    await world.clock.sleep(5)
    assert not node.bookie.read_only
    assert (await node.add(batch_of(1, ledger_id=KEPT))).code == 0
    await node.stop()
    await node.boot()
    assert (await node.bookie.read_batches(KEPT, 0, 0, 1)).batches == (first,)
    await node.stop()
    assert node.failures == []

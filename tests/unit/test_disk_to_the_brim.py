"""A disk that is filled to the last byte, three times over: read-only, on again with room, and nothing lost."""

import pytest

from tallybook.bookie import disk_watch
from tallybook.bookie.garbage import Fate
from tallybook.core.errors import BookieReadOnly, Busy, DiskFull, LedgerFenced, NoSuchLedger
from tallybook.core.limits import KIB
from tallybook.runtime.deterministic import SimDisk, World, run_seed
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

KEPT = 1
ROUNDS = 3
ROOM_BYTES = 800 * KIB
"""For entry logs, in each round; the journal has its own beforehand."""
FILLER = "/data/of-somebody-else"
READ_ONLY = BookieReadOnly.wire_code
SETTINGS = tiny_settings(
    entry_log_bytes=32 * KIB, flush_interval_ms=500, collect_interval_ms=1_000, compact_below_percent=50
)
LOOK_SECONDS = 0.5
"""What is written meanwhile leaves compaction some room below the brim, as on a disk of ordinary size."""
PATIENCE_SECONDS = 60.0


class Filling:
    """A bookie on a small disk, and what it was told to keep."""

    def __init__(self, world: World) -> None:
        self.node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata(), SETTINGS)
        self.clock = world.clock
        self.kept: list[bytes] = []
        self.recovered: list[int] = []

    async def add(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the bookie took it, once it was not too busy; where it did not, it is read-only."""
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
        """Somebody else takes what is left. Recoveries and fences are served, and nobody else, as long as it lasts."""
        node = self.node
        await node.disk.replace_file(FILLER, bytes(node.disk.free_bytes()))
        assert node.disk.free_bytes() == 0
        await self.clock.sleep(10 * LOOK_SECONDS)
        assert (await node.add(batch_of(0, ledger_id=100 + number), recovery=True)).code == 0
        await node.bookie.fence(100 + number, b"")
        self.recovered.append(100 + number)
        await self.clock.sleep(10 * LOOK_SECONDS)
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
        """All that was acked and is to be kept is there, and what was fenced is fenced."""
        for entry_id, batch in enumerate(self.kept):
            assert (await self.node.bookie.read_batches(KEPT, entry_id, entry_id, 1)).batches == (batch,)
        for ledger_id in self.recovered:
            batch = batch_of(0, ledger_id=ledger_id)
            assert (await self.node.bookie.read_batches(ledger_id, 0, 0, 1)).batches == (batch,)
            code = (await self.node.add(batch_of(1, ledger_id=ledger_id))).code
            assert code in (LedgerFenced.wire_code, READ_ONLY)
        assert self.node.failures == []


def test_j17_e04_a_disk_that_is_filled_to_the_brim_three_times_has_room_each_time_that_a_ledger_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disk_watch, "LOOK_SECONDS", LOOK_SECONDS)

    async def scenario(world: World) -> None:
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
            await world.clock.sleep(10 * LOOK_SECONDS)
            assert node.bookie.read_only, "nothing has gone yet"
            node.metadata.fates[ledger_id] = Fate.RELEASED
            await filling.until_it_writes()
            await filling.look()
        assert node.bookie.stats()["compacted_bytes_total"] > 0
        await node.bookie.collect()  # it takes adds in the midst of a round, as room comes back piece by piece
        await node.lose_power()
        await node.boot()
        await filling.look()
        assert await filling.add(KEPT, len(filling.kept))
        await node.stop()
        assert node.failures == []
        assert sum(len(node.disk.peek(f"{ROOT}/ledgers/{name}")) for name in logs(node.disk)) < ROOM_BYTES * 3 // 4

    run_seed(1, scenario, deadline_seconds=86_400)


def test_e04_a_ledger_that_fills_the_disk_can_go_although_a_checkpoint_waits_for_room_to_write_it() -> None:
    """It was never dropped: that waited for the checkpoint, which waited for the room that it would have given."""

    async def scenario(world: World) -> None:
        filling = Filling(world)
        node = filling.node
        await node.boot()
        await world.clock.sleep(1)
        node.disk.capacity_bytes = node.disk.state.used_bytes() + ROOM_BYTES
        entry_id = 0
        while await filling.add(10, entry_id):
            entry_id += 1
        await world.clock.sleep(2)
        assert node.bookie._parts.cache.flushes(10), "a checkpoint waits"
        node.metadata.fates[10] = Fate.RELEASED
        await filling.until_it_writes()
        assert await filling.add(KEPT, 0)
        await node.bookie.flush()
        await filling.look()
        for _ in range(2):
            await node.lose_power()
            await node.boot()
            await filling.look()
            with pytest.raises(NoSuchLedger):
                await node.bookie.read_batches(10, 0, 0, 1)
            assert await node.bookie._parts.index.ledgers_with_rows(-1, 10) == [KEPT]
        await node.stop()

    run_seed(1, scenario, deadline_seconds=86_400)


def test_logs_go_from_a_ledger_disk_of_its_own_that_has_no_byte_left_for_anything() -> None:
    async def scenario(world: World) -> None:
        filling = Filling(world)
        node = filling.node
        await node.boot()
        for entry_id in range(40):
            await filling.add(10 if entry_id % 4 else KEPT, entry_id if entry_id % 4 else entry_id // 4)
            if entry_id % 4 == 3:
                await node.bookie.flush()
        node.disk.fail("write", f"{ROOT}/ledgers/", times=10**9, error=DiskFull)
        node.metadata.fates[10] = node.metadata.fates[KEPT] = Fate.RELEASED
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

    run_seed(1, scenario, deadline_seconds=86_400)


def logs(disk: SimDisk) -> list[str]:
    return [name for name in disk.state.names(f"{ROOT}/ledgers") if name.startswith("entrylog-")]


@pytest.mark.parametrize("step", ["apply", "sync"])
def test_a_bookie_whose_index_alone_has_no_room_is_read_only_until_it_has(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata(), SETTINGS)
        await node.boot()
        first, is_full = batch_of(0, ledger_id=KEPT), True
        change = getattr(node.bookie._parts.index, step)

        async def while_there_is_room(*args: object, **more: object) -> None:
            if is_full:
                raise DiskFull("the index cannot be written: No space left on device")
            await change(*args, **more)

        monkeypatch.setattr(node.bookie._parts.index, step, while_there_is_room)
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

    run_seed(1, scenario, deadline_seconds=3600)

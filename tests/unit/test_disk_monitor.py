"""``bookie/directories/disk_monitor.py``: levels of a full disk, and what a bookie does at each."""

from collections.abc import Awaitable, Callable

from hypothesis import given
from hypothesis import strategies as st

from tallybook.bookie.directories.disk_monitor import NOT_KNOWN, POLL_SECONDS, DiskMonitor, WatchedDirectories
from tallybook.bookie.directories.watermarks import DiskLevel, DiskPressure, Watermarks
from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import DirectorySpace
from tallybook.core.errors import BookieReadOnly, Busy, DiskFailed
from tallybook.core.limits import KIB, MIB
from tallybook.repair.copier import BUSY_SECONDS
from tallybook.runtime.disk.port import Space
from tallybook.runtime.tasks import Tasks
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..simulated import simulated

MARKS = Watermarks(warn=0.90, back=0.92, read_only=0.95)
READ_ONLY = BookieReadOnly.wire_code


def test_a_level_is_left_where_it_is_said_and_not_before() -> None:
    level, seen = DiskLevel.ENOUGH, []
    for percent in (10, 89, 90, 94, 95, 100, 94, 92, 91, 94, 95, 50):
        level = MARKS.level(percent / 100, level)
        seen.append(level.value)
    assert seen == [*["room"] * 2, *["warned"] * 2, *["short"] * 4, *["warned"] * 2, "short", "room"]


@given(st.lists(st.floats(0, 1), max_size=20), st.sampled_from(DiskLevel))
def test_a_disk_that_stays_as_it_is_stays_at_its_level(parts: list[float], level: DiskLevel) -> None:
    for part in parts:
        level = MARKS.level(part, level)
        assert MARKS.level(part, level) is level


@simulated
async def test_a_bookie_whose_disk_fills_up_takes_only_recoveries_and_comes_back_when_there_is_space(world):
    node = DiskBookie(SimDisk(world.rng, capacity_bytes=2 * MIB), world.clock, KnownMetadata(), tiny_settings())
    await node.boot()
    used = node.disk.capacity_bytes - (await node.disk.space(ROOT)).free_bytes
    assert (await node.add(batch_of(0))).code == 0
    for capacity, code in ((used + KIB, READ_ONLY), (int(used / 0.93), READ_ONLY), (int(used / 0.5), 0)):
        node.disk.capacity_bytes = capacity
        await world.clock.sleep(2 * POLL_SECONDS)
        first = 1 if code else 2
        assert (await node.add(batch_of(first))).code == code
        assert node.bookie.read_only == bool(code)
        assert (await node.add(batch_of(1), kind=AddKind.RECOVERY)).code == 0
        await node.bookie.fence(7, b"")
    await node.stop()
    assert node.failures == []


@simulated
async def test_repairs_leave_the_last_space_of_a_disk_to_recoveries_fences_and_compaction(world):
    metadata = KnownMetadata(confirmed_prefixes={2: ConfirmedPrefix(99, closed=True)})
    node = DiskBookie(SimDisk(world.rng, capacity_bytes=2 * MIB), world.clock, metadata, tiny_settings())
    await node.boot()
    await world.clock.sleep(1)  # the journal has made all its segments by then
    used = node.disk.capacity_bytes - (await node.disk.space(ROOT)).free_bytes
    for first, used_part in enumerate((0.91, 0.96, 0.93, 0.5)):
        node.disk.capacity_bytes = int(used / used_part)
        await world.clock.sleep(2 * POLL_SECONDS)
        answer = await node.add(batch_of(first, ledger_id=2), kind=AddKind.REPAIR)
        if used_part in (0.96, 0.93):
            assert answer.code == Busy.wire_code
            assert answer.retry_after_ms / 1000 > BUSY_SECONDS, "a repair does not wait for it"
        else:
            assert answer.code == 0
        assert (await node.add(batch_of(first), kind=AddKind.RECOVERY)).code == 0
        await node.bookie.fence(7, b"")
    assert node.bookie.stats()["refused_room_for_repairs_total"] == 2
    await node.stop()
    assert node.failures == []


@simulated
async def test_e04_a_bookie_that_starts_on_a_full_disk_gets_space_by_dropping_what_was_deleted(world):
    settings = tiny_settings(collect_interval_ms=1_000, entry_log_bytes=16 * KIB)
    node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata(), settings)
    await node.boot()
    for entry_id in range(40):
        while (await node.add(batch_of(entry_id, payload=bytes(8 * KIB)))).code:
            await world.clock.sleep(0.1)
        await node.bookie.flush()
    await node.stop()
    used = node.disk.capacity_bytes - (await node.disk.space(ROOT)).free_bytes
    node.disk.capacity_bytes = int(used / 0.97)
    node.disk.capacity_bytes = max(node.disk.capacity_bytes, used + 140 * KIB)
    node.settings = tiny_settings(collect_interval_ms=1_000, entry_log_bytes=16 * KIB, read_only_percent=80)
    await node.boot()
    assert node.bookie.read_only
    node.metadata.dispositions[1] = LedgerDisposition.RELEASED
    await world.clock.sleep(4 * POLL_SECONDS)
    assert not node.bookie.read_only
    assert (await node.add(batch_of(0, ledger_id=2))).code == 0
    await node.stop()
    assert node.failures == []


@simulated
async def test_a_disk_that_gets_short_has_what_can_go_collected_at_once(world):
    settings = tiny_settings(collect_interval_ms=3_600_000)
    node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata(), settings)
    await node.boot()
    await node.disk.replace_file("/data/of-another-program", bytes(8 * MIB))
    used = node.disk.capacity_bytes - (await node.disk.space(ROOT)).free_bytes
    node.disk.capacity_bytes = int(used / 0.91)
    await world.clock.sleep(2 * POLL_SECONDS)
    assert node.bookie.stats()["collector_rounds_total"] == 1
    assert not node.bookie.read_only
    await node.stop()


@simulated
async def test_every_directory_is_reported_with_its_disk_and_whether_there_is_space(world: World) -> None:
    spaces = {
        "/journal": Space(9, 100, device=5), "/logs1": Space(50, 100, device=7), "/logs2": Space(4, 100, device=8),
        "/index": Space(9, 100, device=5),
    }  # fmt: skip
    watched = WatchedDirectories(
        ("/logs1", "/logs2"), "/index", index_apart=True, journals=("/journal",), min_free_bytes=10
    )
    watch = monitor_of(measuring(spaces), watched, world)
    assert {each.state for each in watch.directories} == {NOT_KNOWN}, "before the first look"
    await watch.poll()
    tasks = Tasks("watch", lambda name, error: None)
    tasks.spawn(watch.run_for_ever(), name="watch")
    await world.clock.sleep(1)
    assert watch.directories == (
        DirectorySpace("/journal", "journal", 1, 100, 9, "warned"),
        DirectorySpace("/logs1", "ledgers", 2, 100, 50, "room"),
        DirectorySpace("/logs2", "ledgers", 3, 100, 4, "short"),
        DirectorySpace("/index", "index", 1, 100, 9, "warned"),
    )
    assert (watch.used_part, watch.free_bytes) == (0.96, 50)
    del spaces["/journal"]
    spaces["/logs2"] = None
    await world.clock.sleep(POLL_SECONDS)
    journal, _, logs, _ = watch.directories
    assert (journal.state, journal.disk, logs.state, logs.total_bytes) == (NOT_KNOWN, 0, NOT_KNOWN, 0)
    spaces["/logs2"] = Space(99, 100, device=8)
    await world.clock.sleep(POLL_SECONDS)
    assert [each.state for each in watch.directories] == [NOT_KNOWN, "room", "room", "warned"], "it goes on to look"
    await tasks.close()


@simulated
async def test_an_index_beside_the_entry_logs_is_at_their_level_and_decides_nothing(world: World) -> None:
    spaces = {"/journal": Space(0, 100), "/logs": Space(4, 100), "/index": Space(4, 100)}
    watched = WatchedDirectories(("/logs",), "/index", index_apart=False, journals=("/journal",), min_free_bytes=0)
    pressure = DiskPressure(lambda: None)
    watch = monitor_of(measuring(spaces), watched, world, pressure)
    await watch.poll()
    tasks = Tasks("watch", lambda name, error: None)
    tasks.spawn(watch.run_for_ever(), name="watch")
    await world.clock.sleep(1)
    assert [each.state for each in watch.directories] == ["room", "short", "short"]
    spaces.update({"/logs": Space(7, 100), "/index": Space(7, 100)})
    await world.clock.sleep(POLL_SECONDS + 1)
    assert [each.state for each in watch.directories] == ["room", "short", "short"], "it is left where it is said"
    spaces.update({"/logs": Space(50, 100), "/index": Space(1, 100)})
    await world.clock.sleep(POLL_SECONDS + 1)
    assert [each.state for each in watch.directories] == ["room", "room", "short"], "a disk is mounted there"
    assert pressure.level is DiskLevel.ENOUGH
    await tasks.close()


def monitor_of(
    space: Callable[[str], Awaitable[Space]],
    watched: WatchedDirectories,
    world: World,
    pressure: DiskPressure | None = None,
) -> DiskMonitor:
    pressure = pressure or DiskPressure(lambda: None)
    return DiskMonitor(space, watched, MARKS, world.clock, pressure, avoid=lambda _: None)


def measuring(spaces: dict[str, Space | None]) -> Callable[[str], Awaitable[Space]]:
    """Free space of each directory. ``None``: its disk has failed; not listed: it does not exist."""

    async def space(path: str) -> Space:
        if path not in spaces:
            raise FileNotFoundError(path)
        found = spaces[path]
        if found is None:
            raise DiskFailed(path)
        return found

    return space


@simulated
async def test_a_path_that_is_no_text_is_reported(world: World) -> None:
    odd = "/logs-\udcff"
    watched = WatchedDirectories((odd,), "/index", index_apart=False, journals=(), min_free_bytes=0)
    watch = monitor_of(measuring({odd: Space(50, 100)}), watched, world)
    await watch.poll()
    assert watch.directories[0] == DirectorySpace("/logs-?", "ledgers", 1, 100, 50, "room")

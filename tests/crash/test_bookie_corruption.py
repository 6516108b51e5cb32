"""Damage in each file that a bookie owns, through a whole boot.

Whatever is flipped, zeroed, cut, swapped or missing: either the boot is refused and names the file, or the bookie runs
and never serves wrong bytes, never says ABSENT of what it acked, and never forgets a fence. A second boot ends alike.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest

from tallybook.bookie.directories import FORMAT_KIND, FORMAT_VERSION
from tallybook.bookie.text_record import encode_record
from tallybook.core.errors import DamagedFile, EntryCorrupt, EntryUnknown, ForeignDirectory, LedgerFenced, StorageError
from tallybook.core.limits import KIB, SECTOR_BYTES
from tallybook.runtime.deterministic import SimClock, SimDisk, World, run_seed
from tallybook.runtime.rng import SeededRng
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

SETTINGS = tiny_settings(segment_bytes=32 * KIB)
ID_COUNTER = 1_000
INDEX_FILE = f"{ROOT}/index/changes.log"
"""The index of the simulation: its last change is not vouched for. RocksDB's files have a test of their own."""


class Written(NamedTuple):
    """A disk, and what its bookie answered for before it was killed."""

    disk: SimDisk
    cookie: bytes
    acked: list[tuple[int, int, bytes]]
    fenced: list[int]


@pytest.fixture(scope="module")
def written() -> Written:
    """Batches and fences in entry logs and index (ledgers 1, 2), others only in the journal (3, 4)."""

    async def scenario(world: World) -> Written:
        node = DiskBookie(SimDisk(SeededRng(1)), world.clock, None, SETTINGS)
        await node.boot()
        await world.clock.sleep(1)  # the journal has made all its segments by then
        acked = []

        async def add(ledger_id: int, first: int) -> None:
            batch = batch_of(first, 3, ledger_id=ledger_id, payload=bytes([first]) * 200)
            assert (await node.add(batch)).code == 0
            acked.append((ledger_id, first, batch))

        for first in range(0, 15, 3):
            await add(1, first)
        await node.bookie.fence(2, b"")
        await node.bookie.flush()
        await add(1, 15)
        await node.bookie.flush()
        for first in range(0, 9, 3):
            await add(3, first)
        await node.bookie.fence(4, b"")
        await world.clock.sleep(1)
        await node.kill()
        return Written(node.disk, node.metadata.cookies["b1"], acked, [2, 4])

    return run_seed(1, scenario).value


def files(disk: SimDisk, part: str = "") -> list[str]:
    """Paths of the files that exist."""
    found = []
    for directory in sorted(disk.state.directories):
        found += [f"{directory}/{name}" for name in disk.state.names(directory)]
    return [path for path in found if part in path and path not in (INDEX_FILE, f"{ROOT}/LOCK") and is_file(disk, path)]


def is_file(disk: SimDisk, path: str) -> bool:
    return disk.state.inode(path) is not None


async def holds(disk: SimDisk, written: Written, path: str) -> str:
    """Boot twice from a damaged disk: "refused", or "runs" if everything it says is true."""
    verdicts = []
    for _ in range(2):
        metadata = KnownMetadata(cookies={"b1": written.cookie}, id_counter=ID_COUNTER)
        node = DiskBookie(disk, SimClock(), metadata, SETTINGS)
        try:
            await node.boot()
        except (DamagedFile, ForeignDirectory) as error:
            named = path in str(error) or path.rpartition("/")[0] in str(error)
            verdicts.append("refused" if named else f"{error} does not name {path}")
            continue
        for ledger_id, first, batch in written.acked:
            try:
                answer = await node.bookie.read_batches(ledger_id, first, first, 1)
            except (EntryCorrupt, EntryUnknown):
                continue
            assert answer.batches == (batch,)
        for ledger_id in written.fenced:
            code = (await node.add(batch_of(50, ledger_id=ledger_id))).code
            assert code in (LedgerFenced.wire_code, EntryUnknown.wire_code)
        assert node.failures == []
        verdicts.append("runs")
        await node.kill()
        disk = node.disk
    assert verdicts[0] == verdicts[1]
    assert verdicts[0] in ("refused", "runs")
    return verdicts[0]


def survives(written: Written, path: str, damages: Iterator[SimDisk]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for number, disk in enumerate(damages):
        try:
            verdict = run_seed(1, lambda _, disk=disk: holds(disk, written, path)).value
        except (AssertionError, StorageError) as error:
            error.add_note(f"damage number {number} of {path}")
            raise
        counts[verdict] = counts.get(verdict, 0) + 1
    return counts


def flips(written: Written, path: str, step: int) -> Iterator[SimDisk]:
    """One flipped bit in every ``step`` bytes that are not all zero."""
    rng = SeededRng(path)
    data = written.disk.peek(path)
    for start in range(0, len(data), step):
        piece = data[start : start + step]
        if any(piece):
            disk = written.disk.fork()
            disk.rot.flip_bit(path, start + rng.randint(0, len(piece) - 1), rng.randint(0, 7))
            yield disk


def zeroed(written: Written, path: str) -> Iterator[SimDisk]:
    """Every sector that is not all zero, zeroed."""
    data = written.disk.peek(path)
    for sector in range(-(-len(data) // SECTOR_BYTES)):
        if any(data[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES]):
            disk = written.disk.fork()
            disk.rot.zero_sector(path, sector)
            yield disk


def cut(written: Written, path: str) -> Iterator[SimDisk]:
    """The file cut at several lengths, and missing."""
    size = len(written.disk.peek(path))
    for length in sorted({0, 1, size // 3, size // 2, size - SECTOR_BYTES, size - 1}):
        if 0 <= length < size:
            disk = written.disk.fork()
            disk.rot.truncate(path, length)
            yield disk
    disk = written.disk.fork()
    disk.rot.remove(path)
    yield disk


SMALL = ["/cookie", "/FORMAT", "/journal/cookie", "/ledgers/cookie"]


@pytest.mark.parametrize("name", SMALL)
def test_any_damage_to_a_file_of_the_identity_is_refused_and_named(written: Written, name: str) -> None:
    path = ROOT + name
    for damages in (flips(written, path, 8), zeroed(written, path), cut(written, path)):
        assert set(survives(written, path, damages)) == {"refused"}


def test_any_damage_to_the_cookie_of_the_index_costs_the_index_which_is_made_again(written: Written) -> None:
    path = f"{ROOT}/index/cookie"
    for damages in (flips(written, path, 8), zeroed(written, path), cut(written, path)):
        assert set(survives(written, path, damages)) == {"runs"}


def test_damage_to_the_lock_file_means_nothing(written: Written) -> None:
    disk = written.disk.fork()
    disk.rot.remove(f"{ROOT}/LOCK")
    assert run_seed(1, lambda _: holds(disk, written, f"{ROOT}/LOCK")).value == "runs"


def test_damage_to_the_superblock_is_survived_by_its_twin_or_refused(written: Written) -> None:
    path = f"{ROOT}/journal/superblock"
    assert survives(written, path, flips(written, path, 16)).get("runs", 0) > 5
    survives(written, path, zeroed(written, path))
    assert survives(written, path, cut(written, path)).get("refused", 0) > 0


@pytest.mark.parametrize("slot", range(4))
def test_no_damage_to_a_journal_segment_makes_the_bookie_lie(written: Written, slot: int) -> None:
    path = f"{ROOT}/journal/segment-{slot:04d}"
    for damages in (flips(written, path, 256), zeroed(written, path), cut(written, path)):
        assert "refused" not in survives(written, path, damages), "a damaged journal does not keep a bookie down"


@pytest.mark.parametrize("stored", [True, False], ids=["after checkpoints", "before the first checkpoint"])
def test_a_journal_whose_files_are_all_gone_is_refused_whatever_else_is_there(written: Written, stored: bool) -> None:
    async def journaled_only(world: World) -> Written:
        node = DiskBookie(SimDisk(SeededRng(1)), world.clock, None, SETTINGS)
        await node.boot()
        batch = batch_of(0, ledger_id=3)
        assert (await node.add(batch)).code == 0
        await node.bookie.fence(4, b"")
        await node.kill()
        return Written(node.disk, node.metadata.cookies["b1"], [(3, 0, batch)], [4])

    facts = written if stored else run_seed(1, journaled_only).value
    disk = facts.disk.fork()
    for path in files(disk, "/journal/"):
        if not path.endswith("/cookie"):
            disk.rot.remove(path)
    assert run_seed(1, lambda _: holds(disk, facts, f"{ROOT}/journal")).value == "refused"


def test_a_journal_that_is_gone_is_noticed_by_the_entry_logs_where_the_format_file_is_of_an_older_version(
    written: Written,
) -> None:
    async def scenario(_: World) -> str:
        disk = written.disk.fork()
        await disk.replace_file(f"{ROOT}/FORMAT", encode_record(FORMAT_KIND, FORMAT_VERSION, {}))
        for path in files(disk, "/journal/"):
            if not path.endswith("/cookie"):
                disk.rot.remove(path)
        return await holds(disk, written, f"{ROOT}/journal")

    assert run_seed(1, scenario).value == "refused"


def test_no_damage_to_an_entry_log_makes_the_bookie_lie(written: Written) -> None:
    for path in files(written.disk, "entrylog"):
        for damages in (flips(written, path, 128), zeroed(written, path), cut(written, path)):
            assert "refused" not in survives(written, path, damages)


def test_swapped_files_of_one_kind_never_pass_for_each_other(written: Written) -> None:
    segments = files(written.disk, "segment-")
    for one, other in pairwise(segments):
        disk = written.disk.fork()
        first, second = disk.peek(one), disk.peek(other)
        disk.rot.overwrite(one, 0, second)
        disk.rot.overwrite(other, 0, first)
        survives(written, one, iter([disk]))


def test_the_limbo_marker_is_refused_when_damaged(written: Written) -> None:
    path = f"{ROOT}/limbo"

    async def scenario(world: World) -> SimDisk:
        disk = written.disk.fork()
        blocks = sorted(
            (data[at + 32 : at + 40][::-1], segment, at)
            for segment in files(disk, "segment-")
            for data in [disk.peek(segment)]
            for at in range(4096, len(data), 4096)
            if data[at : at + 4] == b"TJBK" and any(data[at + 44 : at + 48])
        )
        _, segment, at = blocks[-2]
        disk.rot.zero_sector(segment, at // SECTOR_BYTES)
        node = DiskBookie(disk, world.clock, KnownMetadata(cookies={"b1": written.cookie}), SETTINGS)
        await node.boot()
        await node.kill()
        return node.disk

    damaged = Written(run_seed(1, scenario).value, written.cookie, written.acked, written.fenced)
    assert b"events 1" in damaged.disk.peek(path)
    for damages in (flips(damaged, path, 4), cut(damaged, path)):
        assert set(survives(damaged, path, damages)) == {"refused"}

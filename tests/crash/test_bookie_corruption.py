"""Damage in each file of a bookie, through a whole boot. docs/reference/damage.md has the table.

Data are flipped, zeroed, truncated, swapped or missing. Then the boot is refused and names the file; or the bookie runs
and never serves wrong bytes, never answers ABSENT for an acked entry, never forgets a fence or a LAC without a report,
accepts no wrong key, and accepts no add for a deleted ledger. A second boot has the same result.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest

from tallybook.bookie.directories.layout import FORMAT_KIND, FORMAT_VERSION
from tallybook.bookie.storage.text_record import encode_record
from tallybook.core.errors import (
    DamagedFile,
    EntryCorrupt,
    EntryUnknown,
    ForeignDirectory,
    LedgerFenced,
    NoSuchLedger,
    StorageError,
    Unauthorized,
)
from tallybook.core.keys import key_verifier
from tallybook.core.limits import KIB, SECTOR_BYTES
from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import SimClock, SimDisk, World, run_seed
from tallybook.sim.deterministic.world import run_untraced
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..sampling import sample

SETTINGS = tiny_settings(segment_bytes=32 * KIB)
ID_COUNTER = 1_000
INDEX_FILE = f"{ROOT}/index/changes.log"
"""The index of the simulation: its last change is not vouched for. RocksDB's files have a test of their own."""
LACS = {5: 7, 6: 8}
"""Explicit LACs that were taken: the first is in the index, the other one in the journal alone."""
DELETED, LOCKED = 7, 8
KEY = bytes(range(32))
IN_DOUBT = EntryUnknown.wire_code


class Written(NamedTuple):
    """A disk, and what its bookie answered for before it was killed."""

    disk: SimDisk
    cookie: bytes
    acked: list[tuple[int, int, bytes]]
    fenced: list[int]


def metadata_of(cookie: bytes) -> KnownMetadata:
    return KnownMetadata(cookies={"b1": cookie}, id_counter=ID_COUNTER, verifiers={LOCKED: key_verifier(KEY)})


@pytest.fixture(scope="module")
def written() -> Written:
    """Batches and fences in entry logs and index (ledgers 1, 2), others only in the journal (3, 4), with LACs (5, 6),
    a deletion (7) and a key (8)."""

    async def scenario(world: World) -> Written:
        node = DiskBookie(SimDisk(SeededRng(1)), world.clock, metadata_of(b""), SETTINGS)
        node.metadata.cookies.clear()
        await node.boot()
        await world.clock.sleep(1)  # the journal has made all its segments by then
        acked = []

        async def add(ledger_id: int, first: int, key: bytes = b"") -> None:
            batch = batch_of(first, 3, ledger_id=ledger_id, payload=bytes([first]) * 200)
            assert (await node.add(batch, key)).code == 0
            acked.append((ledger_id, first, batch))

        for first in range(0, 15, 3):
            await add(1, first)
        await node.bookie.fence(2, b"")
        await node.bookie.write_lac(5, LACS[5], b"")
        assert (await node.add(batch_of(0, ledger_id=DELETED))).code == 0
        await node.bookie.flush()
        await add(1, 15)
        await node.bookie.flush()
        await node.parts.scrub.run_pass()
        for first in range(0, 9, 3):
            await add(3, first)
        await node.bookie.fence(4, b"")
        await node.bookie.write_lac(6, LACS[6], b"")
        await node.bookie.delete_ledger(DELETED)
        await add(LOCKED, 0, KEY)
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
    """Boot twice from a damaged disk: "refused", or "runs" if everything it says is true, and the same both times."""
    verdicts: list[tuple[str, object]] = []
    for _ in range(2):
        node = DiskBookie(disk, SimClock(), metadata_of(written.cookie), SETTINGS)
        try:
            await node.boot()
        except (DamagedFile, ForeignDirectory) as error:
            named = path in str(error) or path.rpartition("/")[0] in str(error)
            verdicts.append(("refused" if named else f"{error} does not name {path}", None))
            continue
        verdicts.append(("runs", await answers(node, written)))
        assert node.failures == []
        await node.kill()
        disk = node.disk
    assert verdicts[0] == verdicts[1]
    verdict, _ = verdicts[0]
    assert verdict in ("refused", "runs")
    return verdict


async def answers(node: DiskBookie, written: Written) -> list[object]:
    """The bookie's answers for everything that was written; none of them may be wrong."""
    said: list[object] = []
    for ledger_id, first, batch in written.acked:
        try:
            answer = await node.bookie.read_batches(ledger_id, first, first, 1)
        except (EntryCorrupt, EntryUnknown) as error:
            said.append(error.wire_code)
        else:
            assert answer.batches == (batch,)
            said.append(0)
    for ledger_id, key, refusal in (
        *((ledger_id, b"", LedgerFenced.wire_code) for ledger_id in written.fenced),
        (DELETED, b"", NoSuchLedger.wire_code),
        (LOCKED, bytes(32), Unauthorized.wire_code),
    ):
        code = (await node.add(batch_of(50, ledger_id=ledger_id), key)).code
        assert code in (refusal, IN_DOUBT), ledger_id
        said.append(code)
    for ledger_id, lac in LACS.items():
        try:
            known = (await node.bookie.read_lac(ledger_id)).lac
        except EntryUnknown:
            said.append(IN_DOUBT)
        else:
            assert known == lac, f"the LAC of ledger {ledger_id} is forgotten in silence"
            said.append(known)
    return said


def survives(written: Written, path: str, damages: Iterator[SimDisk]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for number, disk in enumerate(sample(damages)):
        try:
            _, verdict = run_untraced(1, lambda _, disk=disk: holds(disk, written, path))
        except (AssertionError, StorageError) as error:
            error.add_note(f"damage number {number} of {path}")
            raise
        counts[verdict] = counts.get(verdict, 0) + 1
    return counts


def bits(written: Written, path: str) -> Iterator[SimDisk]:
    """Bits of a file flipped: a sample of them, or each in a full run."""
    for bit in sample(range(8 * len(written.disk.peek(path)))):
        disk = written.disk.fork()
        disk.rot.flip_bit(path, bit // 8, bit % 8)
        yield disk


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


def wrong_sectors(written: Written, path: str) -> Iterator[SimDisk]:
    """Every sector that is not all zero: zeroed, as it was before it was last written, and others in its place."""
    data = written.disk.peek(path)
    sectors = -(-len(data) // SECTOR_BYTES)
    others = [each for each in files(written.disk, path.rpartition("/")[0]) if each != path]
    for sector in range(sectors):
        if any(data[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES]):
            for damage in (
                lambda rot, at=sector: rot.zero_sector(path, at),
                lambda rot, at=sector: rot.stale_sector(path, at),
                lambda rot, at=sector: rot.copy_sector(path, at, path, (at + 8) % sectors),
                *(lambda rot, at=sector, other=other: rot.copy_sector(path, at, other, at) for other in others),
            ):
                disk = written.disk.fork()
                damage(disk.rot)
                if disk.peek(path) != data:
                    yield disk


def cut(written: Written, path: str, step: int) -> Iterator[SimDisk]:
    """The file cut at every ``step`` bytes, and missing."""
    for length in range(0, len(written.disk.peek(path)), step):
        disk = written.disk.fork()
        disk.rot.truncate(path, length)
        yield disk
    disk = written.disk.fork()
    disk.rot.remove(path)
    yield disk


def junk(written: Written, path: str) -> Iterator[SimDisk]:
    """Other contents altogether: nothing, zeros, more than there may be, another small file."""
    for content in (b"", bytes(4 * KIB), SeededRng(path).token(64 * KIB), written.disk.peek(f"{ROOT}/cookie")):
        disk = written.disk.fork()
        disk.rot.truncate(path, 0)
        disk.rot.overwrite(path, 0, content)
        if disk.peek(path) != written.disk.peek(path):
            yield disk


SMALL = ["/cookie", "/FORMAT", "/journal/cookie", "/ledgers/cookie"]


@pytest.mark.parametrize("name", SMALL)
def test_any_damage_to_a_file_of_the_identity_is_refused_and_named(written: Written, name: str) -> None:
    path = ROOT + name
    for damages in (bits(written, path), cut(written, path, 1), junk(written, path)):
        assert set(survives(written, path, damages)) == {"refused"}


def test_any_damage_to_the_cookie_of_the_index_costs_the_index_which_is_made_again(written: Written) -> None:
    path = f"{ROOT}/index/cookie"
    for damages in (bits(written, path), cut(written, path, 1), junk(written, path)):
        assert set(survives(written, path, damages)) == {"runs"}


def test_damage_to_the_lock_file_means_nothing(written: Written) -> None:
    path = f"{ROOT}/LOCK"
    for damages in (junk(written, path), cut(written, path, 1)):
        assert set(survives(written, path, damages)) == {"runs"}


def test_damage_to_the_note_of_the_scrub_means_nothing(written: Written) -> None:
    path = f"{ROOT}/scrub"
    assert written.disk.peek(path).startswith(b"tallybook scrub")
    for damages in (bits(written, path), cut(written, path, 1), junk(written, path)):
        assert set(survives(written, path, damages)) == {"runs"}


def test_damage_to_the_lengths_of_entry_logs_keeps_no_bookie_down(written: Written) -> None:
    path = f"{ROOT}/ledgers/lengths"
    for damages in (bits(written, path), cut(written, path, 1), junk(written, path)):
        assert set(survives(written, path, damages)) == {"runs"}


def test_damage_to_the_superblock_is_survived_by_its_twin_or_refused(written: Written) -> None:
    path = f"{ROOT}/journal/superblock"
    assert set(survives(written, path, flips(written, path, 1))) == {"runs"}
    survives(written, path, wrong_sectors(written, path))
    assert survives(written, path, cut(written, path, 64)).get("refused", 0) > 0
    assert set(survives(written, path, junk(written, path))) == {"refused"}


@pytest.mark.parametrize("slot", range(4))
def test_no_damage_to_a_journal_segment_makes_the_bookie_lie(written: Written, slot: int) -> None:
    path = f"{ROOT}/journal/segment-{slot:04d}"
    for damages in (flips(written, path, 32), wrong_sectors(written, path), cut(written, path, SECTOR_BYTES)):
        assert "refused" not in survives(written, path, damages), "a damaged journal does not keep a bookie down"


@pytest.mark.parametrize("stored", [True, False], ids=["after checkpoints", "before the first checkpoint"])
def test_a_journal_whose_files_are_all_gone_is_refused_with_any_other_files(written: Written, stored: bool) -> None:
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
        for damages in (flips(written, path, 32), wrong_sectors(written, path), cut(written, path, SECTOR_BYTES)):
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
    for damages in (bits(damaged, path), cut(damaged, path, 1), junk(damaged, path)):
        assert set(survives(damaged, path, damages)) == {"refused"}

"""A journal with bit rot, swapped files and lost writes: detected, or harmless under the stated assumptions.

For each damage, replayed records are records that were appended, byte for byte and in order; and missing ones lie in
blocks that the reported damage names. docs/understand/guarantees.md states the one exception: a damaged last block
that no later block confirms cannot be distinguished from a torn write, and is truncated.
"""

import hashlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.bookie.journal.format import (
    BLOCK_HEADER_BYTES,
    BatchRecord,
    DeleteRecord,
    ExplicitLacRecord,
    FenceRecord,
    JournalRecord,
    LedgerIdentityRecord,
    LedgerKeyRecord,
    decode_block_header,
    decode_records,
)
from tallybook.bookie.journal.journal import Journal, RecoveredJournal
from tallybook.bookie.journal.superblock import SLOT_BYTES, SUPERBLOCK_BYTES
from tallybook.bookie.journal.torn_tail import DamageKind, JournalDamage
from tallybook.core.errors import DamagedFile, DiskFailed
from tallybook.core.limits import BLOCK_BYTES, KIB
from tallybook.core.settings import JournalSettings
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import Tasks
from tallybook.sim.deterministic import SimClock, SimDisk, World, run_once

from ..sampling import SAMPLE, sample

DIRECTORY = "/journal"
SUPERBLOCK = "superblock"
SEGMENT_BYTES = 16 * KIB
SETTINGS = JournalSettings(segment_bytes=SEGMENT_BYTES, segment_count=4, max_commit_bytes=8 * KIB, seal_after_ms=50)
SILENCE_SECONDS = 0.2

Files = dict[str, bytes]


# -- a disk that only holds bytes, and coroutines that never wait: hundreds of recoveries a second ---------------


@dataclass
class StillFile:
    path: str
    data: bytes
    unreadable: range

    async def read(self, offset: int, size: int) -> bytes:
        if range(max(offset, self.unreadable.start), min(offset + size, self.unreadable.stop)):
            raise DiskFailed(f"cannot read {self.path}")
        return self.data[offset : offset + size]

    async def size(self) -> int:
        return len(self.data)

    async def close(self) -> None:
        pass


class StillDisk:
    """The part of a disk that recovery may use: it cannot write."""

    def __init__(self, files: Files, unreadable: tuple[str, range] = ("", range(0))) -> None:
        self.files = files
        self.unreadable = unreadable

    async def open(self, path: str, *, writable: bool = True) -> StillFile:
        assert not writable, "recovery reads only"
        name = path.removeprefix(f"{DIRECTORY}/")
        if name not in self.files:
            raise FileNotFoundError(path)
        return StillFile(path, self.files[name], self.unreadable[1] if name == self.unreadable[0] else range(0))

    async def list(self, directory: str) -> list[str]:
        assert directory == DIRECTORY
        return sorted(self.files)


def still(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("recovery waited")


def recover(disk: StillDisk) -> tuple[RecoveredJournal, list[JournalRecord]]:
    async def work() -> tuple[RecoveredJournal, list[JournalRecord]]:
        recovered = await Journal.recover(disk, DIRECTORY, SETTINGS, SeededRng(1))
        return recovered, [record async for record in recovered.records()]

    return still(work())


# -- journals to damage ------------------------------------------------------------------------------------------


@dataclass
class Image:
    """A stopped journal: its files, and the records of each live block, by block number."""

    files: Files
    blocks: dict[int, list[JournalRecord]]
    places: dict[int, tuple[str, int]]

    @property
    def records(self) -> list[JournalRecord]:
        return [record for block in sorted(self.blocks) for record in self.blocks[block]]

    @property
    def last(self) -> int:
        return max(self.blocks)

    def with_file(self, name: str, data: bytes | None) -> Files:
        files = {other: content for other, content in self.files.items() if other != name}
        return files if data is None else {**files, name: data}


def batch(number: int, size: int) -> BatchRecord:
    return BatchRecord(hashlib.shake_128(number.to_bytes(8, "big")).digest(size), recovery=number % 3 == 0)


SIZES = ((300,), (100, 50), (5000,), (300,), (20, 30, 40), (90, 10))
"""Six commits over three segments. The first is trimmed; those with several batches get other records, too."""


async def fill(journal: Journal, sizes_of_commits: tuple[tuple[int, ...], ...], *, seal: bool) -> None:
    number = 0
    for sizes in sizes_of_commits:
        for size in sizes:
            journal.append(batch(number, size), lambda: None)
            number += 1
        if len(sizes) > 1:
            journal.append(FenceRecord(number, bytes(range(32))), lambda: None)
            journal.append(ExplicitLacRecord(number, number - 1), lambda: None)
            journal.append(LedgerKeyRecord(number, bytes(range(32, 64))), lambda: None)
            journal.append(LedgerIdentityRecord(number, bytes(range(32, 64)), bytes(range(16))), lambda: None)
            journal.append(DeleteRecord(number), lambda: None)
        assert await journal.drained(1.0)
        if number == 1:
            await journal.trim(journal.durable_mark())
    if seal:
        await SimClock().sleep(SILENCE_SECONDS)


def make_image(
    *, seal: bool, earlier_laps: int = 0, sizes: tuple[tuple[int, ...], ...] = SIZES, instance: int = 1
) -> Image:
    """Run a journal and stop it as a crash would."""
    disk = SimDisk(SeededRng(0))

    async def scenario(_world: World) -> None:
        recovered = await Journal.recover(disk, DIRECTORY, SETTINGS, SeededRng(instance))
        journal = await recovered.start(SimClock(), Tasks("node", fatal), failed, on_space=lambda: None)
        for lap in range(earlier_laps):
            for number in range(4):
                journal.append(batch(1000 + 10 * lap + number, 6000), lambda: None)
                assert await journal.drained(1.0)
                await journal.trim(journal.durable_mark())
        await fill(journal, sizes, seal=seal)
        await journal.close(clean=False)

    run_once(0, scenario)
    names = disk.state.names(DIRECTORY)
    files = {name: disk.peek(f"{DIRECTORY}/{name}") for name in names}
    return describe(files)


def describe(files: Files) -> Image:
    """Find the live blocks without the code under test."""
    newest = max(files[SUPERBLOCK][:SLOT_BYTES], files[SUPERBLOCK][SLOT_BYTES:], key=lambda slot: slot[8:16][::-1])
    trim_segment, trim = int.from_bytes(newest[40:48], "little"), int.from_bytes(newest[48:56], "little")
    blocks, places = {}, {}
    for name in files:
        for offset in range(BLOCK_BYTES, len(files[name]), BLOCK_BYTES):
            header = decode_block_header(files[name][offset:])
            if name != SUPERBLOCK and header and header.segment >= trim_segment and header.block > trim:
                start = offset + BLOCK_HEADER_BYTES
                body = files[name][start : start + header.body_bytes]
                blocks[header.block] = list(decode_records(body, header.record_count))
                places[header.block] = (name, offset)
    return Image(files, blocks, places)


def fatal(task: str, error: BaseException) -> None:
    raise AssertionError(task) from error


def failed(error: Exception) -> None:
    raise AssertionError(str(error)) from error


SEALED = make_image(seal=True)
UNSEALED = make_image(seal=False)
LAPPED = make_image(seal=True, earlier_laps=2)


def lost_blocks(damage: tuple[JournalDamage, ...], image: Image) -> set[int]:
    lost: set[int] = set()
    for found in damage:
        if found.first_block is not None:
            last = image.last if found.last_block is None else found.last_block
            lost |= set(range(found.first_block, last + 1))
    return lost


def judge(image: Image, disk: StillDisk, *, may_cut_last: bool = False) -> RecoveredJournal:
    """Hold the rule at the head of this file."""
    recovered, records = recover(disk)
    gone = lost_blocks(recovered.damage, image)
    if may_cut_last:
        gone.add(image.last)
    at = 0
    for block in sorted(image.blocks):
        expected = image.blocks[block]
        if records[at : at + len(expected)] == expected:
            at += len(expected)
        else:
            assert block in gone, f"block {block} is missing, but the damage is {[str(d) for d in recovered.damage]}"
    assert at == len(records), "something was replayed that was not appended, or out of order"
    return recovered


def test_the_images_are_what_these_tests_need() -> None:
    assert len({place[0] for place in SEALED.places.values()}) == 3, "live blocks in three segments"
    assert SEALED.blocks[SEALED.last] == [], "a seal at the end"
    assert UNSEALED.blocks[UNSEALED.last] != [], "none at the end"
    assert LAPPED.places[LAPPED.last] != SEALED.places[SEALED.last] or LAPPED.last > SEALED.last
    for image in (SEALED, UNSEALED, LAPPED):
        recovered, records = recover(StillDisk(image.files))
        assert (recovered.damage, records) == ((), image.records)
        assert len(records) == 24
        assert {type(record) for record in records} == set(get_args(JournalRecord)), "every kind there is"


# -- J07, J16: flipped bits ----------------------------------------------------------------------------------------


def flips(image: Image) -> Iterator[tuple[str, int, int]]:
    """Every bit of every byte that means something, one bit in every eighth byte of the rest."""
    for name, data in image.files.items():
        meaning: list[range] = [range(116), range(SLOT_BYTES, SLOT_BYTES + 116)] if name == SUPERBLOCK else [range(56)]
        for place, offset in image.places.values():
            if place == name:
                header = decode_block_header(data[offset:])
                assert header is not None
                meaning.append(range(offset, offset + min(BLOCK_HEADER_BYTES + header.body_bytes, 300)))
        means = {at for part in meaning for at in part}
        for at in range(len(data)):
            for bit in range(8) if at in means else [at // 8 % 8] if at % 8 == 0 else []:
                yield name, at, bit


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def test_j07_every_flipped_bit_is_detected_or_harmless() -> None:
    detected = harmless = 0
    for name, at, bit in sample(flips(SEALED)):
        recovered = judge(SEALED, StillDisk(SEALED.with_file(name, flipped(SEALED.files[name], at, bit))))
        detected, harmless = detected + bool(recovered.damage), harmless + (not recovered.damage)
    assert detected > 10_000 // SAMPLE, "flips inside live bytes"
    assert harmless > 5_000 // SAMPLE, "flips in padding, in free space, in one slot of the superblock"


def test_j07_in_an_unsealed_journal_only_the_last_block_can_go_unnoticed() -> None:
    silent = 0
    for name, at, bit in sample(flips(UNSEALED)):
        files = UNSEALED.with_file(name, flipped(UNSEALED.files[name], at, bit))
        recovered = judge(UNSEALED, StillDisk(files), may_cut_last=True)
        if recovered.damage or recover(StillDisk(files))[1] == UNSEALED.records:
            continue
        silent += 1
        place, offset = UNSEALED.places[UNSEALED.last]
        assert name == place, "only the last block is cut"
        assert offset <= at < offset + BLOCK_BYTES, "only the last block is cut"
    assert silent, "the stated window exists"


def test_j16_damage_in_the_middle_is_named_and_replay_goes_on_behind_it() -> None:
    block = SEALED.last - 4
    name, offset = SEALED.places[block]
    files = SEALED.with_file(name, flipped(SEALED.files[name], offset + BLOCK_HEADER_BYTES + 9, 3))
    recovered, records = recover(StillDisk(files))
    assert recovered.damage == (JournalDamage(DamageKind.BLOCK, f"{DIRECTORY}/{name}", offset, block, block),)
    assert records == [
        record for number in sorted(SEALED.blocks) if number != block for record in SEALED.blocks[number]
    ]
    assert f"{DIRECTORY}/{name} at {offset}" in str(recovered.damage[0])


def test_j16_neither_a_damaged_header_nor_a_damaged_body_is_taken_for_the_tail() -> None:
    for block in sorted(SEALED.blocks)[:-1]:
        name, offset = SEALED.places[block]
        for at in (0, 10, 33, 45, 61, BLOCK_HEADER_BYTES + 3):
            recovered = judge(SEALED, StillDisk(SEALED.with_file(name, flipped(SEALED.files[name], offset + at, 0))))
            assert lost_blocks(recovered.damage, SEALED) == {block}


# -- J15: a torn group commit ---------------------------------------------------------------------------------------


def test_j15_a_torn_group_commit_is_cut_as_a_whole() -> None:
    image = make_image(seal=False, sizes=((10,), (2500, 1500, 2500)))
    name, offset = image.places[image.last]
    data = image.files[name]
    before = [record for block in sorted(image.blocks) if block != image.last for record in image.blocks[block]]
    assert len(image.blocks[image.last]) == 8
    sectors = range(offset, offset + 8 * KIB, 512)
    used = 128 + 2 * 2508 + 1508 + 48 + 24 + 48 + 64 + 16
    whole = cut = 0
    for start in sectors:
        for end in (start + 512, start + 2048, offset + 8 * KIB):
            for lost in (bytes(end - start), junk(end - start), LAPPED.files[name][start:end]):
                torn = (data[:start] + lost + data[end:])[: len(data)]
                recovered, records = recover(StillDisk(image.with_file(name, torn)))
                assert recovered.damage == ()
                assert records in (before, [*before, *image.blocks[image.last]]), "all of it or nothing"
                whole, cut = whole + (records != before), cut + (records == before)
                assert records == before or torn == data or start >= offset + used
    assert cut > 100
    assert whole, "where only the padding was torn"


# -- J22: truncated, empty, junk -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(SEALED.files) - {SUPERBLOCK}))
def test_j22_every_truncated_segment_is_named(name: str) -> None:
    live = {place for place, _ in SEALED.places.values()}
    for size in range(0, SEGMENT_BYTES, 3 if name in live else 48):
        recovered = judge(SEALED, StillDisk(SEALED.with_file(name, SEALED.files[name][:size])))
        named = {found.path for found in recovered.damage}
        assert named == {f"{DIRECTORY}/{name}"} or (name not in live and named <= {f"{DIRECTORY}/{name}"})


def test_j22_a_truncated_superblock_is_refused_or_its_other_slot_serves() -> None:
    for size in [*range(2 * SLOT_BYTES // 8), *range(SLOT_BYTES, SLOT_BYTES + 200), SUPERBLOCK_BYTES]:
        disk = StillDisk(SEALED.with_file(SUPERBLOCK, SEALED.files[SUPERBLOCK][:size]))
        if size < 116:
            with pytest.raises(DamagedFile, match=f"{DIRECTORY}/{SUPERBLOCK}"):
                recover(disk)
        else:
            assert judge(SEALED, disk).damage == ()


def junk(size: int) -> bytes:
    return hashlib.shake_128(b"junk").digest(size)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (None, DamageKind.MISSING),
        (b"", DamageKind.HEADER),
        (bytes(SEGMENT_BYTES), DamageKind.HEADER),
        (junk(SEGMENT_BYTES), DamageKind.HEADER),
        (junk(100), DamageKind.HEADER),
    ],
    ids=["missing", "empty", "all zero", "all junk", "short junk"],
)
def test_j22_a_segment_that_is_none_any_more_is_named(content: bytes | None, kind: DamageKind) -> None:
    for name in sorted({place for place, _ in SEALED.places.values()}):
        recovered = judge(SEALED, StillDisk(SEALED.with_file(name, content)))
        assert (kind, f"{DIRECTORY}/{name}") in {(found.kind, found.path) for found in recovered.damage}
        assert any(found.loses_records for found in recovered.damage)


def test_j22_the_last_segment_is_missed_even_if_nothing_comes_after_it() -> None:
    name, _ = SEALED.places[SEALED.last]
    first_lost = min(block for block, (place, _) in SEALED.places.items() if place == name)
    recovered, _ = recover(StillDisk(SEALED.with_file(name, None)))
    assert JournalDamage(DamageKind.MISSING, f"{DIRECTORY}/{name}", 0, first_lost, None) in recovered.damage


def test_j22_junk_behind_the_end_of_a_file_is_ignored() -> None:
    for name, data in SEALED.files.items():
        assert judge(SEALED, StillDisk(SEALED.with_file(name, data + junk(5000)))).damage == ()


def test_j22_an_all_junk_superblock_is_refused() -> None:
    for content in (b"", bytes(SUPERBLOCK_BYTES), junk(SUPERBLOCK_BYTES), junk(17)):
        with pytest.raises(DamagedFile, match=f"{DIRECTORY}/{SUPERBLOCK}.*offsets 0 and 4096"):
            recover(StillDisk(SEALED.with_file(SUPERBLOCK, content)))


def test_j22_segments_without_a_superblock_are_refused() -> None:
    with pytest.raises(DamagedFile, match=f"{DIRECTORY}/{SUPERBLOCK} is missing"):
        recover(StillDisk(SEALED.with_file(SUPERBLOCK, None)))


def test_j22_a_superblock_with_damaged_versions_is_refused() -> None:
    data = bytearray(SEALED.files[SUPERBLOCK])
    data[4] = data[SLOT_BYTES + 4] = 2
    with pytest.raises(DamagedFile, match="neither of its two slots"):
        recover(StillDisk(SEALED.with_file(SUPERBLOCK, bytes(data))))


def test_an_empty_directory_is_a_fresh_journal() -> None:
    recovered, records = recover(StillDisk({}))
    assert (recovered.fresh, recovered.clean, recovered.boot, recovered.damage, records) == (True, True, 1, (), [])


# -- files in the wrong place, sectors in the wrong place ----------------------------------------------------------


def test_swapped_segment_files_are_named_and_read_where_they_are() -> None:
    names = sorted({place for place, _ in SEALED.places.values()})
    for one in names:
        for other in names:
            if one < other:
                files = {**SEALED.files, one: SEALED.files[other], other: SEALED.files[one]}
                recovered, records = recover(StillDisk(files))
                assert {(found.kind, found.path) for found in recovered.damage} == {
                    (DamageKind.MISPLACED, f"{DIRECTORY}/{one}"),
                    (DamageKind.MISPLACED, f"{DIRECTORY}/{other}"),
                }
                assert records == SEALED.records
                assert not any(found.loses_records for found in recovered.damage)


def test_a_copy_of_another_segment_is_named() -> None:
    for name in sorted({place for place, _ in SEALED.places.values()}):
        for source in sorted(set(SEALED.files) - {SUPERBLOCK, name}):
            recovered = judge(SEALED, StillDisk(SEALED.with_file(name, SEALED.files[source])))
            assert (DamageKind.MISPLACED, f"{DIRECTORY}/{name}") in {(d.kind, d.path) for d in recovered.damage}


def test_a_segment_of_an_earlier_lap_is_named() -> None:
    for name in sorted({place for place, _ in LAPPED.places.values()}):
        recovered = judge(LAPPED, StillDisk(LAPPED.with_file(name, SEALED.files[name])))
        assert f"{DIRECTORY}/{name}" in {found.path for found in recovered.damage}


def test_j03_a_segment_of_another_journal_is_named() -> None:
    foreign = {name: data.replace(data[8:24], bytes(range(16))) for name, data in SEALED.files.items()}
    for name in sorted({place for place, _ in SEALED.places.values()}):
        recovered = judge(SEALED, StillDisk(SEALED.with_file(name, _resealed(foreign[name]))))
        assert (DamageKind.FOREIGN, f"{DIRECTORY}/{name}") in {(d.kind, d.path) for d in recovered.damage}


def test_j03_the_mark_of_another_journal_trims_nothing_in_silence() -> None:
    other = make_image(seal=True, earlier_laps=2, instance=2)
    recovered, records = recover(StillDisk(SEALED.with_file(SUPERBLOCK, other.files[SUPERBLOCK])))
    assert records == []
    assert {found.kind for found in recovered.damage} == {DamageKind.FOREIGN}
    assert any(found.loses_records for found in recovered.damage)


def test_j03_blocks_of_another_journal_in_the_unused_space_are_not_taken() -> None:
    """As after a journal was initialised again over old files: same segment and offset, the next block number."""
    ours = make_image(seal=True, sizes=SIZES[:-1])
    other = make_image(seal=True, sizes=SIZES, instance=2)
    name, offset = ours.places[ours.last]
    end = offset + BLOCK_BYTES
    assert other.places[ours.last + 1] == (name, end)
    recovered, records = recover(StillDisk(ours.with_file(name, ours.files[name][:end] + other.files[name][end:])))
    assert (recovered.damage, records) == ((), ours.records)


def test_a_block_in_another_place_of_its_segment_is_not_taken() -> None:
    name, offset = UNSEALED.places[UNSEALED.last]
    data = UNSEALED.files[name]
    block = data[offset : offset + BLOCK_BYTES]
    assert len(data) >= offset + 2 * BLOCK_BYTES
    moved = data[:offset] + bytes(BLOCK_BYTES) + block + data[offset + 2 * BLOCK_BYTES :]
    _, records = recover(StillDisk(UNSEALED.with_file(name, moved)))
    assert records == UNSEALED.records[: -len(UNSEALED.blocks[UNSEALED.last])]


def _resealed(segment: bytes) -> bytes:
    """Valid checksums for a segment whose instance was replaced."""
    from crc32c import crc32c  # noqa: PLC0415 - the only place that forges

    data = bytearray(segment)
    data[52:56] = crc32c(data[:52]).to_bytes(4, "little")
    for offset in range(BLOCK_BYTES, len(data), BLOCK_BYTES):
        if data[offset : offset + 4] == b"TJBK":
            data[offset + 124 : offset + 128] = crc32c(data[offset : offset + 124]).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize("unit_bytes", [512, BLOCK_BYTES])
def test_a_misdirected_or_lost_write_never_becomes_a_record(unit_bytes: int) -> None:
    """Any sector, or 4 KiB page, that holds what belongs to another place of any file."""
    places = [(name, at) for name, data in SEALED.files.items() for at in range(0, len(data), unit_bytes)]
    sources = places if unit_bytes == BLOCK_BYTES else places[::5]
    contents = {bytes(unit_bytes)} | {SEALED.files[name][at : at + unit_bytes] for name, at in sources}
    for name, at in places:
        data = SEALED.files[name]
        for content in sorted(contents):
            if content != data[at : at + unit_bytes]:
                try:
                    judge(SEALED, StillDisk(SEALED.with_file(name, data[:at] + content + data[at + unit_bytes :])))
                except DamagedFile:
                    raise AssertionError("one damaged place must not stop the boot") from None


def test_a_sector_the_device_cannot_read_is_damage_and_not_a_failed_boot() -> None:
    for name in sorted(set(SEALED.files) - {SUPERBLOCK}):
        for at in range(0, SEGMENT_BYTES, 512):
            recovered = judge(SEALED, StillDisk(SEALED.files, (name, range(at, at + 512))))
            assert all(found.path == f"{DIRECTORY}/{name}" for found in recovered.damage)
            inside = [
                block for block, place in SEALED.places.items() if place == (name, at // BLOCK_BYTES * BLOCK_BYTES)
            ]
            if inside and inside[0] != SEALED.last:
                assert recovered.damage


# -- many damages at once ------------------------------------------------------------------------------------------

damages = st.tuples(
    st.sampled_from(sorted(set(LAPPED.files) - {SUPERBLOCK})),
    st.sampled_from(["flip", "zero sector", "zero page", "junk page", "truncate", "remove", "copy"]),
    st.integers(0, SEGMENT_BYTES - 1),
    st.sampled_from(sorted(set(LAPPED.files) - {SUPERBLOCK})),
)


def apply(files: Files, damage: tuple[str, str, int, str]) -> Files:
    name, kind, at, other = damage
    data = files.get(name, b"")
    page = at // BLOCK_BYTES * BLOCK_BYTES
    sector = at // 512 * 512
    changed: dict[str, Callable[[], bytes]] = {
        "flip": lambda: flipped(data, at, at % 8) if at < len(data) else data,
        "zero sector": lambda: (data[:sector] + bytes(512) + data[sector + 512 :])[: len(data)],
        "zero page": lambda: (data[:page] + bytes(BLOCK_BYTES) + data[page + BLOCK_BYTES :])[: len(data)],
        "junk page": lambda: (data[:page] + junk(BLOCK_BYTES) + data[page + BLOCK_BYTES :])[: len(data)],
        "truncate": lambda: data[:at],
        "copy": lambda: files.get(other, b""),
    }
    rest = {other_name: content for other_name, content in files.items() if other_name != name}
    return rest if kind == "remove" else {**rest, name: changed[kind]()}


@given(st.lists(damages, min_size=1, max_size=4))
def test_several_damages_never_yield_wrong_bytes_or_a_failed_boot(several: list[tuple[str, str, int, str]]) -> None:
    files = LAPPED.files
    for damage in several:
        files = apply(files, damage)
    _, records = recover(StillDisk(files))
    remaining = iter(LAPPED.records)
    assert all(record in remaining for record in records), "a record that was not appended, or out of order"

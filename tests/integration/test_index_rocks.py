"""RocksDB as the index, with damage, a torn log and a full disk: never a wrong row, never a silent loss."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tallybook.bookie.storage.index import durable_mark as index_mark
from tallybook.bookie.storage.index import format as index_format
from tallybook.bookie.storage.index.format import encode_row, encode_state, row_key, state_key
from tallybook.bookie.storage.index.rocksdb import RocksIndex
from tallybook.bookie.storage.index.rocksdb_database import RocksDatabase
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.errors import DamagedFile, DiskFailed, DiskFull, EntryUnknown, NewerFormat, StorageError
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import MIB
from tallybook.runtime.disk.port import Space

from ..support.damage import flips
from ..support.rocks import rows_of, states_of
from .rocks_home import SETTINGS, Home, fill, filled, rocks_home, row, to_tables


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with rocks_home(tmp_path) as home:
        yield home


# -- the log --------------------------------------------------------------------------------


async def test_a_crash_leaves_a_prefix_of_whole_write_batches_of_the_unsynced_log(home):
    async with home.opened(create=True) as index:
        for number in range(5):
            await fill(index, number)
        await index.sync()
        synced_bytes = home.file("*.log").stat().st_size
        for number in range(5, 9):
            await fill(index, number)
        crashed = home.copy()
    whole = crashed.file("*.log").read_bytes()
    counts = set()
    for cut in range(synced_bytes, len(whole) + 1, 301):
        for tail in (b"", bytes(200), b"\xa5" * 200):
            torn = crashed.copy()
            torn.file("*.log").write_bytes(whole[:cut] + tail)
            async with torn.opened() as index:
                counts.add(await filled(index))
            shutil.rmtree(torn.root)
    assert counts == {5, 6, 7, 8}
    async with crashed.opened() as index:
        assert await filled(index) == 9


async def test_durable_changes_that_the_log_lost_are_noticed_wherever_it_is_damaged(home):
    async with home.opened(create=True) as index:
        for number in range(3):
            await fill(index, number)
        await index.sync()
        crashed = home.copy()
    whole = crashed.file("*.log").read_bytes()
    messages = set()
    for position in range(0, len(whole), 41):
        for damaged in (
            whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :],
            whole[:position],
            whole[:position] + bytes(len(whole) - position),
        ):
            torn = crashed.copy()
            torn.file("*.log").write_bytes(damaged)
            try:
                async with torn.opened() as index:
                    assert await filled(index) == 3, "durable changes were lost, and nobody noticed"
            except DamagedFile as error:
                messages.add(error.message.replace(str(torn.path), "INDEX"))
            shutil.rmtree(torn.root)
    assert messages
    assert all("the index in INDEX lost durable changes" in message for message in messages)


async def test_an_older_copy_put_back_in_place_of_the_index_is_noticed(home):
    async with home.opened(create=True) as index:
        await fill(index, 0)
        await index.sync()
        older = home.copy()
        await fill(index, 1)
        await index.sync()
    shutil.rmtree(home.database)
    shutil.copytree(older.database, home.database)
    with pytest.raises(DamagedFile, match="lost durable changes"):
        async with home.opened():
            pass


# -- missing and damaged files --------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.sst", "*.log"])
async def test_a_lost_file_of_the_database_is_an_error_that_names_the_index(home, pattern):
    async with home.opened(create=True) as index:
        await fill(index, 0)
        await index.sync()
        await to_tables(index)
        await fill(index, 1)
        await index.sync()
        crashed = home.copy()
    for file in crashed.database.glob(pattern):
        file.unlink()
    with pytest.raises(DamagedFile, match=str(crashed.path)):
        async with crashed.opened() as index:
            await index.find(1, 0)


async def test_a_database_that_vanished_is_not_made_anew_even_where_one_may_be_made(home):
    async with home.opened(create=True) as index:
        await fill(index, 0)
        await index.sync()
    shutil.rmtree(home.database)
    for create in (False, True):
        with pytest.raises(DamagedFile, match=str(home.path)):
            async with home.opened(create=create):
                pass
        assert not (home.database / "CURRENT").exists()


@pytest.mark.parametrize(
    "data", [b"", b"x", bytes(20), b"TIXM\x01\0\0\0\x05\0\0\0\0\0\0\0\0\0\0\0", b"x" * 4096, b"x" * 5000]
)
async def test_a_damaged_mark_is_an_error_that_names_it(home, data):
    async with home.opened(create=True):
        pass
    (home.path / "synced").write_bytes(data)
    with pytest.raises(DamagedFile, match="synced"):
        async with home.opened():
            pass


async def test_an_index_of_a_newer_version_is_named_as_such_and_left_as_it_is(home, monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr(index_mark, "_VERSION", 2)
        async with home.opened(create=True) as index:
            await fill(index, 0)
            await index.sync()
    before = {path: path.read_bytes() for path in sorted(home.path.rglob("*")) if path.is_file()}
    with pytest.raises(NewerFormat, match="synced is of format 2, this Tallybook knows 1"):
        async with home.opened():
            pass
    assert {path: path.read_bytes() for path in sorted(home.path.rglob("*")) if path.is_file()} == before
    monkeypatch.setattr(index_mark, "_VERSION", 2)
    async with home.opened() as index:
        assert await filled(index) == 1


async def test_rows_and_states_of_a_newer_version_are_no_damage(home, monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr(index_format, "VERSION", 2)
        newer.setattr(index_format, "_HEAD", bytes([2, 0, 0, 0]))
        async with home.opened(create=True) as index:
            await fill(index, 0)
    async with home.opened() as index:
        with pytest.raises(NewerFormat, match="the row of ledger 1 from entry 0 on is of format 2"):
            await index.find_range(1, 0, MAX_ID, 1000)
        with pytest.raises(NewerFormat, match="the state of ledger 1 is of format 2"):
            await index.load_state(1)


async def test_every_flipped_bit_of_the_mark_is_noticed_and_so_is_its_loss(home):
    async with home.opened(create=True):
        pass
    good = (home.path / "synced").read_bytes()
    for damaged in flips(good):
        (home.path / "synced").write_bytes(damaged)
        with pytest.raises(DamagedFile, match="synced"):
            async with home.opened():
                pass
    (home.path / "synced").unlink()
    with pytest.raises(DamagedFile, match=str(home.path)):
        async with home.opened():
            pass


@pytest.mark.parametrize("damage", ["empty", "garbage", "gone"])
async def test_what_the_binding_keeps_beside_the_database_does_not_matter(home, damage):
    async with home.opened(create=True) as index:
        await fill(index, 0)
        await index.sync()
    config = home.database / "rocksdict-config.json"
    if damage == "gone":
        config.unlink()
    else:
        config.write_bytes(b"" if damage == "empty" else b"{{{" * 100)
    async with home.opened() as index:
        assert await filled(index) == 1


async def test_rot_in_a_table_gives_the_right_row_or_unknown_and_never_absent(home):
    count = 40
    async with home.opened(create=True) as index:
        for number in range(count):
            await fill(index, number)
        await index.sync()
        await to_tables(index)
        crashed = home.copy()
    unknown = 0
    for table in crashed.database.glob("*.sst"):
        good = table.read_bytes()
        for position in range(0, len(good), 211):
            table.write_bytes(good[:position] + bytes([good[position] ^ 0x10]) + good[position + 1 :])
            unknown += await unknown_answers(crashed, count)
        table.write_bytes(good)
    assert unknown > 0
    assert await unknown_answers(crashed, count) == 0


async def unknown_answers(home: Home, count: int) -> int:
    """The number of reads of the index that failed; all others must be right."""
    unknown = 0
    try:
        async with home.opened() as index:
            for first in range(0, 100 * count, 130):
                try:
                    assert await index.find(1, first + 5) == row(1, first)
                except EntryUnknown:
                    unknown += 1
            try:
                assert await index.load_state(1) == b"%d" % count
                assert await index.last_entry(1) == 100 * count - 1
            except EntryUnknown:
                unknown += 1
    except DamagedFile:
        unknown += 1
    return unknown


# -- damaged rows ---------------------------------------------------------------------------


async def test_a_row_whose_bytes_changed_is_unknown_for_what_it_may_cover_and_for_nothing_else(home):
    async with home.opened(create=True) as index:
        await index.apply([row(1, 0), row(1, 10), row(1, 20)], {})
        key, value = encode_row(row(1, 10))
        for changed in flips(value):
            rows_of(index).put(key, changed)
            for entry_id in (10, 15, 19):
                with pytest.raises(EntryUnknown, match="ledger 1 from entry 10"):
                    await index.find(1, entry_id)
            assert await index.find(1, 9) == row(1, 0)
            assert await index.find(1, 20) == row(1, 20)
            with pytest.raises(EntryUnknown, match="ledger 1 from entry 10"):
                await index.known_among([row(1, 0), row(1, 10)])
            assert await index.known_among([row(1, 0), row(1, 20)]) == [row(1, 0), row(1, 20)]
        with pytest.raises(EntryUnknown):
            await index.find_range(1, 0, 100, 10)
        assert await index.last_entry(1) == 29


@pytest.mark.parametrize("value", [b"", b"\x01", encode_row(row(1, 10))[1][:-1], encode_row(row(1, 10))[1] + b"\0"])
async def test_a_row_of_another_length_is_unknown(home, value):
    async with home.opened(create=True) as index:
        rows_of(index).put(row_key(1, 10), value)
        with pytest.raises(EntryUnknown) as caught:
            await index.find(1, 10)
        assert isinstance(caught.value.__cause__, DamagedFile)
        with pytest.raises(EntryUnknown):
            await index.last_entry(1)


@pytest.mark.parametrize(("size", "offset"), [(0, 4096), (2**32 - 1, 4096), (500, -4096)])
async def test_a_row_that_leads_where_no_batch_can_be_is_unknown_although_its_checksum_fits(home, size, offset):
    async with home.opened(create=True) as index:
        await index.apply([row(1, 0), IndexRow(1, 10, Location(1, offset, size, 10)), row(1, 20)], {})
        with pytest.raises(EntryUnknown) as caught:
            await index.find(1, 10)
        assert isinstance(caught.value.__cause__, DamagedFile)
        assert await index.find(1, 20) == row(1, 20)


async def test_the_value_of_one_row_under_the_key_of_another_is_unknown(home):
    async with home.opened(create=True) as index:
        rows_of(index).put(row_key(1, 10), encode_row(row(1, 20))[1])
        rows_of(index).put(row_key(2, 20), encode_row(row(1, 20))[1])
        for ledger_id, entry_id in ((1, 10), (2, 20)):
            with pytest.raises(EntryUnknown):
                await index.find(ledger_id, entry_id)


async def test_the_end_of_a_ledger_is_reported_although_its_beginning_is_damaged(home):
    async with home.opened(create=True) as index:
        await index.apply([row(1, 10), row(1, 20)], {})
        rows_of(index).put(row_key(1, 0) + b"x", b"")
        assert await index.last_entry(1) == 29


async def test_a_key_that_is_no_key_is_unknown(home):
    async with home.opened(create=True) as index:
        rows_of(index).put(row_key(1, 10) + b"x", b"")
        for read in (lambda: index.find(1, 10**6), lambda: index.last_entry(1), lambda: index.ledger_ids(-1, 10)):
            with pytest.raises(EntryUnknown):
                await read()


async def test_a_state_whose_bytes_changed_is_unknown_and_says_that_it_is_damaged(home):
    key, value = encode_state(7, b"fenced")
    damaged = [value[:-1], value + b"\0", b"", value[:7], encode_state(8, b"fenced")[1], *flips(value)]
    async with home.opened(create=True) as index:
        states = states_of(index)
        for each in damaged:
            states.put(key, each)
            with pytest.raises(EntryUnknown, match="state of ledger 7") as caught:
                await index.load_state(7)
            assert isinstance(caught.value.__cause__, DamagedFile)
        states.put(key, value)
        assert await index.load_state(7) == b"fenced"
        assert state_key(7) == key


# -- a full or failing disk -----------------------------------------------------------------


async def test_a_full_disk_refuses_the_change_before_the_database_sees_it(home, monkeypatch):
    async def full(_path: str) -> Space:
        return Space(free_bytes=1000, total_bytes=10**9)

    async with home.opened(create=True) as index:
        await fill(index, 0)
        await index.sync()
        with monkeypatch.context() as patched:
            patched.setattr(home.disk, "space", full)
            for _ in range(2):
                with pytest.raises(DiskFull, match=str(home.path)):
                    await fill(index, 1)
            await index.sync()
            assert await filled(index) == 1
        await fill(index, 1)
        await index.sync()
        assert await filled(index) == 2


@pytest.mark.parametrize("free_mib", [40, 20])
async def test_a_change_that_makes_space_may_use_what_others_must_leave(home, monkeypatch, free_mib):
    async def short(_path: str) -> Space:
        return Space(free_bytes=free_mib * MIB, total_bytes=10**9)

    async with home.opened(create=True) as index:
        await fill(index, 0)
        await index.sync()
        monkeypatch.setattr(home.disk, "space", short)
        with pytest.raises(DiskFull):
            await fill(index, 1)
        if free_mib == 40:
            await index.apply((), {}, drop_ledgers=[7], frees_space=True)
        else:
            with pytest.raises(DiskFull):
                await index.apply((), {}, drop_ledgers=[7], frees_space=True)


async def test_no_room_for_the_mark_is_no_reason_to_fail_a_sync(home, monkeypatch):
    async def full(_path: str, _data: bytes) -> None:
        raise DiskFull("no space")

    async with home.opened(create=True) as index:
        await fill(index, 0)
        with monkeypatch.context() as patched:
            patched.setattr(home.disk, "replace_file", full)
            await index.sync()
        await index.sync()
        async with home.copy().opened() as crashed:
            assert await filled(crashed) == 1


@pytest.mark.parametrize("step", ["write", "flush_log", "mark"])
async def test_after_a_change_that_failed_there_is_no_other(home, monkeypatch, step):
    def fail(*_args: object) -> None:
        raise DiskFailed("IO error: Input/output error")

    async def fail_mark(*_args: object) -> None:
        raise DiskFailed("Input/output error")

    async with home.opened(create=True) as index:
        await fill(index, 0)
        await index.sync()
        with monkeypatch.context() as patched:
            if step == "mark":
                patched.setattr(home.disk, "replace_file", fail_mark)
            else:
                patched.setattr(RocksDatabase, step, fail)
            with pytest.raises(DiskFailed):
                await fill_and_sync(index, 1)
        with pytest.raises(DiskFailed, match="no more changes"):
            await fill(index, 1)
        with pytest.raises(DiskFailed, match="no more changes"):
            await index.sync()
        assert await index.find(1, 5) == row(1, 0)


@pytest.mark.parametrize("step", ["write", "flush_log"])
async def test_a_change_that_met_a_full_disk_is_made_again_when_there_is_space(home, monkeypatch, step):
    def full(*_args: object) -> None:
        raise DiskFull("IO error: No space left on device")

    async def exhausted(_path: str, _data: bytes) -> None:
        raise DiskFull("no space")

    async with home.opened(create=True) as index:
        await fill(index, 0)
        with monkeypatch.context() as patched:
            patched.setattr(RocksDatabase, step, full)
            with pytest.raises(DiskFull):
                await fill_and_sync(index, 1)
        with monkeypatch.context() as patched:
            patched.setattr(home.disk, "replace_file", exhausted)
            for _ in range(2):
                with pytest.raises(DiskFull):
                    await index.sync()
            assert await index.find(1, 5) == row(1, 0)
        await fill_and_sync(index, 1)
        crashed = home.copy()
    async with crashed.opened() as index:
        assert await filled(index) == 2


async def test_a_file_system_that_is_full_is_waited_for_and_nothing_is_lost(small):
    async with small.opened(create=True) as index:
        await fill(index, 0)
        await index.sync()
        await fill(index, 1)
        with full(small):
            met = await fill_until_full(index)
            for _ in range(2):
                with pytest.raises(DiskFull):
                    await index.apply(many(met), {})
                with pytest.raises(DiskFull):
                    await index.sync()
            assert await filled(index) == 2, "reads are answered"
        await index.sync()
        await index.apply(many(met), {})
        await index.sync()
        await whole(index, met)
    async with small.opened() as again:
        await whole(again, met)


async def test_an_index_on_a_full_file_system_is_closed_and_keeps_what_was_synced(small):
    index = await RocksIndex.open(small.disk, str(small.path), small.workers, SETTINGS, create=True)
    await fill(index, 0)
    await index.sync()
    with full(small):
        await fill_until_full(index)
        with suppress(DiskFull, DiskFailed):
            await index.close()
    async with small.opened() as again:
        assert await filled(again) == 1


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """An index on a small file system, where this process may mount one, that reports free space."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "none", place]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this process may not mount a file system")

    async def roomy(_path: str) -> Space:
        return Space(free_bytes=10**9, total_bytes=10**9)

    try:
        with rocks_home(place) as home:
            monkeypatch.setattr(home.disk, "space", roomy)
            yield home
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@contextmanager
def full(home: Home) -> Iterator[None]:
    """All space is used but for some pages."""
    filler = home.root / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(MIB))
    yield
    filler.unlink()


def many(ledger_id: int) -> list[IndexRow]:
    return [row(ledger_id, 10 * number) for number in range(500)]


async def fill_until_full(index: RocksIndex) -> int:
    """The ledger whose rows met the full disk; those from 2 on before it were taken."""
    for ledger_id in range(2, 1000):
        try:
            await index.apply(many(ledger_id), {})
        except DiskFull:
            return ledger_id
    return pytest.fail("the disk is never full")


async def whole(index: RocksIndex, last_ledger: int) -> None:
    assert await filled(index) == 2
    for ledger_id in range(2, last_ledger + 1):
        assert await index.find_range(ledger_id, 0, MAX_ID, 1000) == many(ledger_id)


async def fill_and_sync(index: RocksIndex, number: int) -> None:
    await fill(index, number)
    await index.sync()


async def test_errors_of_the_database_come_out_as_ours(home):
    async with home.opened(create=True):
        with pytest.raises(StorageError, match=str(home.path)):
            async with home.opened():
                pass

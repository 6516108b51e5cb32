"""The real disk: system errors, short calls, descriptors, threads, and kicks of the pump."""

import asyncio
import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from tallybook.core.errors import DirectoryInUse, DiskFailed, DiskFull, InvariantViolation, OutOfFiles
from tallybook.core.limits import BLOCK_BYTES, MIB
from tallybook.runtime.disk import os_calls as disk_os
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.disk.port import PlannedWrite
from tallybook.sim.deterministic import SimDisk

from ..support.waiting import until

DEADLINE_SECONDS = 20
BLOCK = b"x" * BLOCK_BYTES


@pytest.fixture
def disk() -> Iterator[RealDisk]:
    real = RealDisk()
    yield real
    asyncio.run(real.close())


@pytest.fixture
def buffered() -> Iterator[RealDisk]:
    real = RealDisk(direct=False)
    yield real
    asyncio.run(real.close())


def failing(code: int) -> Callable[..., None]:
    def fail(*_args: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="this system cannot read without waiting")
async def test_a_read_from_memory_returns_what_was_just_written(buffered, tmp_path):
    file = await buffered.open(str(tmp_path / "f"), create=True)
    await file.write(0, [b"x" * 10_000, b"abc"])
    probe = os.open(tmp_path / "f", os.O_RDONLY)
    try:
        os.preadv(probe, [bytearray(1)], 0, os.RWF_NOWAIT)
    except OSError as error:
        pytest.skip(f"this file system cannot read without waiting: {error}")
    finally:
        os.close(probe)
    assert file.read_cached(9_999, 3) == b"xab"
    await file.close()


async def test_a_read_from_memory_gives_up_where_it_would_wait(disk, tmp_path, monkeypatch):
    (tmp_path / "f").write_bytes(b"abc")
    file = await disk.open(str(tmp_path / "f"), writable=False)
    monkeypatch.setattr(os, "RWF_NOWAIT", 8, raising=False)
    monkeypatch.setattr(os, "preadv", failing(errno.EAGAIN))
    assert file.read_cached(1, 2) is None
    await file.close()


async def test_the_system_reads_no_further_in_a_file_that_is_read_exactly(disk, tmp_path, monkeypatch):
    advised: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, *what: advised.append(what), raising=False)
    (tmp_path / "f").write_bytes(b"abc")
    for exact in (False, True):
        file = await disk.open(str(tmp_path / "f"), writable=False, exact=exact)
        assert await file.read(1, 9) == b"bc"
        await file.close()
        assert advised == ([(0, 0, os.POSIX_FADV_RANDOM)] if exact else [])
    monkeypatch.setattr(os, "posix_fadvise", failing(errno.EINVAL), raising=False)
    await (await disk.open(str(tmp_path / "f"), exact=True)).close()


# -- errors of the system -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, DiskFailed)],
)
async def test_a_refused_write_says_why_and_where(buffered, tmp_path, monkeypatch, code, expected):
    file = await buffered.open(f"{tmp_path}/f", create=True)
    monkeypatch.setattr(os, "pwritev", failing(code))
    with pytest.raises(expected, match=f"write {tmp_path}/f") as caught:
        await file.write(0, [b"abc"])
    assert type(caught.value) is expected
    monkeypatch.undo()
    await file.write(0, [b"abc"])  # a refused write poisons nothing
    await file.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("durable", [False, True])
async def test_what_needs_a_file_too_many_is_not_begun_and_may_be_repeated(disk, tmp_path, monkeypatch, code, durable):
    await disk.replace_file(f"{tmp_path}/f", b"old")
    monkeypatch.setattr(os, "open", failing(code))
    for attempt in (
        disk.open(f"{tmp_path}/g", create=True, durable=durable),
        disk.open(f"{tmp_path}/g", create=True, direct=durable),
        disk.replace_file(f"{tmp_path}/f", b"new"),
        disk.read_file(f"{tmp_path}/f", 10),
        disk.sync_directory(str(tmp_path)),
        disk.make_directory(f"{tmp_path}/d"),
        disk.lock(str(tmp_path)),
    ):
        with pytest.raises(OutOfFiles, match=str(tmp_path)):
            await attempt
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["f"]
    assert await disk.read_file(f"{tmp_path}/f", 10) == b"old"
    await disk.replace_file(f"{tmp_path}/f", b"new")
    assert await disk.read_file(f"{tmp_path}/f", 10) == b"new"


async def test_a_replacement_takes_all_its_descriptors_before_it_changes_anything(disk, tmp_path, monkeypatch):
    """However many may still be opened, the file is the old one, or the new one without an error."""
    opened, real_open = [0], os.open
    for allowed in range(4):

        def open_few(*arguments: object, allowed: int = allowed, **more: object) -> int:
            opened[0] += 1
            if opened[0] > allowed:
                raise OSError(errno.EMFILE, "too many")
            return real_open(*arguments, **more)

        await disk.replace_file(f"{tmp_path}/f", b"old")
        opened[0] = 0
        monkeypatch.setattr(os, "open", open_few)
        try:
            await disk.replace_file(f"{tmp_path}/f", b"new")
        except OutOfFiles:
            expected = b"old"
        else:
            expected = b"new"
        monkeypatch.undo()
        assert (tmp_path / "f").read_bytes() == expected
    assert expected == b"new"


def refusing_direct(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A file system that accepts O_DIRECT at open, and refuses it at the first use."""
    real = getattr(os, name)

    def call(fd: int, *arguments: object) -> object:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(fd, *arguments)

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("pumped", [False, True])
async def test_direct_writes_that_are_refused_at_first_use_go_through_the_cache(
    disk, tmp_path, monkeypatch, caplog, pumped
):
    file = await disk.open(f"{tmp_path}/f", create=True, durable=True)
    if not file.direct:
        pytest.skip("there is no O_DIRECT here")
    synced: list[int] = []
    real_sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(fd) or real_sync(fd))
    for name in ("pwrite", "pwritev", "preadv"):
        refusing_direct(monkeypatch, name)
    for offset in (0, BLOCK_BYTES):
        if pumped:
            file.write_aligned(memoryview(BLOCK), offset)
        else:
            await file.write(offset, [BLOCK])
    assert len(synced) == 2
    assert not file.direct
    assert [record.getMessage() for record in caplog.records] == [
        "direct input and output refused, the page cache and syncs are used"
    ]
    assert await file.read(0, 3 * BLOCK_BYTES) == BLOCK * 2
    await file.close()


async def test_a_direct_write_refused_after_one_that_was_taken_is_a_failure(disk, tmp_path, monkeypatch):
    file = await disk.open(f"{tmp_path}/f", create=True, durable=True)
    if not file.direct:
        pytest.skip("there is no O_DIRECT here")
    await file.write(0, [BLOCK])
    refusing_direct(monkeypatch, "pwritev")
    for _ in range(2):
        with pytest.raises(DiskFailed):
            await file.write(0, [BLOCK])
    assert file.direct
    await file.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
async def test_a_failed_sync_poisons_the_file_for_every_handle(buffered, tmp_path, monkeypatch, code):
    file = await buffered.open(f"{tmp_path}/f", create=True)
    earlier = await buffered.open(f"{tmp_path}/f")
    other = await buffered.open(f"{tmp_path}/other", create=True)
    await file.write(0, [b"abc"])
    monkeypatch.setattr(disk_os, "flush", failing(code))
    with pytest.raises(DiskFailed, match="cannot sync"):
        await file.sync()
    monkeypatch.undo()
    later = await buffered.open(f"{tmp_path}/f")
    for handle in (file, earlier, later):
        for attempt in (handle.sync(), handle.read(0, 1), handle.write(0, [b"x"]), handle.size(), handle.truncate(0)):
            with pytest.raises(DiskFailed, match="an earlier sync failed"):
                await attempt
        await handle.close()
    await other.write(0, [b"fine"])
    await other.sync()
    await other.close()


async def test_a_failed_durable_write_poisons_the_file(disk, buffered, tmp_path, monkeypatch):
    direct = await disk.open(f"{tmp_path}/direct", create=True, durable=True)
    plain = await buffered.open(f"{tmp_path}/plain", create=True, durable=True)
    # Past the page cache the write itself is the sync; otherwise the sync that follows it is.
    monkeypatch.setattr(*((os, "pwritev") if direct.direct else (disk_os, "flush")), failing(errno.EIO))
    with pytest.raises(DiskFailed):
        await direct.write(0, [BLOCK])
    monkeypatch.undo()
    monkeypatch.setattr(disk_os, "flush", failing(errno.EIO))
    with pytest.raises(DiskFailed):
        await plain.write(0, [BLOCK])
    monkeypatch.undo()
    for file in (direct, plain):
        with pytest.raises(DiskFailed, match="an earlier sync failed"):
            await file.write(0, [BLOCK])
        await file.close()


async def test_a_failed_replacement_leaves_the_old_file_and_no_other(disk, tmp_path, monkeypatch):
    await disk.replace_file(f"{tmp_path}/f", b"old")
    for module, name in ((disk_os, "flush"), (os, "pwritev"), (os, "rename")):
        monkeypatch.setattr(module, name, failing(errno.ENOSPC))
        with pytest.raises(DiskFull, match="cannot replace"):
            await disk.replace_file(f"{tmp_path}/f", b"new")
        monkeypatch.undo()
    assert await disk.read_file(f"{tmp_path}/f", 10) == b"old"
    assert await disk.list(str(tmp_path)) == ["f"]


# -- system calls that do less than asked ---------------------------------------------------


async def test_short_writes_and_reads_are_continued(buffered, tmp_path, monkeypatch):
    real = os.pwritev

    def short(fd: int, views: list[memoryview], offset: int) -> int:
        return real(fd, [memoryview(b"".join(views))[:7]], offset)

    file = await buffered.open(f"{tmp_path}/f", create=True)
    monkeypatch.setattr(os, "pwritev", short)
    buffers = [b"abc", b"defghijklmnopq", b"r", b"stuvwxyz"]
    await file.write(3, buffers)
    monkeypatch.undo()
    real_read = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: real_read(fd, min(size, 7), offset))
    assert await file.read(0, 100) == bytes(3) + b"".join(buffers)
    await file.close()


# -- what stands in place of a file ---------------------------------------------------------


async def test_a_fifo_in_place_of_a_file_is_refused_and_does_not_hang(disk, tmp_path):
    os.mkfifo(tmp_path / "f")
    for writable in (True, False):
        with pytest.raises(DiskFailed):
            async with asyncio.timeout(DEADLINE_SECONDS):
                await disk.open(f"{tmp_path}/f", writable=writable)


async def test_where_direct_access_is_refused_a_durable_file_is_synced_instead(disk, tmp_path, monkeypatch):
    real_open, flushed = os.open, []

    def refusing(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setattr(disk_os, "flush", flushed.append)
    file = await disk.open(f"{tmp_path}/f", create=True, durable=True)
    assert not file.direct
    await file.write(0, [BLOCK])
    assert len(flushed) == 1
    source = Source()
    source.writes = [PlannedWrite(file, 0, disk.buffer(BLOCK_BYTES), number) for number in range(5)]
    pump = disk.pump(source, name="test")
    await until(lambda: len(source.finished) == 5)
    assert len(flushed) == 6
    await pump.close()
    await file.close()


async def test_direct_access_is_used_where_the_file_system_has_it(disk, tmp_path):
    probe = tmp_path / "probe"
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600))
        expected = True
    except OSError:
        expected = False
    file = await disk.open(f"{tmp_path}/f", create=True, durable=True)
    assert file.direct is expected
    await file.close()
    plain = await disk.open(f"{tmp_path}/f")
    assert not plain.direct
    await plain.close()


async def test_files_belong_to_their_owner_alone(disk, tmp_path):
    await disk.make_directory(f"{tmp_path}/data/journal")
    await (await disk.open(f"{tmp_path}/data/f", create=True)).close()
    await disk.replace_file(f"{tmp_path}/data/g", b"secret")
    for name, mode in (("data", 0o700), ("data/journal", 0o700), ("data/f", 0o600), ("data/g", 0o600)):
        assert (tmp_path / name).stat().st_mode & 0o777 == mode


# -- descriptors, locks and threads ---------------------------------------------------------


async def test_a_close_during_an_operation_waits_for_its_end(buffered, tmp_path, monkeypatch):
    started, go_on = threading.Event(), threading.Event()
    real = os.pwritev

    def slow(fd: int, views: list[memoryview], offset: int) -> int:
        started.set()
        go_on.wait(DEADLINE_SECONDS)
        return real(fd, views, offset)

    file = await buffered.open(f"{tmp_path}/f", create=True)
    before = descriptors()
    monkeypatch.setattr(os, "pwritev", slow)
    writing = asyncio.ensure_future(file.write(0, [b"late"]))
    await until(started.is_set)
    await file.close()
    assert descriptors() == before  # still open: the write below must not reach another file
    go_on.set()
    await writing
    assert descriptors() == before - 1
    assert (tmp_path / "f").read_bytes() == b"late"


async def test_a_cancelled_open_or_lock_leaks_no_descriptor(disk, tmp_path, monkeypatch):
    started, go_on = threading.Event(), threading.Event()
    real, opened = disk_os.open_file, list[int]()

    def slow(path: str, flags: int) -> int:
        started.set()
        go_on.wait(DEADLINE_SECONDS)
        opened.append(real(path, flags))
        return opened[-1]

    before = descriptors()
    monkeypatch.setattr(disk_os, "open_file", slow)
    for make in (lambda: disk.open(f"{tmp_path}/f", create=True), lambda: disk.lock(str(tmp_path))):
        started.clear()
        go_on.clear()
        task = asyncio.ensure_future(make())
        await until(started.is_set)
        task.cancel()
        await asyncio.wait([task])
        go_on.set()
        assert task.cancelled()
    await until(lambda: len(opened) == 2 and descriptors() == before)
    monkeypatch.undo()
    await (await disk.lock(str(tmp_path))).release()


async def test_a_lock_dies_with_its_process(disk, tmp_path):
    code = (
        "import asyncio, sys\n"
        "from tallybook.runtime.disk.os_disk import RealDisk\n"
        "async def main():\n"
        "    await RealDisk().lock(sys.argv[1])\n"
        "    print('locked', flush=True)\n"
        "    sys.stdin.read()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(  # noqa: ASYNC220 - it is started once, and killed
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(DirectoryInUse):
            await disk.lock(str(tmp_path))
        holder.kill()
        holder.wait(DEADLINE_SECONDS)
    await (await disk.lock(str(tmp_path))).release()


async def test_a_slow_sync_holds_up_no_read(buffered, tmp_path, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr(disk_os, "flush", lambda _fd: go_on.wait(DEADLINE_SECONDS))
    file = await buffered.open(f"{tmp_path}/f", create=True)
    await file.write(0, [b"abc"])
    syncs = [asyncio.ensure_future(file.sync()) for _ in range(5)]
    assert await file.read(0, 3) == b"abc"
    go_on.set()
    await asyncio.gather(*syncs)
    await file.close()


async def test_closing_the_disk_ends_its_threads_after_what_they_do(tmp_path):
    disk = RealDisk(direct=False)
    file = await disk.open(f"{tmp_path}/f", create=True)
    writing = asyncio.ensure_future(file.write(0, [bytes(MIB)] * 20))
    await asyncio.sleep(0)
    await disk.close()
    await writing
    await file.close()
    assert (tmp_path / "f").stat().st_size == 20 * MIB
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("disk-")]


# -- the pump -------------------------------------------------------------------------------


class Source:
    """A source whose ``take`` the test can hold up, before and after it knows its answer."""

    def __init__(self) -> None:
        self.writes: list[PlannedWrite] = []
        self.finished: list[object] = []
        self.errors: list[Exception] = []
        self.takes = 0
        self.before_take: Callable[[], None] = lambda: None
        self.after_take: Callable[[], None] = lambda: None

    def take(self) -> PlannedWrite | None:
        self.takes += 1
        self.before_take()
        write = self.writes.pop(0) if self.writes else None
        self.after_take()
        return write

    def done(self, write: PlannedWrite) -> None:
        self.finished.append(write.token)

    def failed(self, write: PlannedWrite | None, error: Exception) -> None:
        self.errors.append(error)


@pytest.mark.parametrize("look", [1, 2])
async def test_a_kick_after_the_pump_has_looked_and_before_it_sleeps_is_not_lost(disk, tmp_path, look):
    """It looks twice before it sleeps. Work that arrives right after either look must be written all the same."""
    file = await disk.open(f"{tmp_path}/f", create=True, durable=True)
    loop, source, kicked = asyncio.get_running_loop(), Source(), threading.Event()

    def add_and_kick() -> None:
        source.writes.append(PlannedWrite(file, 0, disk.buffer(BLOCK_BYTES), "late"))
        pump.kick()
        kicked.set()

    def after_take() -> None:
        if source.takes == look:
            loop.call_soon_threadsafe(add_and_kick)
            kicked.wait(DEADLINE_SECONDS)

    source.after_take = after_take
    pump = disk.pump(source, name="test")
    await until(lambda: source.finished == ["late"])
    await pump.close()
    await file.close()


async def test_a_kick_that_came_too_late_for_one_sleep_does_not_disturb_the_next(disk, tmp_path):
    file = await disk.open(f"{tmp_path}/f", create=True, durable=True)
    loop, source = asyncio.get_running_loop(), Source()

    def add_and_kick(kicked: threading.Event) -> None:
        source.writes.append(PlannedWrite(file, 0, disk.buffer(BLOCK_BYTES), source.takes))
        pump.kick()
        kicked.set()

    def at_look(look: int) -> None:
        if source.takes == look:
            kicked = threading.Event()
            loop.call_soon_threadsafe(add_and_kick, kicked)
            kicked.wait(DEADLINE_SECONDS)

    # At the second look it is about to sleep, and finds the work it is being kicked for: that kick is left over.
    # The fourth look is the second one of its next sleep.
    source.before_take, source.after_take = lambda: at_look(2), lambda: at_look(4)
    pump = disk.pump(source, name="test")
    await until(lambda: source.finished == [2, 4])
    await pump.close()
    await file.close()


async def test_a_file_of_another_disk_is_a_failure_of_the_pump(disk):
    other = await SimDisk().open("/f", create=True, durable=True)
    source = Source()
    source.writes = [PlannedWrite(other, 0, disk.buffer(BLOCK_BYTES), "foreign")]
    pump = disk.pump(source, name="test")
    await until(lambda: bool(source.errors))
    assert isinstance(source.errors[0], InvariantViolation)
    await pump.close()


async def test_a_pump_whose_sync_fails_stops_and_reports_it(buffered, tmp_path, monkeypatch):
    monkeypatch.setattr(disk_os, "flush", failing(errno.EIO))
    file = await buffered.open(f"{tmp_path}/f", create=True, durable=True)
    source = Source()
    source.writes = [PlannedWrite(file, 0, buffered.buffer(BLOCK_BYTES), number) for number in range(5)]
    pump = buffered.pump(source, name="test")
    await until(lambda: bool(source.errors))
    await pump.close()
    assert len(source.writes) == 4
    assert source.finished == []
    assert isinstance(source.errors[0], DiskFailed)
    await file.close()

"""A bookie with files that it did not write: links, FIFOs, odd names, sizes and times, and very many of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallybook.bookie.scrub import scrubber as scrub
from tallybook.bookie.storage.text_record import encode_record
from tallybook.core.add_kind import AddKind
from tallybook.core.batch import encode_batch
from tallybook.core.errors import OK_CODE, EntryAbsent, ForeignDirectory, TallybookError
from tallybook.core.limits import MIB
from tallybook.sim.stage.disk_bookie import KnownMetadata

from ..support.real_bookie import RealBookie, real_bookie

DEADLINE_SECONDS = 20
STRANGERS = 100_000
TIB = 1 << 40
FUTURE = 4_102_444_800  # the year 2100
FILES = (
    "LOCK",
    "FORMAT",
    "cookie",
    "journal/cookie",
    "ledgers/cookie",
    "index/cookie",
    "limbo",
    "scrub",
    "a log",
    "ledgers/lengths",
    "index/synced",
    "journal/superblock",
    "journal/segment-0000",
)
"""Files that are replaced by something else, in turn."""


def batch(first: int) -> bytes:
    return encode_batch(1, first, [b"x" * 1000], lac=-1, ledger_length=10**9, written_at_us=0)


async def added(made: RealBookie, first: int) -> None:
    """Have a batch made durable."""
    answered = asyncio.get_running_loop().create_future()
    made.bookie.add(batch(first), b"", answered.set_result, kind=AddKind.RECOVERY)
    assert (await answered).code == OK_CODE


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a bookie that was stopped, beside its registered cookie."""
    root = tmp_path_factory.mktemp("written") / "data"
    metadata = KnownMetadata()

    async def work() -> None:
        async with real_bookie(str(root), metadata, pytest.fail) as made:
            for first in range(3):
                await added(made, first)
            await made.bookie.flush()

    asyncio.run(work())
    # As a scrub leaves it that was in the midst of its round.
    (root / "scrub").write_bytes(encode_record(scrub.KIND, scrub.VERSION, {"after": "1"}))
    (root.parent / "registered").write_bytes(metadata.cookies["b1"])
    return root


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Iterator[Path]:
    """One that a test may spoil."""
    root = tmp_path / "data"
    shutil.copytree(written, root)
    yield root
    shutil.rmtree(tmp_path)


async def all_of(made: RealBookie) -> list[bytes]:
    """The whole ledger; an error where its rest is not to be had."""
    found: list[bytes] = []
    while len(found) < len(WHOLE):
        page = (await made.bookie.read_batches(1, len(found), 9, MIB)).batches
        assert page, "an answer without a batch"
        found += map(bytes, page)
    return found


async def started(root: Path, written: Path) -> list[bytes]:
    """The entries that the bookie in ``root`` serves; it starts and stops cleanly within a time limit."""
    metadata = KnownMetadata(cookies={"b1": (written.parent / "registered").read_bytes()})
    async with asyncio.timeout(DEADLINE_SECONDS), real_bookie(str(root), metadata, pytest.fail) as made:
        try:
            await added(made, 3)
            return await all_of(made)
        except TallybookError as error:
            # The bookie is to stop before it is raised.
            refused = error
    raise refused


WHOLE = [batch(first) for first in range(4)]


def replace(path: Path, kind: str) -> None:
    """Put what is no file in the place of one."""
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(path.name if kind == "link to itself" else "nothing-there")


@contextlib.contextmanager
def refused_or_served() -> Iterator[None]:
    """Anything but "there is no such entry": a recovery would take that for the end of the ledger."""
    try:
        yield
    except EntryAbsent as error:
        pytest.fail(f"what was acked is called absent: {error}")
    except TallybookError:
        pass


def path_of(root: Path, name: str) -> Path:
    if name == "a log":
        return max((root / "ledgers").glob("*.log"), key=lambda path: path.stat().st_size)
    return root / name


@pytest.mark.parametrize("kind", ["fifo", "directory", "link to nothing", "link to itself"])
@pytest.mark.parametrize("name", FILES)
async def test_what_is_no_file_in_place_of_one_serves_nothing_wrong_and_is_not_waited_for(copy, written, name, kind):
    path = path_of(copy, name)
    path.unlink()
    replace(path, kind)
    with refused_or_served():
        assert await started(copy, written) == WHOLE


def test_what_is_no_file_in_place_of_the_run_file_gives_way_or_is_refused(start_bookie, cli, tmp_path):
    run_file = tmp_path / "data" / "run.json"
    run_file.parent.mkdir()

    def life(kind: str) -> int:
        bookie = start_bookie(tmp_path / "data", "b1", f"sqlite://{tmp_path}/metadata.db")
        try:
            if kind != "directory":
                cli.wait_until(lambda: not_special(run_file) and bookie.ready(), f"it is ready, with a {kind} there")
                bookie.process.terminate()
            bookie.process.join(cli.patience)
            return bookie.process.exitcode
        finally:
            bookie.kill()

    assert life("nothing") == 0
    for kind in ("fifo", "link to nothing", "link to itself", "directory"):
        replace(run_file, kind)
        assert life(kind) == (3 if kind == "directory" else 0), kind


def not_special(path: Path) -> bool:
    """Whether it can be opened without blocking."""
    return path.is_file() and not path.is_symlink()


async def test_parts_that_are_links_to_elsewhere_are_the_parts(copy, written, tmp_path):
    for part in ("journal", "ledgers", "index"):
        (copy / part).rename(tmp_path / part)
        (copy / part).symlink_to(tmp_path / part)
    assert await started(copy, written) == WHOLE


async def test_the_data_directory_may_not_be_a_file_or_a_fifo(written, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "fifo")
    for name in ("file", "fifo"):
        with pytest.raises(TallybookError, match=name):
            await started(tmp_path / name, written)


def fill(folder: bytes) -> None:
    """Very many names, which are no text; a file may have some ten thousand of them."""
    for number in range(STRANGERS):
        first = b"%s/stranger-%d" % (folder, number // 50_000)
        if number % 50_000 == 0:
            Path(os.fsdecode(first)).write_bytes(b"")
        os.link(first, b"%s/\xff\xfe-%06d" % (folder, number))


async def test_very_many_files_of_others_names_that_are_no_text_among_them_cost_little_and_stay(copy, written):
    ledgers = os.fsencode(copy / "ledgers")
    fill(ledgers)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert await started(copy, written) == WHOLE
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 128 * MIB
    assert len(os.listdir(ledgers)) > STRANGERS


@pytest.mark.parametrize("name", FILES)
async def test_a_file_that_says_it_has_a_tebibyte_is_served_or_refused_and_never_read_through(copy, written, name):
    path = path_of(copy, name)
    os.truncate(path, TIB)
    with contextlib.nullcontext() if name in {"LOCK", "a log"} else refused_or_served():
        assert await started(copy, written) == WHOLE


async def test_times_in_the_future_mean_nothing(copy, written):
    for path in [copy, *copy.rglob("*")]:
        os.utime(path, (FUTURE, FUTURE))
    assert await started(copy, written) == WHOLE


async def test_the_cookie_of_another_cluster_is_refused_and_nothing_is_changed(copy, written):
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file() and "index" not in path.parts}
    metadata = KnownMetadata(cookies={"b1": (written.parent / "registered").read_bytes()}, cluster="cluster-b")
    with pytest.raises(ForeignDirectory, match="cluster"):
        async with real_bookie(str(copy), metadata, pytest.fail):
            pass
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("which", ["data", "ledgers"])
def test_a_bookie_refuses_a_world_writable_directory_and_says_what_to_do(cli, tmp_path, which):
    places = {"data": tmp_path / "the data", "ledgers": tmp_path / "ledgers"}
    for name, directory in places.items():
        directory.mkdir()
        directory.chmod(0o777 if name == which else 0o775)
    words = ["bookie", "run", "--data", places["data"], "--id", "b1", "--metadata", f"sqlite://{tmp_path}/metadata.db"]
    found = cli.run(*words, f"--set=ledger_directories={places['ledgers']}", "--json", *cli.small)
    assert found.code == 3
    told = f"every user of this machine may put files into {places[which]}: chmod o-w"
    assert told in found.last_words["message"]
    assert list(places[which].iterdir()) == []

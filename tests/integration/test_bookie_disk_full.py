"""A bookie whose disk fills up under load, and gets space again."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SETTINGS = [
    "--set", "journal.segment_bytes=4MiB", "--set", "journal.segment_count=4",
    "--set", "storage.write_cache_bytes=8MiB", "--set", "storage.flush_interval_ms=500",
    "--set", "storage.min_free_bytes=1MiB", "--log-level", "error",
]  # fmt: skip
LINES = b"".join(b"%06d" % number + b"." * 994 + b"\n" for number in range(60_000))


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A small file system of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=192m", "none", place]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("this process may not mount a file system")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(file: Path) -> None:
    """Fill all the space there is."""
    with file.open("wb", buffering=0) as filler:
        for size in (1 << 20, 4096):
            try:
                while True:
                    filler.write(bytes(size))
            except OSError:
                continue


def test_a_bookie_does_not_start_with_less_free_space_than_its_minimum(cli, tmp_path):
    with cli.up(tmp_path / "data", bookies=1) as running:
        running.stop()
    again = cli.run("up", "--data", tmp_path / "data", "--set", "storage.min_free_bytes=1000TB", "--json")
    assert (again.code, again.error["type"]) == (3, "DiskFull")


def test_j17_j27_a_full_disk_makes_a_bookie_read_only_loses_nothing_and_ends_when_there_is_space(cli, disk, tmp_path):
    metadata = f"sqlite:///{tmp_path}/metadata.db"
    bookie = cli.start("bookie", "run", "--data", disk / "b1", "--id", "b1", "--metadata", metadata, *SETTINGS)
    try:
        cli.wait_until((disk / "b1" / "run.json").exists, "the bookie is ready")
        play(lambda *words, **more: cli.run(*words, TALLYBOOK_METADATA=metadata, **more), cli.wait_until, disk)
    finally:
        bookie.terminate()
        assert bookie.wait(cli.patience) == 0


def play(run, wait_until, disk: Path) -> None:
    """Fill the disk, write, recover, free space, write again."""

    def mode() -> str:
        return run("bookie", "info", "b1", "--json").json["mode"]

    def create() -> int:
        return run("ledger", "create", "--ensemble", 1, "--json").json["ledger_id"]

    before, during = create(), create()
    assert run("ledger", "append", before, "--close", stdin=LINES[:100_100]).code == 0
    fill(disk / "filler")
    refused = run("ledger", "append", during, "--json", stdin=LINES)
    assert (refused.code, refused.error["fault"]) == (5, "peer")
    assert refused.error["message"].endswith("no ack quorum without b1 (BookieReadOnly)")
    confirmed = refused.json["entries"]
    assert mode() == "read_only"

    # Reads, fences and recovery work on a full disk, and everything that was confirmed is there.
    assert run("ledger", "read", before).out == LINES[:100_100]
    recovered = run("ledger", "recover", during, "--json").json["entries"]
    assert recovered >= confirmed
    assert run("ledger", "read", during).out == LINES[: recovered * 1001]

    (disk / "filler").unlink()
    wait_until(lambda: mode() == "writable", "there is room again")
    after = create()
    assert run("ledger", "append", after, "--close", stdin=LINES).code == 0
    assert run("ledger", "read", after).out == LINES

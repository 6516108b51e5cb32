"""The clock of the host since boot, and directories made for files of other libraries."""

import os
import sys
import threading
import time

import pytest

from tallybook.core.errors import DiskFailed
from tallybook.runtime.boot_clock import RealBootClock
from tallybook.runtime.disk.directories import (
    file_bytes,
    make_parent,
    other_writer,
    refuse_foreign_writers,
    remove_other_access,
)


def test_every_process_reads_the_same_clock_of_the_same_boot():
    one, other = RealBootClock(), RealBootClock()
    assert one.boot_id == other.boot_id
    assert abs(one.now_ms() - other.now_ms()) < 1_000
    if sys.platform == "linux":
        assert abs(one.now_ms() - time.clock_gettime(time.CLOCK_BOOTTIME) * 1000) < 1_000
    assert (len(one.boot_id) == 36) == (sys.platform == "linux")


def test_missing_directories_are_made_and_existing_ones_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("./a/file", "file", str(tmp_path / "a" / "b" / "file")):
        make_parent(path)
        make_parent(path)
    assert os.listdir(tmp_path) == ["a"]
    assert os.listdir(tmp_path / "a") == ["b"]
    (tmp_path / "file").write_bytes(b"abc")
    assert [file_bytes(str(tmp_path / name)) for name in ("file", "missing", ".")] == [3, 0, 0]
    with pytest.raises(DiskFailed, match=r"the directory .*/file/below cannot be created"):
        make_parent(str(tmp_path / "file" / "below" / "x"))


def test_files_created_and_removed_between_two_scans_are_listed_or_not(tmp_path):
    path, ended = tmp_path / "metadata.db", threading.Event()
    beside = tmp_path / "metadata.db-journal"

    def come_and_go():
        while not ended.is_set():
            beside.touch(0o604)
            beside.unlink()

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        seen = set()
        for _ in range(20_000):
            refuse_foreign_writers(str(path), ("-journal",))
            seen.add(remove_other_access(str(beside)))
            file_bytes(str(beside))
        assert seen == {True, False}
    finally:
        ended.set()
        other.join()


def test_a_directory_is_open_if_others_may_make_files_in_it(tmp_path):
    found = set()
    for mode in (0o700, 0o755, 0o770, 0o775, 0o702, 0o777, 0o1777):
        place = tmp_path / oct(mode)
        place.mkdir()
        place.chmod(mode)
        if other_writer(str(place)):
            found.add(mode)
    assert found == {0o702, 0o777, 0o1777}
    assert not other_writer(str(tmp_path / "none"))


OTHER = 12_345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@as_root
@pytest.mark.parametrize(
    ("owner", "group", "mode", "who"),
    [
        (OTHER, OTHER, 0o700, f"user {OTHER}"),
        (0, OTHER, 0o2770, f"group {OTHER}"),
        (0, OTHER, 0o2750, ""),
        (0, 0, 0o2770, ""),
    ],
)
def test_a_directory_of_another_user_or_that_another_group_may_write_is_open(tmp_path, owner, group, mode, who):
    os.chown(tmp_path, owner, group)
    tmp_path.chmod(mode)
    assert other_writer(str(tmp_path)) == who


@as_root
def test_a_volume_that_the_group_of_this_process_may_write_is_not_open(tmp_path, monkeypatch):
    os.chown(tmp_path, 0, OTHER)
    tmp_path.chmod(0o2775)
    monkeypatch.setattr("os.getgroups", lambda: [OTHER])
    monkeypatch.setattr("os.geteuid", lambda: 10_001)
    assert other_writer(str(tmp_path)) == ""

"""The key file of an archive: checked when read, reloaded while a process runs, and never shown."""

import base64
import json
import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tallybook.core.errors import InvalidArgument, InvalidConfig, NewerFormat
from tallybook.runtime.security.archive_keys import (
    ArchiveKeyFile,
    add_key,
    drop_key,
    parse_archive_keys,
    read_keys,
    set_plain_policy,
)
from tallybook.runtime.security.file_replacement import update_lock
from tallybook.runtime.security.process_security import RELOAD_SECONDS
from tallybook.runtime.tasks import InlineWorkers
from tallybook.sim.deterministic import SimClock

SECRET = base64.b64encode(b"s" * 32).decode()
GOOD = {"format": 1, "current": "k1", "plain": "read", "keys": {"k1": SECRET}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    add_key(tmp_path / "keys.json")
    return tmp_path / "keys.json"


class Time(SimClock):
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_new_file_is_its_owners_alone_and_has_one_key(path):
    assert path.stat().st_mode & 0o777 == 0o600
    found = read_keys(path)
    assert list(found.keys) == [found.current]
    assert found.reads_plain


def test_a_world_readable_file_is_refused(path):
    path.chmod(0o644)
    with pytest.raises(InvalidConfig, match="chmod o-rwx"):
        read_keys(path)


def test_a_key_that_is_added_is_current_and_those_before_stay(path):
    first = read_keys(path)
    added = add_key(path)
    assert added.current not in first.keys
    assert read_keys(path) == added
    assert added.keys.items() > first.keys.items()


def test_only_a_key_that_is_not_current_may_be_dropped(path):
    first = read_keys(path).current
    with pytest.raises(InvalidArgument, match="removable keys: none"):
        drop_key(path, first)
    current = add_key(path).current
    for name in (current, "nobody"):
        with pytest.raises(InvalidArgument, match=first):
            drop_key(path, name)
    assert list(drop_key(path, first).keys) == [current]
    assert list(read_keys(path).keys) == [current]


CHANGES = [add_key, lambda path: set_plain_policy(path, reads_plain=False)]


@pytest.mark.parametrize("change", CHANGES)
def test_a_replaced_file_keeps_its_readers(path, change):
    path.chmod(0o640)
    change(path)
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_keeps_its_owner_when_another_user_changes_it(path):
    os.chown(path, 10_001, 10_002)
    path.chmod(0o640)
    add_key(path)
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (10_001, 10_002, 0o640)


def test_a_file_that_would_be_taken_from_its_owner_is_not_changed(path, monkeypatch):
    def refused(*_args: object) -> None:
        raise PermissionError

    before, found = path.read_bytes(), path.stat()
    monkeypatch.setattr("os.fchown", refused)
    made = os.stat_result((0, 0, 0, 0, found.st_uid + 1, found.st_gid, 0, 0, 0, 0))
    monkeypatch.setattr("os.fstat", lambda _file: made)
    with pytest.raises(InvalidConfig, match="as that user or as root"):
        add_key(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_a_link_stays_one_and_what_it_leads_to_is_changed(path, tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to(path.name)
    added = add_key(link)
    assert link.is_symlink()
    assert read_keys(path) == added


def test_what_was_changed_outlives_a_power_cut(path, monkeypatch):
    """The name of a file is durable once its directory was written down after the rename."""
    done: list[tuple[str, bool]] = []
    rename, sync = Path.replace, os.fsync

    def renamed(self: Path, target: Path) -> Path:
        done.append(("rename", False))
        return rename(self, target)

    def synced(file: int) -> None:
        done.append(("sync", stat.S_ISDIR(os.fstat(file).st_mode)))
        sync(file)

    monkeypatch.setattr(Path, "replace", renamed)
    monkeypatch.setattr(os, "fsync", synced)
    add_key(path)
    assert done == [("sync", False), ("rename", False), ("sync", True)]


def test_of_keys_that_are_added_at_the_same_time_each_is_there_afterwards(path):
    with ThreadPoolExecutor(8) as threads:
        added = {made.current for made in threads.map(add_key, [path] * 24)}
    assert len(added) == 24
    assert added < read_keys(path).keys.keys()
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_a_process_that_waits_too_long_for_the_lock_changes_nothing(path):
    before = path.read_bytes()
    with update_lock(path), pytest.raises(InvalidConfig, match="try again"), update_lock(path, timeout_seconds=0.1):
        raise AssertionError("two are at it")
    assert path.read_bytes() == before


def test_whether_plain_objects_are_believed_is_kept_when_keys_change(path):
    assert not set_plain_policy(path, reads_plain=False).reads_plain
    assert not add_key(path).reads_plain
    assert set_plain_policy(path, reads_plain=True).reads_plain


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (json.dumps(GOOD).replace('"plain"', '"plain": "refuse", "plain"').encode(), "duplicate"),
        (json.dumps(GOOD).replace('{"k1"', '{"k1": "", "k1"').encode(), "duplicate"),
        ([], "no format"),
        ({**GOOD, "format": True}, "no format"),
        ({**GOOD, "format": 0}, "no format"),
        ({**GOOD, "surprise": 1}, "unknown field"),
        ({**GOOD, "plain": "maybe"}, "plain must be one of"),
        ({**GOOD, "keys": {}}, "must be an object"),
        ({**GOOD, "current": "k2"}, "current"),
        ({**GOOD, "keys": {"k1": SECRET, "k 2": SECRET}}, "id of a key"),
        ({**GOOD, "keys": {"k1": SECRET, "k" * 33: SECRET}}, "id of a key"),
        ({**GOOD, "keys": {"k1": SECRET[:-4]}}, "32 bytes"),
        ({**GOOD, "keys": {"k1": "ä" + SECRET}}, "32 bytes"),
        ({**GOOD, "keys": {"k1": 7}}, "32 bytes"),
    ],
)
def test_what_is_no_file_of_keys_is_refused_in_words_that_hold_no_key(content, why):
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(InvalidConfig, match=why) as refused:
        parse_archive_keys(data, "keys.json")
    assert "keys.json" in refused.value.message
    assert SECRET[:8] not in refused.value.message


def test_a_file_of_a_newer_tallybook_is_distinguished():
    with pytest.raises(NewerFormat):
        parse_archive_keys(json.dumps({"format": 2, "kms": "x"}).encode(), "keys.json")


def test_no_file_is_no_empty_set_of_keys(tmp_path):
    with pytest.raises(InvalidConfig, match="there is no file"):
        ArchiveKeyFile(str(tmp_path / "none"), Time(), InlineWorkers())


async def test_a_file_that_changes_is_taken_over_while_a_process_runs(path):
    clock = Time()
    file = ArchiveKeyFile(str(path), clock, InlineWorkers())
    first = (await file.now()).current
    second = add_key(path).current
    assert (await file.now()).current == first
    clock.now += RELOAD_SECONDS
    assert (await file.now()).current == second


async def test_a_key_that_is_wanted_is_looked_for_at_once(path):
    file = ArchiveKeyFile(str(path), Time(), InlineWorkers())
    second = add_key(path).current
    assert second in (await file.now(wanted=second)).keys


async def test_a_file_that_cannot_be_understood_is_not_taken_and_said_once(path, caplog):
    clock = Time()
    file = ArchiveKeyFile(str(path), clock, InlineWorkers())
    before = await file.now()
    broken = path.with_name("broken")
    broken.write_text('{"format": 1')
    broken.chmod(0o600)
    os.replace(broken, path)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            clock.now += RELOAD_SECONDS
            assert await file.now() == before
        path.unlink()
        clock.now += RELOAD_SECONDS
        assert await file.now() == before
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


async def test_no_text_of_the_keys_shows_one(path, caplog):
    clock = Time()
    with caplog.at_level(logging.DEBUG):
        file = ArchiveKeyFile(str(path), clock, InlineWorkers())
        add_key(path)
        clock.now += RELOAD_SECONDS
        found = await file.now()
    shown = repr(found) + str(found) + repr(file) + caplog.text
    for key in found.keys.values():
        assert base64.b64encode(key).decode() not in shown
        assert repr(key)[2:-1] not in shown
        assert key.hex() not in shown

"""Losses in a bookie's directory on a real disk: the index is rebuilt, other losses are accepted."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

LINES = b"".join(b"line %d\n" % number for number in range(1_000))


@pytest.fixture(scope="module")
def made(cli, tmp_path_factory) -> tuple[Path, str, int]:
    """The data of a cluster of one bookie that has stopped, the metadata, and a closed ledger."""
    home = tmp_path_factory.mktemp("losses") / "cluster"
    with cli.up(home, bookies=1) as running:
        ledger = running("ledger", "create", "--ensemble", 1, "--json").json["ledger_id"]
        assert running("ledger", "append", ledger, "--close", stdin=LINES).code == 0
        assert running.stop() == 0
    return home, running.metadata, ledger


@pytest.fixture
def stopped(made, tmp_path) -> tuple[Path, str, int]:
    """A copy of it: the data directory of the bookie, the metadata, and the ledger."""
    home, metadata, ledger = made
    copy = tmp_path / "cluster"
    shutil.copytree(home, copy)
    return copy / "bookie-1", metadata.replace(str(home), str(copy)), ledger


@pytest.fixture
def read_back(cli, tmp_path) -> Callable[[int], bytes]:
    """The entries of the ledger, read between a start and a clean stop of the bookie."""

    def read_back(ledger: int) -> bytes:
        with cli.up(tmp_path / "cluster", bookies=1) as running:
            result = running("ledger", "read", ledger)
            assert result.code == 0, result.err
            assert running.stop() == 0
        return result.out

    return read_back


def test_j19_a_bookie_whose_index_is_gone_starts_and_has_everything(stopped, read_back):
    data, _, ledger = stopped
    shutil.rmtree(data / "index")
    assert read_back(ledger) == LINES
    assert "index 1\n" in (data / "limbo").read_text()
    assert "events 1\n" in (data / "limbo").read_text()
    shutil.rmtree(data / "index.1" / "rocksdb")
    assert read_back(ledger) == LINES
    assert "index 2\n" in (data / "limbo").read_text()


def test_an_index_is_rebuilt_for_a_stopped_bookie_after_a_dry_run(cli, stopped, read_back):
    data, metadata, ledger = stopped
    limbo = (data / "limbo").read_text()
    (data / "ledgers" / "stranger.txt").write_text("not ours")
    options = ["bookie", "rebuild-index", data, "--metadata", metadata]
    tried = cli.run(*options, "--dry-run", "--json")
    assert tried.code == 0, tried.err
    assert (tried.json["index"], tried.json["damage"], tried.json["conflicts"]) == (None, [], [])
    assert tried.json["batches"] >= 1
    assert (data / "limbo").read_text() == limbo
    done = cli.run(*options, "--json")
    assert done.code == 0, done.err
    assert {**tried.json, "index": str(data / "index.1")} == done.json
    assert (data / "index" / "rocksdb").exists(), "the old one stays"
    assert read_back(ledger) == LINES
    assert read_back(ledger) == LINES
    assert not any(path.is_file() for path in (data / "index").rglob("*")), "until the bookie has stopped cleanly"
    for_people = cli.run(*options, "--dry-run").out.decode()
    assert "index.1" not in for_people, "it was thrown away"
    assert "damage" in for_people
    assert "none" in for_people


def test_an_index_is_rebuilt_for_no_other_bookie(cli, stopped, cluster, tmp_path):
    data, metadata, _ = stopped
    (tmp_path / "empty").mkdir()
    for directory, store in ((tmp_path / "empty", metadata), (data, cluster.metadata)):
        refused = cli.run("bookie", "rebuild-index", directory, "--metadata", store, "--json")
        assert (refused.code, refused.error["type"]) == (4, "ForeignDirectory")
    assert not list((tmp_path / "empty").iterdir())
    with cli.up(tmp_path / "cluster", bookies=1):
        refused = cli.run("bookie", "rebuild-index", data, "--metadata", metadata, "--json")
        assert (refused.code, refused.error["type"]) == (4, "DirectoryInUse")


def test_a_lost_journal_keeps_a_bookie_down_until_its_loss_is_accepted(cli, stopped, read_back, tmp_path):
    data, metadata, ledger = stopped
    for file in (data / "journal").iterdir():
        file.unlink()
    refused = cli.run("up", "--data", tmp_path / "cluster", "--json", *cli.small)
    assert refused.code == 3
    assert "bookie init --accept-loss" in refused.error["message"]
    options = ["bookie", "init", "--data", data, "--metadata", metadata]
    assert cli.run(*options, "--accept-loss", "--replace").code == 2
    accepted = cli.run(*options, "--accept-loss", "--json")
    assert accepted.code == 0, accepted.err
    assert "journal" in accepted.json["lost"][0]
    assert read_back(ledger) == LINES
    assert "events 1\n" in (data / "limbo").read_text()
    assert json.loads(cli.run(*options, "--accept-loss", "--json").out)["lost"] == []
    assert "lost" in cli.run(*options, "--accept-loss").out.decode()


def test_a_missing_limbo_marker_is_reported_together_with_the_way_forward(cli, stopped, read_back, tmp_path):
    data, metadata, ledger = stopped
    (data / "limbo").unlink()
    refused = cli.run("up", "--data", tmp_path / "cluster", "--json", *cli.small)
    assert (refused.code, refused.error["type"]) == (3, "DamagedFile")
    assert f"tallybook bookie init --accept-loss --data {data} --id bookie-1 --metadata" in refused.error["message"]
    assert cli.run("bookie", "init", "--accept-loss", "--data", data, "--metadata", metadata).code == 0
    assert read_back(ledger) == LINES


# --- a newer version has been there -----------------------------------------------------------------------------------


def everything_in(data: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file()}


def newer_text_record(path: Path) -> None:
    """One version later, under a checksum that fits."""
    body = re.sub(rb"^(tallybook \S+) \d+", rb"\1 99", path.read_bytes().rpartition(b"crc32c ")[0])
    path.write_bytes(body + b"crc32c %08x\n" % crc32c(body))


def newer_superblock(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4] = 99
    data[112:116] = crc32c(bytes(data[:112])).to_bytes(4, "little")
    path.write_bytes(data)


def newer_mark(path: Path) -> None:
    data = path.read_bytes()
    body = data[:4] + (99).to_bytes(4, "little") + data[8:16]
    path.write_bytes(body + crc32c(body).to_bytes(4, "little"))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("cookie", newer_text_record),
        ("FORMAT", newer_text_record),
        ("limbo", newer_text_record),
        ("journal/superblock", newer_superblock),
        ("index/synced", newer_mark),
    ],
)
def test_a_bookie_names_what_a_newer_version_has_written_and_leaves_it_alone(cli, stopped, name, change):
    data, metadata, _ = stopped
    change(data / name)
    before = everything_in(data)
    result = cli.run("bookie", "run", "--data", data, "--metadata", metadata, "--json")
    assert (result.code, result.last_words["type"]) == (3, "NewerFormat")
    assert f"{name}" in result.last_words["message"]
    assert "99, this Tallybook knows" in result.last_words["message"]
    assert result.last_words["outcome"] == "not done"
    assert everything_in(data) == before
    # No loss of an index is ever accepted: where it is lost, another one is made.
    words = ("rebuild-index", data) if name == "index/synced" else ("init", "--accept-loss", "--data", data)
    result = cli.run("bookie", *words, "--metadata", metadata, "--json")
    assert result.error["type"] == "NewerFormat"
    assert everything_in(data) == before

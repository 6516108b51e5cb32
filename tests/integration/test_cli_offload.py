"""The offload commands with a real cluster and a directory as the bucket."""

import json
import random
import re
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

LINES = b"".join(b"line %d\n" % number for number in range(20_000))
NOW = ("--set", "max_set_wait_s=0", "--set", "deletion_lag_s=0")


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


def test_a_closed_ledger_goes_to_the_archive_and_is_read_from_there(cli, bucket, tmp_path):
    with cli.up(tmp_path / "data") as cluster:
        ledger, other = cluster.create(), cluster.create()
        for each in (ledger, other):
            assert cluster("ledger", "append", each, "--close", stdin=LINES).code == 0
        assert "no archive yet" in cluster("offload", "status").err
        done = cluster("offload", "run", "--once", "--archive", f"file://{bucket}", *NOW, "--json")
        assert done.code == 0, done.err
        told = done.json
        assert (told["ledgers_archived"], told["objects_written"], told["ledgers_released"]) == (2, 1, 2)
        [found] = bucket.glob("*/*.parquet")
        assert pq.read_table(found)["payload"].to_pylist()[:20_000] == LINES.split(b"\n")[:-1]

        shown = cluster("ledger", "info", ledger, "--json").json["archive"]
        assert shown["copies_released"]
        assert bucket / shown["object"] == found
        assert cluster("ledger", "read", ledger).out == LINES
        assert cluster("offload", "status", "--json").json["archived_ledgers"] == 2
        assert cluster("offload", "verify", ledger).code == 0

        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        refused = cluster("offload", "run", "--once", "--archive", f"file://{elsewhere}")
        assert (refused.code, list(elsewhere.iterdir())) == (2, [])
        assert str(bucket) in refused.err

    damage(found)
    with cli.up(tmp_path / "data") as cluster:
        wrong = cluster("offload", "verify", "--json")
        assert wrong.code == 1
        assert found.name in json.dumps(wrong.json)


def test_an_archive_that_was_moved_is_found_again_once_the_metadata_say_where_it_is(cli, bucket, tmp_path):
    with cli.up(tmp_path / "data", "--no-offload") as cluster:
        ledger = cluster.create()
        assert cluster("ledger", "append", ledger, "--close", stdin=LINES).code == 0
        assert cluster("offload", "run", "--once", "--archive", f"file://{bucket}", *NOW).code == 0
        moved, empty = tmp_path / "moved", tmp_path / "empty"
        bucket.rename(moved)
        empty.mkdir()
        assert "offload relocate" in cluster("offload", "verify").err
        refused = cluster("offload", "relocate", f"file://{empty}", "--json")
        assert (refused.code, refused.json["objects_missing"], refused.json["relocated"]) == (1, 1, False)
        assert "ledgers/" in refused.err
        assert cluster("offload", "relocate", f"file://{moved}", "--json").json["relocated"]
        assert cluster("ledger", "read", ledger).out == LINES
        assert cluster("offload", "verify").code == 0


def test_a_stream_comes_back_from_the_bucket_into_a_new_cluster(cli, bucket, tmp_path):
    with cli.up(tmp_path / "lost", "--no-offload") as cluster:
        assert cluster("stream", "create", "sales").code == 0
        assert cluster("stream", "append", "sales", stdin=b"one\ntwo\n").code == 0
        assert cluster("offload", "run", "--once", "--archive", f"file://{bucket}", *NOW).code == 0
    with cli.up(tmp_path / "new", "--no-offload") as cluster:
        rebuild = ("offload", "rebuild-catalog", f"file://{bucket}", "--metadata", cluster.metadata, "--json")
        refused = cluster(*rebuild)
        assert (refused.code, "--take-over" in refused.err) == (4, True)
        assert "no archive" in cluster("offload", "status").err, "nothing is settled"
        done = cluster(*rebuild, "--take-over")
        assert (done.code, done.json["lost_of_streams"]) == (0, 0), done.err
        assert cluster("stream", "read", "sales").out == b"one\ntwo\n"
        assert cluster("stream", "append", "sales", stdin=b"three\n").code == 0
        assert cluster("stream", "read", "sales").out == b"one\ntwo\nthree\n"


def test_up_archives_into_its_own_directory_by_default(cli, tmp_path):
    with cli.up(tmp_path / "data", "--offload", bookies=1) as cluster:
        cli.wait_until(lambda: cluster("offload", "status").code == 0, "an archive")
        status = cluster("offload", "status", "--json").json
        assert status["archive"] == f"file://{tmp_path}/data/archive"
        assert cluster.stop() == 0


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(bytes(data))


def test_a_wrong_bucket_and_missing_keys_are_reported_and_resolve_nothing(cli, s3_server, tmp_path):
    env = {
        "AWS_ENDPOINT_URL": s3_server, "AWS_REGION": "us-east-1", "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    with cli.up(tmp_path / "data", "--no-offload") as cluster:
        ledger = cluster.create()
        assert cluster("ledger", "append", ledger, "--close", stdin=LINES).code == 0

        def offload(url: str, **more: str) -> Any:
            return cluster("offload", "run", "--once", "--archive", url, *NOW, "--json", **env, **more)

        refused = offload("s3://bucket/place")
        assert (refused.code, "set AWS_ACCESS_KEY_ID" in refused.err) == (4, True)
        refused = offload("s3://buckte/place", **keys)
        assert (refused.code, "there is no such bucket" in refused.err) == (4, True)
        assert "no archive yet" in cluster("offload", "status").err
        assert offload("s3://bucket/place", **keys).json["ledgers_archived"] == 1
        assert cluster("offload", "verify", **env, **keys).code == 0
        assert cluster("ledger", "read", ledger, **env, **keys).out == LINES


LONG_LINES = b"".join(b"%s\n" % random.Random(number).randbytes(25_000).hex().encode() for number in range(220))
"""11 MB, of which half is left when they are compressed: more than is gathered before anything is written."""


def test_an_offloader_that_is_killed_costs_nothing_and_what_it_leaves_goes(cli, bucket, tmp_path):
    """A crash in the middle of an upload. tests/crash has every other moment, without real processes."""
    slowly = ("--set", "row_group_bytes=1MiB", "--set", "bytes_per_second=6MB")
    soon = ("--set", "attempt_ttl_s=1", "--set", "orphan_delay_s=0")
    with cli.up(tmp_path / "data", "--no-offload") as cluster:
        ledger, log = cluster.create(), tmp_path / "log"
        assert cluster("ledger", "append", ledger, "--close", stdin=LONG_LINES).code == 0
        with log.open("wb") as err:
            offloader = cli.start(
                "offload", "run", "--metadata", cluster.metadata, "--archive", f"file://{bucket}", *NOW, *slowly,
                stderr=err,
            )  # fmt: skip
        try:
            cli.wait_until(lambda: "tallybook_offload_leads 1.0" in served(log), "an offloader that leads")
            cli.wait_until(lambda: list(bucket.rglob("*.upload")), "an upload that has begun")
        finally:
            offloader.kill()
            offloader.wait()

        def settled() -> bool:
            done = cluster("offload", "run", "--once", *NOW, *soon, "--json")
            assert done.code == 0, done.err
            return not list(bucket.rglob("*.upload")) and done.json["unreleased_ledgers"] == 0

        cli.wait_until(settled, "a bucket in order")
        assert len(list(bucket.glob("*/*.parquet"))) == 1
        assert cluster("offload", "verify").code == 0
        assert cluster("ledger", "read", ledger).out == LONG_LINES


def served(log: Path) -> str:
    """The metrics of an offloader, once it has said in its log where they are."""
    found = re.search(rb"serving http_address=(\S+)\n", log.read_bytes())
    if found is None:
        return ""
    with urllib.request.urlopen(f"http://{found.group(1).decode()}/metrics", timeout=10) as answer:
        return answer.read().decode()


def test_an_empty_folder_is_no_archive_and_does_not_become_that_of_the_cluster(cli, bucket, new_cluster):
    place, refused = (
        f"file://{bucket}",
        f"there is no archive at file://{bucket}: it has neither a manifest nor an object",
    )
    metadata = ("--metadata", new_cluster())
    for found in (
        cli.run("offload", "rebuild-catalog", place),
        cli.run("offload", "rebuild-catalog", place, *metadata),
    ):
        assert (found.code, refused in found.err) == (4, True)
    assert "this cluster has no archive yet" in cli.run("offload", "verify", *metadata).err


def test_a_defect_of_an_object_is_reported_also_without_a_terminal(cli, bucket, tmp_path, new_cluster):
    key, keys = "ledgers/0000000000000000001-00000000-0000-4000-8000-000000000001.parquet", tmp_path / "keys.json"
    for name in (key, f"sealed/keys/{key}", f"sealed/objects/{key}"):
        (bucket / name).parent.mkdir(parents=True)
        (bucket / name).write_bytes(b"something else")
    listed = cli.run("offload", "rebuild-catalog", f"file://{bucket}", "--json")
    assert (listed.code, key in listed.err) == (1, True)
    assert cli.run("security", "archive-key", keys).code == 0
    place = ("--metadata", new_cluster(), "--archive", f"file://{bucket}")
    given = cli.run("offload", "rekey", *place, "--json", TALLYBOOK_ARCHIVE_KEYS=str(keys))
    assert (given.code, given.json["failed"], key in given.err) == (1, 1, True)

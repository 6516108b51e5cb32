"""Maintenance in the console: disks of bookies, the archive, and a repair in progress."""

import os
from collections import Counter

from tallybook.gateway.console import cluster_view

from .consoles import (
    BATCHED_BYTES,
    PAYLOAD_BYTES,
    Console,
    archiving,
    closed_ledger,
    console,
    eventually,
    lose_a_bookie,
    repairing,
)


async def test_a_bookie_tells_of_each_of_its_directories_and_of_the_disk_that_it_lies_on(cli, other_disk, tmp_path):
    data, logs = tmp_path / "cluster/bookie-1", [tmp_path / "logs", other_disk / "logs"]
    with cli.up(tmp_path / "cluster", "--set", f"ledger_directories={logs[0]},{logs[1]}", bookies=1) as up:
        bookie = Console(f"127.0.0.1:{up.run_file(1)['ports']['http']}", None)
        state = await eventually(bookie, "bookie/state", lambda told: all(each["disk"] for each in told["directories"]))
        told = {each["path"]: each for each in state["directories"]}
        roles = {
            str(logs[0]): "ledgers",
            str(logs[1]): "ledgers",
            f"{data}/journal": "journal",
            f"{data}/index": "index",
        }
        assert {path: each["role"] for path, each in told.items()} == roles
        here, there = told.pop(str(logs[1])), [each["disk"] for each in told.values()]
        assert (here["disk"], there) == (2, [1, 1, 1])
        for path in roles:
            status, each = os.statvfs(path), {**told, str(logs[1]): here}[path]
            assert each["total_bytes"] == status.f_blocks * status.f_frsize
            assert 0 < each["free_bytes"] <= each["total_bytes"]
            assert each["state"] in {"room", "warned", "short"}
        async with console(up.metadata) as ask:
            known = await eventually(ask, "bookies", lambda told: told["bookies"] and told["bookies"][0]["directories"])
            [shown] = known["bookies"]
            assert [each["path"] for each in shown["directories"]] == [each["path"] for each in state["directories"]]
            assert (await ask.get("bookies/bookie-1"))["directories"] == shown["directories"]
        assert str(logs[1]) in up("cluster", "status").out.decode()
        [listed] = up("cluster", "status", "--json").json["bookies"]
        assert Counter(each["role"] for each in listed["directories"]) == {"journal": 1, "ledgers": 2, "index": 1}


async def test_the_archive_is_reported_with_what_is_in_it_what_waits_and_what_failed(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_view, "CENSUS_SECONDS", 0.5)
    bucket = tmp_path / "bucket"
    with cli.up(tmp_path / "cluster", "--no-repair", bookies=1) as up:
        async with console(up.metadata) as ask:
            none = await eventually(ask, "offload", lambda told: told["last_round"] is not None)
            assert (none["archive"], none["last_round"]) == (None, {})
            for _ in range(2):
                closed_ledger(up)
            with archiving(cli, up.metadata, bucket, tmp_path / "offload.log"):
                found = await eventually(
                    ask, "offload", lambda told: told["archive"] and told["archive"]["released"] == 2
                )
                assert (found["archive"]["ledgers"], found["archive"]["waiting_bytes"]) == (2, 0)
                assert found["archive"]["url"] == f"file://{bucket}"
                bucket.rename(tmp_path / "elsewhere").parent.joinpath("bucket").touch()
                closed_ledger(up)
                found = await eventually(
                    ask, "offload", lambda told: told["archive"]["waiting_bytes"] and told["last_round"]["failures"]
                )
                assert (found["archive"]["ledgers"], found["archive"]["waiting_bytes"]) == (2, PAYLOAD_BYTES)
                last = found["last_round"]
                assert (last["waiting_ledgers"], last["waiting_bytes"]) == (1, PAYLOAD_BYTES)
                assert last["archived_ledgers"] == 2
                assert (last["objects_written"] > 0, last["object_bytes"] > 0, bool(last["last_error"])) == (True,) * 3
                bucket.unlink()
                (tmp_path / "elsewhere").rename(bucket)
                found = await eventually(ask, "offload", lambda told: told["archive"]["ledgers"] == 3)
                assert found["archive"]["waiting_bytes"] == 0


async def test_a_repair_is_shown_while_it_runs_and_after_its_end(cli, tmp_path):
    with cli.up(tmp_path / "cluster", "--no-repair", bookies=4) as up:
        ledgers = [closed_ledger(up, ensemble=3, times=40) for _ in range(3)]
        lose_a_bookie(up, ledgers)
        size = 40 * BATCHED_BYTES
        async with console(up.metadata) as ask:
            assert (await ask.get("repair"))["progress"]["tasks"] == 0
            with repairing(cli, up.metadata, tmp_path / "repair.log"):
                told = await eventually(ask, "repair", lambda told: told["progress"]["bytes_per_second"])
                [task], whole = told["tasks"], told["progress"]
                assert task["why"] == "lost bookie"
                assert (whole["tasks"], whole["ledgers_total"], whole["expected_bytes"]) == (1, 3, 3 * size)
                assert 0 < whole["copied_bytes"] < whole["expected_bytes"]
                assert whole["seconds_left"] == (3 * size - whole["copied_bytes"]) // whole["bytes_per_second"]
                [ledger] = task["progress"]["under_way"]
                assert ledger["ledger_id"] in ledgers
                assert (ledger["places_done"], ledger["places"], ledger["expected_bytes"]) == (0, 1, size)
                assert ledger["copied_bytes"] <= whole["copied_bytes"]
                later = await eventually(ask, "repair", lambda told: told["progress"]["ledgers_left"] < 3)
                assert later["progress"]["copied_bytes"] > whole["copied_bytes"]
                await eventually(ask, "repair", lambda told: not told["tasks"])
                found = await eventually(
                    ask, "auditor", lambda told: told["last_audit"].get("work", {}).get("ledgers") == 3
                )
                work = found["last_audit"]["work"]
                assert (work["places"], work["not_mended"], work["lost"]) == (3, 0, 0)
                assert work["copied_bytes"] >= 3 * size

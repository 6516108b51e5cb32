"""What a console tells of the upkeep of a cluster: of the disks of bookies."""

import os
from collections import Counter

from .consoles import Console, console, eventually


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
            [shown] = (await ask.get("bookies"))["bookies"]
            assert [each["path"] for each in shown["directories"]] == [each["path"] for each in state["directories"]]
            assert (await ask.get("bookies/bookie-1"))["directories"] == shown["directories"]
        assert str(logs[1]) in up("cluster", "status").out.decode()
        [listed] = up("cluster", "status", "--json").json["bookies"]
        assert Counter(each["role"] for each in listed["directories"]) == {"journal": 1, "ledgers": 2, "index": 1}

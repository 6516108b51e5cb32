"""A bookie process with two journals and two entry-log directories: killed, inspected, restarted, and refused."""

import shutil
from pathlib import Path

LINES = b"".join(b"line %d\n" % number for number in range(2_000))


def directories(tmp_path: Path) -> tuple[list[Path], list[Path]]:
    disks = [tmp_path / "disk1", tmp_path / "disk2"]
    return [disk / "journal" for disk in disks], [disk / "logs" for disk in disks]


def options(tmp_path: Path) -> list[object]:
    journals, logs = directories(tmp_path)
    chosen = {
        "journal_directories": ",".join(map(str, journals)),
        "ledger_directories": ",".join(map(str, logs)),
        "storage.entry_log_bytes": "4KiB",
    }
    return [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]


def append(running) -> int:
    """A new ledger with all the lines."""
    ledger = running("ledger", "create", "--ensemble", 1, "--json").json["ledger_id"]
    assert running("ledger", "append", ledger, "--close", stdin=LINES).code == 0
    return ledger


def test_a_bookie_with_two_disks_survives_being_killed_and_refuses_to_start_without_one_of_them(cli, tmp_path):
    data, (journals, logs) = tmp_path / "cluster", directories(tmp_path)
    with cli.up(data, *options(tmp_path), "--set", "storage.flush_interval_ms=200", bookies=1) as running:
        ledgers = [append(running) for _ in range(4)]

        def both_are_used() -> bool:
            # Both are on one disk here, so either of them may have more space for a log.
            ledgers.append(append(running))
            return all(list(path.glob("*.log")) for path in logs)

        cli.wait_until(both_are_used, "both directories are used")
        running.process.kill()
        cli.wait_until(lambda: not any(map(cli.alive, running.pids)), "the bookie is gone")
    looked_at = cli.run("journal", "verify", data / "bookie-1", "--json")
    assert looked_at.code == 0
    assert [found["directory"] for found in looked_at.json["journals"]] == [*map(str, journals)]
    [found] = cli.run("journal", "verify", journals[1], "--json").json["journals"]
    assert found["directory"] == str(journals[1])
    with cli.up(data, *options(tmp_path), bookies=1) as running:
        for ledger in ledgers:
            assert running("ledger", "read", ledger).out == LINES
        in_use = cli.run("entrylog", "verify", logs[1], "--json")
        assert (in_use.code, in_use.error["type"]) == (4, "DirectoryInUse")
        assert running.stop() == 0
    verified = cli.run("entrylog", "verify", data / "bookie-1", "--json")
    assert (verified.code, verified.json["damage"]) == (0, [])
    names = {log["log"] for log in verified.json["logs"]}
    assert names == {path.name for directory in logs for path in directory.glob("*.log")}
    assert len(names) > len(list(logs[0].glob("*.log"))) > 0
    shutil.rmtree(logs[1])
    refused = cli.run(
        "bookie", "run", "--data", data / "bookie-1", "--metadata", f"sqlite://{data}/metadata.db", *options(tmp_path)
    )
    assert refused.code == 3
    assert f"{logs[1]} is missing or empty" in refused.err

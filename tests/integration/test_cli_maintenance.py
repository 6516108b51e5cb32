"""Maintenance commands with real bookies: status, check, a pass on demand, drain, pause."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from .consoles import console, eventually

LINES = b"".join(b"line %d\n" % number for number in range(2_000))
SOON = ("--set", "interval_s=1", "--set", "lease_s=1", "--set", "lost_after_s=3", "--set", "open_grace_s=1")


def written(cluster) -> int:
    ledger = cluster.create()
    assert cluster("ledger", "append", ledger, "--close", stdin=LINES).code == 0
    return ledger


@contextmanager
def repair(cli, cluster) -> Iterator[subprocess.Popen[bytes]]:
    """A repair process that is in a hurry."""
    process = cli.start("repair", "run", "--metadata", cluster.metadata, *SOON, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(cli.patience)


def named(cluster, ledger: int) -> set[str]:
    fragments = cluster("ledger", "info", ledger, "--json").json["fragments"]
    return {bookie for fragment in fragments for bookie in fragment["bookies"]}


def test_a_cluster_is_healthy_until_a_bookie_is_gone_and_the_check_reports_missing_copies(cli, tmp_path):
    with cli.up(tmp_path / "data") as cluster:
        ledger = written(cluster)
        cli.wait_until(lambda: cluster("cluster", "status").code == 0, "an auditor has looked")
        told = cluster("cluster", "status", "--json").json
        assert told["healthy"] is True
        assert told["ledgers"]["closed"] == 1
        assert [bookie["mode"] for bookie in told["bookies"]] == ["writable"] * 3
        assert [bookie["ledgers"] for bookie in told["bookies"]] == [1] * 3
        assert cluster("cluster", "status").out.decode().endswith("healthy\n")
        checked = cluster("cluster", "check", "--read", "--json")
        assert (checked.code, checked.json["places"], checked.json["lacking_ledgers"]) == (0, 3, 0)
        assert checked.json["read_bytes"] > 3 * len(LINES)

        os.kill(cluster.pids[1], signal.SIGKILL)
        cli.wait_until(lambda: b"wrong: bookie-2 " in cluster("cluster", "status").out, "a bookie is missed")
        assert cluster("cluster", "status").code == 1
        lacking = cluster("cluster", "check", ledger, "--json")
        [found] = lacking.json["details"]
        [lack] = found["lacks"]
        assert (lacking.code, lack["bookie_id"], lack["first"], lack["last"]) == (1, "bookie-2", 0, 1_999)
        assert (lack["verdict"], lacking.json["lacking_ledgers"]) == ("no answer", 1)
        assert b"entries 0 to 1999  no answer" in cluster("cluster", "check").out
        assert cluster("cluster", "check", 999).code == 4


def test_a_bookie_is_drained_and_then_may_be_switched_off(cli, tmp_path):
    with cli.up(tmp_path / "data", "--no-repair", bookies=4) as cluster:
        ledger = written(cluster)
        name = min(named(cluster, ledger))
        started = cluster("bookie", "drain", name, "--json").json
        assert (started["ledgers"], started["complete"], started["may_be_switched_off"]) == (1, True, False)
        refused = cluster("bookie", "readonly", name)
        assert (refused.code, "drain --cancel" in refused.err) == (4, True)
        late = cluster("bookie", "drain", name, "--wait", "--timeout", "1")
        assert (late.code, f"still names {name}" in late.err) == (5, True)
        assert late.err.startswith(f"draining {name}: 1 ledger still names {name}"), "a pipe is told how far it is"
        assert late.err.splitlines()[0].endswith(
            f": {ledger} (no auditor is running: is 'tallybook repair run' running?)"
        )
        status = cluster("cluster", "status").out.decode()
        assert f"{name} is drained; 1 ledger names it: {ledger}" in status
        with repair(cli, cluster):
            done = cluster("bookie", "drain", name, "--wait", "--timeout", "60")
        assert (done.code, "may be switched off" in done.out.decode()) == (0, True), done.err
        assert name not in named(cluster, ledger)
        assert cluster("ledger", "read", ledger).out == LINES
        assert cluster("bookie", "drain", name, "--cancel", "--json").json["wanted"] == "normal"
        assert cluster("bookie", "drain", "nobody").code == 4


def test_a_drain_that_could_not_end_is_refused_and_names_what_holds_it_unless_it_is_forced(cli, tmp_path):
    with cli.up(tmp_path / "data", "--no-repair") as cluster:
        ledger = written(cluster)

        def wanted() -> list[str]:
            return [bookie["wanted"] for bookie in cluster("cluster", "status", "--json").json["bookies"]]

        refused = cluster("bookie", "drain", "bookie-1")
        assert (refused.code, refused.out) == (4, b"")
        assert f"bookie-1 cannot be drained: 1 ledger names it ({ledger}), and too few bookies" in refused.err
        assert "(in all: bookie-2, bookie-3). Add bookies first, or drain it anyway with --force\n" in refused.err
        assert wanted() == ["normal"] * 3
        forced = cluster("bookie", "drain", "bookie-1", "--force", "--json")
        assert (forced.code, forced.json["ledgers"], forced.json["may_be_switched_off"]) == (0, 1, False)
        assert wanted() == ["draining", "normal", "normal"]


async def test_bookies_that_are_read_only_by_order_are_nothing_wrong_while_ledgers_can_be_created(cli, tmp_path):
    with cli.up(tmp_path / "data", bookies=4) as cluster:
        cli.wait_until(lambda: cluster("cluster", "status").code == 0, "an auditor has looked")
        ordered = cluster("bookie", "readonly", "bookie-1", "--json").json
        assert ordered == {"bookie_id": "bookie-1", "wanted": "read_only", "mode": "read_only"}

        def modes() -> list[str]:
            return [bookie["mode"] for bookie in cluster("cluster", "status", "--json").json["bookies"]]

        assert modes() == ["read-only", *["writable"] * 3], "the command waits for it"
        assert cluster("cluster", "status").code == 0

        assert cluster("bookie", "readonly", "bookie-2").out == b"bookie-2 accepts no more writes\n"
        assert modes() == [*["read-only"] * 2, *["writable"] * 2]
        told, problem = cluster("cluster", "status"), "only 2 bookies take writes, and a ledger with an ensemble of 3"
        assert told.code == 1
        assert told.out.decode().splitlines()[-1].startswith(f"wrong: {problem} cannot be created: add bookies, or end")
        told = cluster("cluster", "status", "--json")
        assert (told.code, told.json["healthy"], len(told.json["problems"])) == (1, False, 1)
        async with console(cluster.metadata) as ask:
            shown = await eventually(ask, "overview", lambda found: found["problems"] == told.json["problems"])
            assert shown["healthy"] is False
        assert cluster("ledger", "create", "--json").error["type"] == "NotEnoughBookies"

        for name in ("bookie-1", "bookie-2"):
            assert cluster("bookie", "readonly", name, "--off").out == f"{name} accepts writes again\n".encode()
        assert modes() == ["writable"] * 4
        assert cluster("cluster", "status").code == 0


def test_an_audit_on_demand_hands_out_what_is_lost_unless_the_repair_is_paused(cli, tmp_path):
    with cli.up(tmp_path / "data", "--no-repair", bookies=4) as cluster:
        ledger = written(cluster)
        name = min(named(cluster, ledger))
        unknown = cluster("cluster", "audit", "--lost", name, "--lost", "bokie-1", "--json")
        assert unknown.json["lost"] == ["bokie-1"]
        assert f"{name} is registered" in unknown.err
        assert "there is no bookie bokie-1" in unknown.err
        os.kill(cluster.run_file(int(name[-1]))["pid"], signal.SIGKILL)
        cli.wait_until(lambda: f"{name} is away" in cluster("cluster", "status").out.decode(), "it is known to be away")
        assert cluster("cluster", "audit", "--json").json["under_replicated"] == 0
        assert cluster("cluster", "audit", "--pause", "--json").json["paused_since_ms"] > 0
        paused = cluster("cluster", "audit", "--lost", name, "--wait", "--json")
        assert (paused.code, paused.json["under_replicated"], paused.json["tasks_handed_out"]) == (1, 1, 0)
        assert "the repair is paused" in paused.err
        assert "paused since" in cluster("cluster", "status").out.decode()
        assert cluster("cluster", "audit", "--resume", "--json").json["paused_since_ms"] is None
        with repair(cli, cluster):
            done = cluster("cluster", "audit", "--lost", name, "--wait", "--timeout", "60", "--json")
        assert (done.code, done.json["under_replicated"], done.json["lost"]) == (0, 0, [name]), done.err
        assert name not in named(cluster, ledger)


def test_an_entry_is_traced_to_the_byte_in_memory_on_disk_and_in_the_archive(cli, tmp_path):
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with cli.up(tmp_path / "data") as cluster:
        ledger = written(cluster)
        told = cluster("trace", ledger, 1_000, "--json").json
        assert (told["good"], told["copies_intact"], told["archive"]) == (True, 3, None)
        assert len({copy["batch_crc"] for copy in told["copies"]}) == 1
        assert all(copy["places"] for copy in told["copies"])
        assert cluster("trace", ledger, 1_000).out.decode().endswith("same intact copy of entry 1000\n")
        now = ("--set", "max_set_wait_s=0", "--set", "deletion_lag_s=3600")
        assert cluster("offload", "run", "--once", "--archive", f"file://{bucket}", *now).code == 0
        archived = cluster("trace", ledger, 1_000, "--json").json
        assert archived["archive"]["verdict"] == "intact"
        assert archived["archive"]["place"]["batch_crc"] == told["copies"][0]["batch_crc"]
        assert b"row group 0 page" in cluster("trace", ledger, 1_000).out
        os.kill(cluster.pids[0], signal.SIGKILL)
        lacking = cluster("trace", ledger, 1_000)
        assert (lacking.code, b"2 bookies have an intact copy, and 3 should" in lacking.out) == (1, True)
        assert cluster("trace", ledger, 2_000).code == 4


def test_fsck_finds_nothing_in_a_whole_cluster_and_an_object_that_is_gone(cli, tmp_path):
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with cli.up(tmp_path / "data", "--no-repair") as cluster:
        ledger = written(cluster)
        now = ("--set", "max_set_wait_s=0", "--set", "deletion_lag_s=3600")
        assert cluster("offload", "run", "--once", "--archive", f"file://{bucket}", *now).code == 0
        assert cluster("stream", "create", "orders").code == 0
        assert cluster("stream", "append", "orders", stdin=LINES).code == 0
        whole = cluster("fsck", "--json")
        assert (whole.code, whole.json["findings"], whole.json["notes"], whole.json["bucket"]) == (0, 0, 0, True)
        assert whole.json["details"] == []
        assert cluster("fsck").out.decode().endswith("0 findings, 0 notes\n")

        [found] = bucket.glob("*/*.parquet")
        found.rename(bucket / "elsewhere")
        lost = cluster("fsck", "--json")
        [finding] = lost.json["details"]
        assert (lost.code, finding["what"], finding["how_bad"]) == (1, "the object does not exist", "bad")
        assert (lost.json["findings"], f"ledger {ledger}, object" in finding["where"]) == (1, True)
        assert cluster("fsck", "--no-bucket").code == 0

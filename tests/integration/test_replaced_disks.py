"""Disks of bookies replaced in turn, as in the runbook, under a ledger whose writer is gone."""

import os
import shutil
import signal

from .test_repair import LINES, repairing


def test_an_open_ledger_outlives_two_disks_that_are_replaced_by_the_book(cli, tmp_path):
    data, metadata = tmp_path / "data", f"sqlite://{tmp_path}/data/metadata.db"

    def replace(number: int, *options: str):
        directory = data / f"bookie-{number}"
        named = ("--data", directory, "--id", f"bookie-{number}", "--metadata", metadata)
        return cli.run("bookie", "init", "--replace", *named, *options, "--json")

    def kill(running, number: int) -> None:
        os.kill(running.run_file(number)["pid"], signal.SIGKILL)
        # `up` removes the run file when it sees that the process has ended: only then is the directory free to change.
        run_file = data / f"bookie-{number}" / "run.json"
        cli.wait_until(lambda: not run_file.exists(), f"`up` has seen that bookie-{number} has ended")

    def refused(number: int) -> str:
        told = replace(number)
        assert (told.code, told.error["type"]) == (2, "InvalidArgument")
        return told.error["message"]

    with cli.up(data, "--no-repair", bookies=3) as running:
        ledger = running("ledger", "create", "--json").json["ledger_id"]
        assert running("ledger", "append", ledger, stdin=LINES).code == 0
        assert running.stop() == 0
    shutil.rmtree(data / "bookie-1")
    silent = f"ledger {ledger} has copies here and at bookie-2, bookie-3, which do not answer"
    assert silent in refused(1)
    forced = replace(1, "--force")
    assert forced.code == 0
    assert f"bookie-1 is given up, although {silent}" in forced.err

    lacking = f"ledger {ledger} lacks copies at bookie-1"
    with cli.up(data, "--no-repair", bookies=3) as running:
        status = running("cluster", "status")
        assert status.code == 1
        assert f"open ledger {ledger} may lack copies at bookie-1" in status.out.decode()
        # The other disk must not be given up before this one is repaired.
        kill(running, 2)
        (data / "bookie-2").rename(data / "kept")
        assert lacking in refused(2)
        running.stop()
    assert f"{lacking} (replaced" in refused(2)
    shutil.rmtree(data / "bookie-2", ignore_errors=True)
    (data / "kept").rename(data / "bookie-2")

    with cli.up(data, "--no-repair", bookies=3) as running:
        with repairing(cli, metadata, tmp_path / "repair.log", "open_grace_s=1"):
            cli.wait_until(lambda: running("cluster", "status").code == 0, "the cluster is healthy")
        kill(running, 2)
        shutil.rmtree(data / "bookie-2")
        assert replace(2).code == 0
        # Until its lease has run out, the one that was killed counts as alive.
        cli.wait_until(lambda: b"bookie-2 is away" in running("cluster", "status").out, "bookie-2 counts as dead")
        running.stop()

    with cli.up(data, "--no-repair", bookies=3) as running:
        with repairing(cli, metadata, tmp_path / "repair.log", "open_grace_s=1"):
            cli.wait_until(lambda: running("cluster", "status").code == 0, "the cluster is healthy")
        assert running("ledger", "read", ledger).out == LINES

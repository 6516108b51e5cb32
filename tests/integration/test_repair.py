"""The repair as a process, with bookies as processes: one is killed, and the others regain its copies."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

LINES = b"".join(b"%d\n" % number for number in range(20_000))
QUICK = ["--set", "lost_after_s=2", "--set", "interval_s=1", "--set", "lease_s=2"]


@contextlib.contextmanager
def repairing(cli, metadata: str, log: Path, *settings: str):
    """``tallybook repair run``, as long as the block lasts."""
    more = [word for setting in settings for word in ("--set", setting)]
    with log.open("wb") as out:
        process = cli.start(
            "repair", "run", "--metadata", metadata, *QUICK, *more, stdout=out, stderr=subprocess.STDOUT
        )
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(cli.patience) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()


def closed(running) -> int:
    ledger = running("ledger", "create", "--json").json["ledger_id"]
    assert running("ledger", "append", ledger, "--close", stdin=LINES).code == 0
    return ledger


def members(running, ledger: int) -> set[str]:
    fragments = running("ledger", "info", ledger, "--json").json["fragments"]
    return {name for fragment in fragments for name in fragment["bookies"]}


def test_what_a_killed_bookie_held_is_given_to_another_one_and_reads_the_same(cli, tmp_path):
    with cli.up(tmp_path / "data", "--no-repair", bookies=4) as running:
        ledgers = [closed(running) for _ in range(3)]
        lost = sorted(members(running, ledgers[0]))[0]
        number = int(lost.removeprefix("bookie-"))
        os.kill(running.run_file(number)["pid"], signal.SIGKILL)
        with repairing(cli, running.metadata, tmp_path / "repair.log"):
            cli.wait_until(
                lambda: not any(lost in members(running, ledger) for ledger in ledgers), f"nobody names {lost}"
            )
        for ledger in ledgers:
            assert running("ledger", "read", ledger).out == LINES


def test_a_bookie_whose_disk_was_wiped_gets_its_copies_back(cli, tmp_path):
    data = tmp_path / "data"
    with cli.up(data, "--no-repair", bookies=3) as running:
        ledger = closed(running)
        assert running.stop() == 0
    shutil.rmtree(data / "bookie-1")
    metadata = f"sqlite://{data}/metadata.db"
    given_up = ("--replace", "--force", "--data", data / "bookie-1", "--id", "bookie-1", "--metadata", metadata)
    assert cli.run("bookie", "init", *given_up).code == 0
    with cli.up(data, "--no-repair", bookies=3) as running:
        log = tmp_path / "repair.log"
        with repairing(cli, metadata, log):
            cli.wait_until(lambda: f"ledger repaired ledger_id={ledger} " in log.read_text(), "the ledger is repaired")
        for number in (2, 3):
            os.kill(running.run_file(number)["pid"], signal.SIGKILL)
        assert running("ledger", "read", ledger).out == LINES, "bookie-1 alone has all of it"

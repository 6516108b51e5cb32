"""The ledger commands with a real cluster: entries are read back as written, and pipes work."""

import base64
import json
import re
import signal
import subprocess
from importlib.metadata import version

LINES = b"".join(b"line %d\n" % number for number in range(50_000))


def filled(cluster, data: bytes, *options: object) -> int:
    """A new ledger with ``data``, closed unless ``options`` say otherwise."""
    ledger = cluster.create()
    assert cluster("ledger", "append", ledger, *(options or ["--close"]), stdin=data).code == 0
    return ledger


def test_what_was_appended_is_read_back_and_nothing_else_is_on_standard_output(cluster):
    ledger = cluster.create()
    appended = cluster("ledger", "append", ledger, "--close", "--json", stdin=LINES)
    assert (appended.code, appended.err) == (0, "")
    told = appended.json
    assert (told["entries"], told["bytes"], told["closed"]) == (50_000, len(LINES) - 50_000, True)
    read = cluster("ledger", "read", ledger)
    assert (read.code, read.out, read.err) == (0, LINES, "")


def test_append_prints_count_bytes_and_seconds(cluster):
    words = cluster("ledger", "append", cluster.create(), stdin=b"a\nbc\n").out.decode().split()
    assert words[:4] == ["2", "entries,", "3", "bytes,"]
    assert float(words[4]) > 0
    assert words[5] == "seconds"


def test_an_open_ledger_shows_everything_that_append_said_was_confirmed(cluster):
    ledger = filled(cluster, LINES, "--json")
    assert cluster("ledger", "info", ledger, "--json").json["state"] == "open"
    assert cluster("ledger", "read", ledger).out == LINES


def test_an_unterminated_last_line_counts_and_empty_lines_are_entries(cluster):
    ledger = filled(cluster, b"\n\nthree\n\nfive")
    assert cluster("ledger", "read", ledger).out == b"\n\nthree\n\nfive\n"
    assert cluster("ledger", "info", ledger, "--json").json["entries"] == 5


def test_no_input_appends_nothing_and_reads_back_as_nothing(cluster):
    ledger = filled(cluster, b"")
    read = cluster("ledger", "read", ledger)
    assert (read.code, read.out) == (0, b"")


def test_a_range_has_both_its_ends(cluster):
    ledger = filled(cluster, LINES)
    assert cluster("ledger", "read", ledger, "--first", 7, "--last", 9).out == b"line 7\nline 8\nline 9\n"
    assert cluster("ledger", "read", ledger, "--first", 49_999).out == b"line 49999\n"
    assert cluster("ledger", "read", ledger, "--last", 0).out == b"line 0\n"


def test_json_lines_carry_ids_and_any_bytes(cluster):
    ledger = filled(cluster, "grüße\n".encode() + b"\xff\xfe\n")
    text, binary = map(json.loads, cluster("ledger", "read", ledger, "--json").out.splitlines())
    assert (text["entry_id"], text["payload"]) == (0, "grüße")
    assert (binary["entry_id"], base64.b64decode(binary["payload_base64"])) == (1, b"\xff\xfe")


def test_long_entries_come_back(cluster):
    data = b"".join(bytes([65 + number]) * 900_000 + b"\n" for number in range(4))
    assert cluster("ledger", "read", filled(cluster, data)).out == data


def test_a_reader_that_leaves_early_ends_the_command_quietly(cluster, cli):
    ledger = filled(cluster, LINES)
    reading = cli.start(
        "ledger", "read", ledger, "--metadata", cluster.metadata, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert reading.stdout.readline() == b"line 0\n"
    reading.stdout.close()
    assert reading.wait(cli.patience) == 128 + signal.SIGPIPE
    assert reading.stderr.read() == b""
    reading.stderr.close()


def test_ctrl_c_while_waiting_for_input_reports_what_is_confirmed(cluster, cli):
    ledger = cluster.create()
    appending = cli.start(
        "ledger", "append", ledger, "--json", "--metadata", cluster.metadata,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    appending.stdin.write(b"one\ntwo\nthr")
    appending.stdin.flush()
    cli.wait_until(lambda: cluster("ledger", "read", ledger).out == b"one\ntwo\n", "both lines are confirmed")
    appending.send_signal(signal.SIGINT)
    assert appending.wait(cli.patience) == 128 + signal.SIGINT
    out, err = appending.communicate()
    assert (json.loads(out)["entries"], err) == (2, b"")
    assert cluster("ledger", "recover", ledger, "--lost", "bookie-1").code == 2, "it gives up nothing"
    assert cluster("ledger", "recover", ledger, "--accept-loss", "--lost", "bookie-1").code == 0
    assert cluster("ledger", "read", ledger).out == b"one\ntwo\n"


def test_ctrl_c_says_which_entries_are_durable_and_how_to_go_on(cluster, cli):
    ledger = cluster.create()
    appending = cli.start(
        "ledger", "append", ledger, "--metadata", cluster.metadata,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    appending.stdin.write(b"one\ntwo\nthr")
    appending.stdin.flush()
    cli.wait_until(lambda: cluster("ledger", "read", ledger).out == b"one\ntwo\n", "both lines are confirmed")
    appending.send_signal(signal.SIGINT)
    appending.wait(cli.patience)
    out, err = appending.communicate()
    assert (appending.returncode, out[:10]) == (128 + signal.SIGINT, b"2 entries,")
    assert err.decode() == (
        f"tallybook: ledger {ledger}: entries 0 to 1 are durable; 'tallybook ledger recover {ledger}' closes it and "
        "prints how many lines it has; append the rest to another ledger\n"
    )


def test_ctrl_c_in_the_middle_of_a_load_loses_nothing_that_was_reported(cluster, cli):
    ledger = cluster.create()
    with subprocess.Popen(["seq", "0", "999999999"], stdout=subprocess.PIPE) as source:
        appending = cli.start(
            "ledger", "append", ledger, "--json", "--metadata", cluster.metadata,
            stdin=source.stdout, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        cli.wait_until(lambda: cluster.confirmed(ledger) > 20_000, "it is under way")
        appending.send_signal(signal.SIGINT)
        out, err = appending.communicate(timeout=cli.patience)
        source.kill()
    assert (appending.returncode, err) == (128 + signal.SIGINT, b"")
    told = json.loads(out)["entries"]
    recovered = cluster("ledger", "recover", ledger, "--json").json["entries"]
    assert recovered >= told > 20_000
    assert cluster("ledger", "read", ledger).out == b"".join(b"%d\n" % number for number in range(recovered))


def test_tail_follows_a_ledger_until_it_is_closed(cluster, cli):
    ledger = cluster.create()
    appending = cli.start(
        "ledger", "append", ledger, "--close", "--metadata", cluster.metadata,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    tailing = cli.start("ledger", "tail", ledger, "--metadata", cluster.metadata, stdout=subprocess.PIPE)
    for number in range(3):
        appending.stdin.write(b"say %d\n" % number)
        appending.stdin.flush()
        assert tailing.stdout.readline() == b"say %d\n" % number
    appending.stdin.close()
    assert appending.wait(cli.patience) == 0
    assert (tailing.wait(cli.patience), tailing.stdout.read()) == (0, b"")
    tailing.stdout.close()


def test_a_password_protects_a_ledger(cluster, tmp_path):
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for file in (right, wrong):
        file.touch(mode=0o600)
    right.write_bytes(b"secret\n")
    wrong.write_bytes(b"guess")
    ledger = cluster("ledger", "create", "--json", "--password-file", right, "--hmac").json["ledger_id"]
    for command in (["append"], ["read"], ["recover"], ["rm"], ["tail"], ["info"]):
        refused = cluster("ledger", *command, ledger, "--password-file", wrong, "--json", stdin=b"x\n")
        assert (refused.code, refused.error["type"]) == (4, "Unauthorized"), command
    told = cluster("ledger", "info", ledger)
    assert re.split(r"  +", told.out.decode().splitlines()[-1]) == ["last add confirmed", "needs the password"]
    assert cluster("ledger", "info", ledger, "--json").json["last_add_confirmed"] is None
    assert cluster("ledger", "info", ledger, "--json", "--password-file", right).json["last_add_confirmed"] == -1
    assert cluster("ledger", "append", ledger, "--password-file", right, "--close", stdin=b"hidden\n").code == 0
    assert cluster("ledger", "info", ledger, "--password-file", wrong, "--json").error["type"] == "Unauthorized"
    assert cluster("ledger", "read", ledger, "--password-file", right).out == b"hidden\n"
    assert cluster("ledger", "info", ledger).out.find(b"secret") == -1


def test_a_removed_ledger_is_gone_and_the_others_are_listed(cluster):
    kept, removed = filled(cluster, b"x\n"), filled(cluster, b"y\n")
    assert cluster("ledger", "rm", removed).code == 0
    listed = [row["ledger_id"] for row in cluster("ledger", "ls", "--json").json]
    assert kept in listed
    assert removed not in listed
    assert cluster("ledger", "read", removed, "--json").error["type"] == "NoSuchLedger"


def test_the_bookies_of_the_cluster_are_listed_with_what_their_run_files_say(cluster):
    rows = cluster("bookie", "ls", "--json").json
    assert [row["bookie_id"] for row in rows] == ["bookie-1", "bookie-2", "bookie-3"]
    for number, row in enumerate(rows, 1):
        told = cluster.run_file(number)
        assert row["address"] == f"127.0.0.1:{told['ports']['grpc']}"
        assert (told["bookie_id"], row["mode"]) == (row["bookie_id"], "writable")
        assert row["free_bytes"] > 0
        assert row["version"] == version("tallybook")
    shown = cluster("bookie", "ls").out.decode().splitlines()
    assert "free bytes" in shown[0]
    assert "B" in shown[1]
    assert cluster("bookie", "info", "bookie-2", "--json").json == rows[1]
    mistyped = cluster("bookie", "info", "bokie-2", "--json")
    assert (mistyped.code, mistyped.error["type"]) == (4, "NoSuchBookie")
    assert mistyped.error["message"] == "there is no bookie bokie-2; registered bookies: bookie-1, bookie-2, bookie-3"

"""Errors of the commands: one sentence with the cause, and an exit code by kind."""

import os
import pty
import signal
import socket
import subprocess

import pytest

USAGE, CALLER, PEER, OUTPUT_FAILED = 2, 4, 5, 74


@pytest.fixture(scope="module")
def closed(cluster) -> int:
    """A closed ledger of three entries."""
    ledger = cluster.create()
    assert cluster("ledger", "append", ledger, "--close", stdin=b"a\nb\nc\n").code == 0
    return ledger


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (["append", "{closed}"], CALLER, "LedgerClosed"),
        (["read", "{closed}", "--last", "3"], CALLER, "ReadBeyondLac"),
        (["read", "{closed}", "--first", "3"], CALLER, "ReadBeyondLac"),
        (["tail", "{closed}", "--first", "99"], CALLER, "ReadBeyondLac"),
        (["read", "{closed}", "--first", "2", "--last", "1"], USAGE, "InvalidArgument"),
        (["read", "{closed}", "--first", "-1"], USAGE, "InvalidArgument"),
        (["read", "{closed}", "--last", "9223372036854775808"], USAGE, "InvalidArgument"),
        (["read", "9223372036854775808"], USAGE, "InvalidArgument"),
        (["info", "--", "-1"], USAGE, "InvalidArgument"),
        (["info", "-1"], USAGE, "Usage"),
        (["read", "9223372036854775807"], CALLER, "NoSuchLedger"),
        (["rm", "4000000"], CALLER, "NoSuchLedger"),
        (["create", "--ensemble", "4"], CALLER, "EnsembleTooLarge"),
        (["create", "--ack-quorum", "4"], USAGE, "InvalidArgument"),
        (["create", "--ensemble", "2", "--write-quorum", "3"], USAGE, "InvalidArgument"),
        (["create", "--hmac"], USAGE, "InvalidArgument"),
        (["create", "--password-file", "/nowhere"], USAGE, "InvalidArgument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_request_that_cannot_be_served_gives_an_error_object(cluster, closed, words, code, kind):
    command, *rest = (word.format(closed=closed) for word in words)
    result = cluster("ledger", command, "--json", *rest, stdin=b"x\n")
    assert (result.code, result.out) == (code, b"")
    error = result.error
    assert (error["type"], error["exit_code"]) == (kind, code)
    assert error["fault"] == "caller"
    assert error["retriable"] is (kind == "EnsembleTooLarge")
    assert error["message"]


def test_without_json_an_error_is_one_sentence_that_says_whose_fault_and_whether_to_retry(cluster, closed):
    result = cluster("ledger", "append", closed, stdin=b"x\n")
    assert result.err == (f"tallybook: ledger {closed} is closed\n")
    result = cluster("ledger", "info", "-1")
    assert result.err.startswith("tallybook: an id must be in 0 .. 2^63-1;")
    result = cluster("ledger", "create", "--ensemble", 4)
    assert result.err == (
        "tallybook: an ensemble of 4 needs 4 writable bookies, and there are 3 (bookie-1, bookie-2, bookie-3): "
        "start more bookies, or choose a smaller ensemble\n"
    )


@pytest.mark.parametrize("words", [["--help"], ["ledger", "ls"], ["ledger", "read", "{closed}"]], ids=" ".join)
def test_a_full_disk_behind_standard_output_is_not_taken_for_the_storage_of_the_cluster(cli, cluster, closed, words):
    words = [word.format(closed=closed) for word in words]
    where = [] if words == ["--help"] else ["--metadata", cluster.metadata]
    with (
        open("/dev/full", "wb") as full,
        cli.start(*words, *where, stdout=full, stderr=subprocess.PIPE) as command,
    ):
        said = command.communicate(timeout=cli.patience)[1].decode()
    assert command.returncode == OUTPUT_FAILED
    assert said == (
        "tallybook: standard output cannot be written: No space left on device; "
        "the command itself may have taken effect\n"
    )


def test_output_in_an_encoding_without_a_character_escapes_it(cli, cluster):
    assert cluster("stream", "create", "bücher-€").code == 0
    with cli.start(
        "stream", "ls", "--metadata", cluster.metadata, through=["env", "PYTHONIOENCODING=latin-1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as command:  # fmt: skip
        out, said = command.communicate(timeout=cli.patience)
    assert (command.returncode, said) == (0, b"")
    assert "bücher-\\u20ac".encode("latin-1") in out


def test_a_ledger_has_one_writer_ever(cluster):
    ledger = cluster.create()
    assert cluster("ledger", "append", ledger, stdin=b"mine\n").code == 0
    second = cluster("ledger", "append", ledger, "--json", stdin=b"yours\n")
    assert (second.code, second.error["type"]) == (CALLER, "LedgerHasWriter")
    assert cluster("ledger", "recover", ledger).code == 0
    assert cluster("ledger", "read", ledger).out == b"mine\n"


def test_an_entry_that_is_too_large_ends_the_append_and_what_came_before_it_is_kept(cluster):
    ledger = cluster.create()
    result = cluster("ledger", "append", ledger, "--json", stdin=b"small\n" + bytes(1 << 20) + b"\nnever\n")
    assert (result.code, result.error["type"]) == (USAGE, "EntryTooLarge")
    assert result.error["message"].startswith("line 2 ")
    assert result.json["entries"] == 1
    assert cluster("ledger", "read", ledger).out == b"small\n"


@pytest.mark.parametrize("uri", ["nonsense", "zk://", "memory:"])
def test_a_metadata_uri_that_makes_no_sense_is_bad_usage(cli, uri):
    assert cli.run("ledger", "ls", "--metadata", uri).code == USAGE


def test_metadata_that_does_not_answer_is_given_up_in_bounded_time(cli):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"zk://127.0.0.1:{silent.getsockname()[1]}/tallybook"
        result = cli.run("ledger", "ls", "--metadata", uri, "--json", timeout=30)
    assert (result.code, result.error["type"], result.error["retriable"]) == (PEER, "MetadataUnavailable", True)


def test_a_command_without_metadata_says_what_is_missing(cli):
    result = cli.run("ledger", "ls")
    assert result.code == USAGE
    assert result.err.startswith("tallybook: Missing option '--metadata'")
    assert result.err.endswith("; see 'tallybook ledger ls --help'\n")


def test_a_closed_standard_input_is_an_empty_one(cluster, cli):
    # As a daemon might start it: the first file that is opened gets descriptor 0.
    words = ["ledger", "append", str(cluster.create()), "--metadata", cluster.metadata]
    without_input = ("sh", "-c", 'exec "$@" <&-', "sh")
    appending = cli.start(*words, through=without_input, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = appending.communicate(timeout=cli.patience)
    assert (appending.returncode, err) == (0, b"")
    assert out.startswith(b"0 entries, 0 bytes, ")


@pytest.mark.parametrize(
    ("answer", "code"), [(b"\n", 1), (b"no\n", 1), (b"\x04", 1), (b"", -signal.SIGINT), (b"Yes\n", 0)]
)
def test_rm_asks_a_person_and_deletes_nothing_without_a_yes(cluster, cli, answer, code):
    ledger = cluster.create()
    screen, terminal = pty.openpty()
    removing = cli.start(
        "ledger", "rm", ledger, "--metadata", cluster.metadata,
        stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(terminal)
    question = f"Delete ledger {ledger}? This cannot be undone. [y/N] "
    assert removing.stderr.read(len(question)).decode() == question
    if answer:
        os.write(screen, answer)
    else:
        removing.send_signal(signal.SIGINT)
    out, _ = removing.communicate(timeout=cli.patience)
    os.close(screen)
    assert (removing.returncode, bool(out)) == (code, code == 0)
    assert cluster("ledger", "info", ledger).code == (CALLER if code == 0 else 0)


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (("truncate", "NAME", "--before", "latest"), "Delete the records of stream NAME before latest?"),
        (("seal", "NAME"), "Seal stream NAME?"),
    ],
)
def test_a_stream_is_neither_truncated_nor_sealed_without_a_yes(cluster, cli, words, question):
    name = f"asks-{words[0]}"
    cluster("stream", "append", name, "--create", stdin=b"one\n")
    screen, terminal = pty.openpty()
    asking = cli.start(
        "stream", *(word.replace("NAME", name) for word in words), "--metadata", cluster.metadata,
        stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(terminal)
    question = f"{question.replace('NAME', name)} This cannot be undone. [y/N] "
    assert asking.stderr.read(len(question)).decode() == question
    os.write(screen, b"no\n")
    out, _ = asking.communicate(timeout=cli.patience)
    os.close(screen)
    assert (asking.returncode, out) == (1, b"")
    info = cluster("stream", "info", name, "--json").json
    assert (info["first_sequence"], info["sealed"]) == (0, False)


def test_an_argument_that_is_no_ledger_id_is_named(cluster):
    refused = cluster("ledger", "info", "abc")
    assert (refused.code, "'abc' is not a ledger id" in refused.err) == (2, True)


def test_progress_goes_to_a_terminal_and_nowhere_else(cluster, cli, tmp_path):
    source = tmp_path / "lines"
    source.write_bytes(b"".join(b"%d\n" % number for number in range(400_000)))
    screen, terminal = pty.openpty()
    with source.open("rb") as lines:
        appending = cli.start(
            "ledger", "append", cluster.create(), "--metadata", cluster.metadata,
            stdin=lines, stdout=subprocess.PIPE, stderr=terminal,
        )  # fmt: skip
    os.close(terminal)
    shown = b""
    while True:
        try:
            shown += os.read(screen, 4096)
        except OSError:  # the other side is closed
            break
    os.close(screen)
    out, _ = appending.communicate(timeout=cli.patience)
    assert out.startswith(b"400,000 entries, ")
    assert b"entries/s" in shown

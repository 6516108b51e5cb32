"""The stream commands with a real cluster: records are read back as written, takeovers, errors."""

import base64
import itertools
import json
import signal
import subprocess

import pytest

LINES = b"".join(b"line %d\n" % number for number in range(20_000))
USAGE, CALLER, MISSING = 2, 4, 1

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """The name of a stream that no other test uses."""
    return f"tests/{next(_numbers)}"


@pytest.fixture
def stream(cluster, name) -> str:
    """A stream without records."""
    assert cluster("stream", "create", name).code == 0
    return name


def append(cluster, name: str, data: bytes, *options: object) -> str:
    """Append lines; the position of the last of them."""
    done = cluster("stream", "append", name, *options, stdin=data)
    assert (done.code, done.err) == (0, "")
    return done.out.decode().strip()


def records(cluster, name: str, *options: object) -> list[dict[str, object]]:
    """The records of a stream."""
    return [json.loads(line) for line in cluster("stream", "read", name, "--json", *options).out.splitlines()]


def segment_of(cluster, name: str) -> int:
    """The ledger that is the only segment of a stream."""
    stream_id = cluster("stream", "info", name, "--json").json["stream_id"]
    [ledger_id] = [
        each["ledger_id"]
        for each in cluster("ledger", "ls", "--json").json
        if each["custom"].get("tallybook.stream", "").startswith(stream_id)
    ]
    return ledger_id


def begin(cli, cluster, *words: object) -> subprocess.Popen[bytes]:
    """A command that is left running."""
    pipe = subprocess.PIPE
    return cli.start("stream", *words, "--metadata", cluster.metadata, stdin=pipe, stdout=pipe, stderr=pipe)


def say(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Hand some input to a running command."""
    process.stdin.write(data)
    process.stdin.flush()


def test_what_was_appended_is_read_back_and_only_the_last_position_is_printed(cluster, stream):
    last = append(cluster, stream, LINES)
    read = cluster("stream", "read", stream)
    assert (read.code, read.out, read.err) == (0, LINES, "")
    told = cluster("stream", "info", stream, "--json").json
    assert (told["first_sequence"], told["next_sequence"], told["last_position"]) == (0, 20_000, last)
    assert (told["owner"], told["sealed"], told["ended"], told["segments"]) == (None, False, False, 1)
    assert records(cluster, stream, "--from", last)[0]["payload"] == "line 19999"
    again = cluster("stream", "append", stream, "--json", stdin=b"x\n\nyz").json
    assert (again["stream"], again["records"], again["bytes"]) == (stream, 3, 3)
    assert cluster("stream", "read", stream, "--from", f"after:{last}").out == b"x\n\nyz\n"


def test_json_lines_carry_what_belongs_to_a_record(cluster, stream):
    positions = append(
        cluster, stream, b"k\tv\tw\nplain\n\xff\t\xfe\n", "--positions", "--key-separator", "\\t"
    ).split()
    one, two, three = found = records(cluster, stream)
    assert [record["position"] for record in found] == positions
    assert (one["key"], one["payload"], one["sequence"], one["txid"]) == ("k", "v\tw", 0, None)
    assert (two["key"], two["payload"], two["dedup_id"]) == (None, "plain", None)
    assert base64.b64decode(three["key_base64"]) == b"\xff"
    assert base64.b64decode(three["payload_base64"]) == b"\xfe"
    assert isinstance(one["timestamp_ms"], int)


def test_reading_begins_and_ends_at_the_given_positions(cluster, stream):
    positions = append(cluster, stream, LINES[:70], "--positions").split()

    def read(*options: object) -> list[bytes]:
        return cluster("stream", "read", stream, *options).out.splitlines()

    assert read("--from", 3, "--count", 2) == [b"line 3", b"line 4"]
    assert read("--from", positions[2], "--to", positions[4]) == [b"line 2", b"line 3"]
    assert read("--to", f"after:{positions[0]}") == [b"line 0"]
    assert read("--from", "latest") == []
    assert len(read("--from", "2020-01-01T00:00Z")) == 10
    assert read("--from", "2190-01-01") == []
    assert read("--to", "2020-01-01") == []


def test_an_appending_process_is_piped_to_one_that_tails_until_the_end(cluster, cli, stream):
    appending = begin(cli, cluster, "append", stream, "--positions")
    tailing = begin(cli, cluster, "tail", stream, "--from", "earliest", "--json")
    for number in range(3):
        say(appending, b"say %d\n" % number)
        position = appending.stdout.readline().decode().strip()
        seen = json.loads(tailing.stdout.readline())
        assert (seen["payload"], seen["position"]) == (f"say {number}", position)
    assert "pid" in cluster("stream", "info", stream, "--json").json["owner"]
    assert appending.communicate(timeout=cli.patience) == (b"", b"")
    assert appending.returncode == 0
    assert cluster("stream", "seal", stream).out.decode() == f"stream {stream} is sealed: 3 records\n"
    assert tailing.communicate(timeout=cli.patience) == (b"", b"")
    assert tailing.returncode == 0
    assert cluster("stream", "seal", stream).code == 0
    refused = cluster("stream", "append", stream, "--json", stdin=b"x\n")
    assert (refused.code, refused.error["type"]) == (CALLER, "StreamEnded")


def test_a_stream_whose_end_is_lost_is_written_again_only_once_that_is_accepted(cluster, cli, stream):
    appending = begin(cli, cluster, "append", stream, "--positions")
    say(appending, b"lost\n")
    assert appending.stdout.readline()
    appending.kill()
    appending.communicate(timeout=cli.patience)
    ledger_id = segment_of(cluster, stream)
    assert cluster("ledger", "rm", ledger_id, "--force").code == 0
    refused = cluster("stream", "mend", stream, "--json")
    assert (refused.code, refused.error["type"]) == (CALLER, "NoSuchLedger")
    assert cluster("stream", "mend", stream, "--accept-loss").code == 0
    assert cluster("stream", "append", stream, stdin=b"kept\n").code == 0
    read = cluster("stream", "read", stream)
    assert (read.out, read.code) == (b"kept\n", 1)
    assert "is lost" in read.err


def test_a_segment_of_a_stream_is_deleted_by_force_only_and_the_stream_is_named(cluster, stream):
    append(cluster, stream, b"kept\n")
    ledger_id = segment_of(cluster, stream)
    refused = cluster("ledger", "rm", ledger_id)
    told = f"ledger {ledger_id} is segment 1 of stream '{stream}' in namespace 'default'"
    assert (refused.code, refused.out) == (CALLER, b"")
    assert refused.err.startswith(f"tallybook: {told}: delete or truncate the stream, or force the deletion")
    assert cluster("ledger", "rm", ledger_id, "--json").error["type"] == "LedgerInUse"
    assert cluster("stream", "read", stream).out == b"kept\n"
    forced = cluster("ledger", "rm", ledger_id, "--force")
    assert (forced.code, forced.out.decode()) == (0, f"deleted ledger {ledger_id}\n")
    assert cluster("ledger", "info", ledger_id, "--json").error["type"] == "NoSuchLedger"
    assert cluster("stream", "rm", stream).code == 0


def test_ctrl_c_ends_a_tail_cleanly_and_an_append_with_what_is_confirmed(cluster, cli, stream):
    appending = begin(cli, cluster, "append", stream)
    tailing = begin(cli, cluster, "tail", stream, "--from", 0)
    say(appending, b"one\ntwo\nthr")
    assert [tailing.stdout.readline(), tailing.stdout.readline()] == [b"one\n", b"two\n"]
    tailing.send_signal(signal.SIGINT)
    assert tailing.communicate(timeout=cli.patience) == (b"", b"")
    assert tailing.returncode == 0
    appending.send_signal(signal.SIGINT)
    assert appending.wait(cli.patience) == 128 + signal.SIGINT
    out, err = appending.communicate()
    assert out.decode().strip() == cluster("stream", "info", stream, "--json").json["last_position"]
    assert b"2 records, 6 bytes confirmed" in err
    assert err.endswith(b"; continue with line 3 of the input\n")
    # It has released the stream: the next writer need not wait.
    append(cluster, stream, b"three\n", "--wait", 0)


def test_a_writer_notices_a_takeover_at_its_next_record_and_nothing_is_lost(cluster, cli, stream):
    first = begin(cli, cluster, "append", stream, "--json", "--positions")
    say(first, b"a\nb\n")
    for _ in "ab":
        first.stdout.readline()
    owned = cluster("stream", "append", stream, "--wait", 0, "--json", stdin=b"no\n")
    assert (owned.code, owned.error["type"], owned.error["retriable"]) == (CALLER, "StreamOwned", True)
    append(cluster, stream, b"c\n")
    # One line is enough: the error is reported without another line or the end of the input.
    say(first, b"lost\n")
    assert first.wait(cli.patience) == CALLER
    out, err = first.communicate()
    assert json.loads(out)["records"] == 2
    # Before it stands a warning of the writer's.
    error = json.loads(err.splitlines()[-1])["error"]
    assert (error["type"], error["outcome"]) == ("StreamFenced", "unknown")
    assert cluster("stream", "read", stream).out == b"a\nb\nc\n"


def test_a_waiting_writer_gets_the_stream_when_its_writer_closes(cluster, cli, stream):
    first = begin(cli, cluster, "append", stream, "--positions")
    say(first, b"a\n")
    first.stdout.readline()
    second = begin(cli, cluster, "append", stream, "--wait", 60, "--positions")
    say(second, b"b\n")
    second.stdin.close()
    first.communicate(b"c\n", timeout=cli.patience)
    assert (first.returncode, second.wait(cli.patience)) == (0, 0)
    second.stdin = None
    second.communicate()
    assert cluster("stream", "read", stream).out == b"a\nc\nb\n"


def test_a_record_is_appended_only_where_the_stream_is_as_expected(cluster, stream):
    one = append(cluster, stream, b"one\n", "--if-position", "start")
    for position in ("start", "1-5-0@" + one.partition("@")[2]):
        refused = cluster("stream", "append", stream, "--if-position", position, "--json", stdin=b"no\n")
        assert (refused.code, refused.error["type"]) == (CALLER, "PositionMismatch")
        assert refused.json["records"] == 0
    append(cluster, stream, b"two", "--if-position", one)
    for data in (b"", b"a\nb\n"):
        assert cluster("stream", "append", stream, "--if-position", one, stdin=data).code == USAGE
    assert cluster("stream", "read", stream).out == b"one\ntwo\n"


def test_truncated_records_are_a_gap_and_reading_goes_on_behind_it(cluster, stream):
    positions = append(cluster, stream, b"a\nb\nc\nd\n", "--positions").split()
    assert cluster("stream", "truncate", stream, "--before", positions[2], "--json").json["first_sequence"] == 2
    whole = cluster("stream", "read", stream)
    assert (whole.code, whole.out, whole.err) == (0, b"c\nd\n", "")
    behind = cluster("stream", "read", stream, "--from", positions[0])
    assert (behind.code, behind.out) == (MISSING, b"c\nd\n")
    assert behind.err == f"tallybook: stream {stream}: some record to record 1 was truncated\n"
    told = cluster("stream", "read", stream, "--from", positions[0], "--json")
    assert json.loads(told.err)["gap"]["next_sequence"] == 2
    assert cluster("stream", "truncate", stream, "--before", "2190-01-01").code == 0
    assert cluster("stream", "read", stream).out == b""
    info = cluster("stream", "info", stream, "--json").json
    assert (info["first_sequence"], info["next_sequence"], info["last_position"]) == (4, 4, None)


def test_streams_are_listed_renamed_kept_and_deleted(cluster, name):
    for part in ("a", "b"):
        made = cluster("stream", "create", f"{name}/{part}", "--retention", "72h", "--roll-bytes", "1MiB", "--json")
        assert (made.json["policy"]["retention_s"], made.json["policy"]["roll_bytes"]) == (259_200, 1 << 20)
    assert cluster("stream", "rename", f"{name}/b", f"{name}/c").code == 0
    assert [row["name"] for row in cluster("stream", "ls", f"{name}/", "--json").json] == [f"{name}/a", f"{name}/c"]
    assert f"{name}/c" in cluster("stream", "ls").out.decode()
    changed = cluster("stream", "policy", f"{name}/a", "--retention", "forever", "--compression", "zstd", "--json").json
    assert (changed["retention_s"], changed["compression"], changed["roll_bytes"]) == (None, "zstd", 1 << 20)
    assert cluster("stream", "policy", f"{name}/a", "--json").json == changed
    append(cluster, f"{name}/a", LINES)
    assert cluster("stream", "keep", "--json").json == {"streams_failed": 0}
    assert cluster("stream", "read", f"{name}/a").out == LINES
    missing = cluster("stream", "rm", f"{name}/a", f"{name}/b", f"{name}/c", "--if-exists")
    assert (missing.code, missing.out.decode().splitlines()) == (
        0,
        [
            f"deleted stream {name}/a",
            f"there is no stream '{name}/b' in namespace 'default'",
            f"deleted stream {name}/c",
        ],
    )
    assert cluster("stream", "ls", f"{name}/", "--json").json == []


def test_a_namespace_keeps_names_apart_and_has_a_policy(cluster, name):
    space = f"space-{name.partition('/')[2]}"
    assert cluster("stream", "create", name, "--namespace", space, "--json").error["type"] == "NoSuchNamespace"
    assert cluster("namespace", "create", space, "--dedup-records", 7).code == 0
    made = cluster("stream", "create", name, "--namespace", space, "--json").json
    assert (made["namespace"], made["policy"]["dedup_records"]) == (space, 7)
    append(cluster, name, b"x\n", "--namespace", space)
    assert cluster("stream", "read", name).code == CALLER
    assert {"namespace": space} in cluster("namespace", "ls", "--json").json
    assert cluster("namespace", "rm", space).code == USAGE
    assert cluster("stream", "rm", name, "--namespace", space).code == 0
    assert cluster("namespace", "rm", space).code == 0
    assert cluster("namespace", "rm", space, "--json").error["type"] == "NoSuchNamespace"
    assert cluster("namespace", "rm", space, "--json", "--if-exists").json == {"deleted": [], "missing": [space]}


def test_subscriptions_are_made_listed_set_back_and_deleted(cluster, stream):
    append(cluster, stream, b"one\ntwo\nthree\n")
    made = cluster("subscription", "create", stream, "billing", "--from", "1")
    assert (made.code, made.err) == (0, "")
    [row] = cluster("subscription", "ls", stream, "--json").json
    assert (row["subscription"], row["reader"]) == ("billing", None)
    assert row["cursor"].startswith("at 1-")
    assert cluster("subscription", "reset", stream, "billing", "--to", "earliest").code == 0
    [row] = cluster("subscription", "ls", stream, "--json").json
    assert row["cursor"].startswith("at 1-0-0@")
    assert cluster("subscription", "rm", stream, "billing").code == 0
    for never in ("billing", "never"):
        refused = cluster("subscription", "rm", stream, never)
        assert (refused.code, refused.err) == (CALLER, f"tallybook: there is no subscription '{never}'\n")
        assert cluster("subscription", "rm", stream, never, "--if-exists").code == 0
    assert cluster("subscription", "reset", stream, "billing", "--to", "never").code == USAGE


def test_append_creates_the_stream_only_on_request(cluster, name):
    refused = cluster("stream", "append", name, stdin=b"x\n")
    assert (refused.code, refused.out) == (CALLER, b"")
    assert refused.err.startswith(f"tallybook: there is no stream '{name}' in namespace 'default'\n")
    append(cluster, name, b"x\n", "--create")
    append(cluster, name, b"y\n", "--create")
    assert cluster("stream", "read", name).out == b"x\ny\n"


def test_a_stream_that_is_deleted_ends_its_tail_with_an_error(cluster, cli, stream):
    append(cluster, stream, b"x\n")
    tailing = begin(cli, cluster, "tail", stream, "--from", "earliest", "--json")
    assert json.loads(tailing.stdout.readline())["payload"] == "x"
    assert cluster("stream", "rm", stream).code == 0
    assert tailing.wait(cli.patience) == CALLER
    assert json.loads(tailing.communicate()[1])["error"]["type"] == "NoSuchStream"


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (["create", "taken"], CALLER, "StreamExists"),
        (["create", "a//b"], USAGE, "InvalidArgument"),
        (["create", ""], USAGE, "InvalidArgument"),
        (["create", "x", "--retention", "soon"], USAGE, "InvalidArgument"),
        (["create", "x", "--ack-quorum", "4"], USAGE, "InvalidArgument"),
        (["create", "x", "--namespace", "a/b"], USAGE, "InvalidArgument"),
        (["policy", "taken", "--compression", "rar"], USAGE, "InvalidArgument"),
        (["rename", "taken", " x"], USAGE, "InvalidArgument"),
        (["append", "a//b"], USAGE, "InvalidArgument"),
        (["append", "taken", "--wait", "-1"], USAGE, "Usage"),
        (["append", "taken", "--if-position", "here"], USAGE, "InvalidArgument"),
        (["append", "taken", "--if-position", "1-0-0@ffffffff"], USAGE, "ForeignPosition"),
        (["read", "taken", "--from", "nowhere"], USAGE, "InvalidArgument"),
        (["read", "taken", "--from", "1-0-0"], USAGE, "InvalidArgument"),
        (["read", "taken", "--from", "1-0-0@ffffffff"], USAGE, "ForeignPosition"),
        (["read", "taken", "--to", "latest"], USAGE, "InvalidArgument"),
        (["read", "taken", "--count", "0"], USAGE, "Usage"),
        (["tail", "taken", "--from", "after:1-0-0@ffffffff"], USAGE, "ForeignPosition"),
        (["truncate", "taken", "--before", "1-0-0@ffffffff"], USAGE, "ForeignPosition"),
        (["info", "none"], CALLER, "NoSuchStream"),
        (["tail", "none"], CALLER, "NoSuchStream"),
        (["seal", "none"], CALLER, "NoSuchStream"),
        (["mend", "none"], CALLER, "NoSuchStream"),
        (["rm", "none"], CALLER, "NoSuchStream"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_request_that_cannot_be_served_gives_an_error_object(cluster, words, code, kind):
    if "taken" in words:
        assert cluster("stream", "create", "taken").code in {0, CALLER}
    result = cluster("stream", *words, "--json", stdin=b"x\n")
    assert result.code == code
    assert (result.error["type"], result.error["exit_code"]) == (kind, code)
    assert result.error["message"]

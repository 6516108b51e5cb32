"""Parts of the command line that need no cluster."""

import asyncio
import io
import itertools
import json
import logging
import os
from pathlib import Path

import pytest
import typer.main
from hypothesis import given
from hypothesis import strategies as st

from tallybook.cli.app import COMMANDS, SUMMARIES, build
from tallybook.cli.commands.bookie import way_forward
from tallybook.cli.exits import Exit, RefusedToStart, error_object, exit_code, reading_only, sentence
from tallybook.cli.lines.pipes import PIECE_BYTES, read_lines
from tallybook.cli.local.launcher import LocalCluster
from tallybook.cli.options import assigned, read_password
from tallybook.cli.output import table
from tallybook.cli.progress import Progress
from tallybook.cli.removal import delete_each
from tallybook.core.error_codes import error_class
from tallybook.core.errors import (
    BookieUnavailable,
    Busy,
    DamagedFile,
    DiskFailed,
    EntryTooLarge,
    InvalidArgument,
    InvariantViolation,
    NoSuchLedger,
    Outcome,
    TallybookError,
)
from tallybook.core.limits import MAX_ENTRY_BYTES
from tallybook.core.settings import BookieSettings
from tallybook.metadata.uri import SqliteUri, parse_uri
from tallybook.runtime.clock import RealClock
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.logging import logger, set_up_logging
from tallybook.runtime.settings import load_settings
from tallybook.runtime.tasks import ThreadWorkers


def lines_through(open_input) -> list[bytes]:
    """The result of ``read_lines`` for an input; ``open_input`` gives its descriptor."""

    async def work() -> list[bytes]:
        workers = ThreadWorkers(1, "test")
        descriptor = open_input()
        try:
            return [line async for lines in read_lines(descriptor, workers) for line in lines]
        finally:
            os.close(descriptor)
            await workers.close()

    return asyncio.run(work())


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("lines") / "input"


@given(data=st.binary(max_size=200) | st.lists(st.sampled_from([b"\n", b"a", b"\n\n", b"bc"])).map(b"".join))
def test_lines_of_a_file_are_what_splitting_it_gives(data, scratch):
    scratch.write_bytes(data)
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert lines_through(lambda: os.open(scratch, os.O_RDONLY)) == expected


@pytest.mark.parametrize("size", [PIECE_BYTES, 3 * PIECE_BYTES + 7])
def test_lines_longer_than_a_piece_come_whole(scratch, size):
    data = [b"x" * size, b"", b"y" * size, b"z"]
    scratch.write_bytes(b"\n".join(data))
    assert lines_through(lambda: os.open(scratch, os.O_RDONLY)) == data


def test_a_line_too_long_for_an_entry_is_refused_before_more_of_it_is_read(scratch):
    scratch.write_bytes(b"a\nb\n" + bytes(16 << 20))
    given: list[bytes] = []

    async def take(descriptor: int, workers: ThreadWorkers) -> None:
        async for lines in read_lines(descriptor, workers):
            given.extend(lines)

    async def work() -> int:
        workers = ThreadWorkers(1, "test")
        descriptor = os.open(scratch, os.O_RDONLY)
        try:
            with pytest.raises(EntryTooLarge, match=r"^line 3 "):
                await take(descriptor, workers)
            return os.lseek(descriptor, 0, os.SEEK_CUR)
        finally:
            os.close(descriptor)
            await workers.close()

    assert asyncio.run(work()) <= MAX_ENTRY_BYTES + 2 * PIECE_BYTES
    assert given == [b"a", b"b"]


def test_the_longest_entry_there_can_be_is_a_line_and_a_byte_more_is_none(scratch):
    scratch.write_bytes(b"x" * MAX_ENTRY_BYTES + b"\ny")
    assert list(map(len, lines_through(lambda: os.open(scratch, os.O_RDONLY)))) == [MAX_ENTRY_BYTES, 1]
    scratch.write_bytes(b"z\n" + b"x" * (MAX_ENTRY_BYTES + 1) + b"\ny")
    with pytest.raises(EntryTooLarge, match=r"^line 2 "):
        lines_through(lambda: os.open(scratch, os.O_RDONLY))


def all_errors() -> list[type[TallybookError]]:
    """Every error there is."""
    return sorted({error_class(code) for code in range(1, 1000)}, key=lambda error: error.wire_code)


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: error.__name__)
def test_every_error_has_an_exit_code_a_sentence_and_an_object(error):
    made = error("it happened")
    code = exit_code(made)
    assert code in (Exit.USAGE, Exit.CALLER, Exit.PEER, Exit.STORAGE, Exit.DEFECT)
    assert sentence(made).startswith("it happened")
    told = json.loads(error_object(made, code))["error"]
    assert (told["type"], told["code"], told["exit_code"]) == (error.__name__, error.wire_code, code)


def test_a_sentence_says_whether_to_retry_and_what_is_unknown():
    assert sentence(InvalidArgument("no")) == "no"
    assert sentence(Busy("later", retry_after_ms=5)) == "later (a retry may help)"
    unknown = TallybookError("odd", outcome=Outcome.UNKNOWN)
    assert sentence(unknown).endswith("it is not known whether the command took effect)")
    assert sentence(InvariantViolation()).startswith("InvariantViolation (this is a defect in Tallybook")


def test_a_refused_start_and_a_read_leave_no_outcome_unknown():
    assert RefusedToStart(DiskFailed("no")).cause.outcome is Outcome.NOT_DONE
    with pytest.raises(BookieUnavailable) as failed, reading_only():
        raise BookieUnavailable("gone")
    assert failed.value.outcome is Outcome.NOT_DONE


@pytest.mark.parametrize(
    ("traces", "numbers"),
    [
        ([], [1, 2, 3]),
        (["bookie-1/cookie"], [1]),
        (["bookie-1/cookie", "bookie-3/cookie"], [1, 2, 3]),
        (["bookie-1/cookie", "bookie-2.log"], [1, 2]),
        (["bookie-1/cookie", "bookie-9/other", "bookie-x/cookie"], [1]),
    ],
)
def test_a_cluster_has_every_bookie_that_it_ever_had(tmp_path, traces, numbers):
    for trace in traces:
        (tmp_path / trace).parent.mkdir(exist_ok=True)
        (tmp_path / trace).touch()
    cluster = LocalCluster(tmp_path, None, None, RealClock())
    assert [bookie.bookie_id for bookie in cluster.bookies] == [f"bookie-{number}" for number in numbers]
    assert cluster.left_out == []
    fewer = LocalCluster(tmp_path, 1, None, RealClock())
    assert fewer.left_out == [trace.partition("/")[0].removesuffix(".log") for trace in traces if trace[7] in "23"]


async def test_what_a_killed_bookie_says_of_its_process_is_removed_when_its_cluster_starts_again(tmp_path):
    stale = tmp_path / "bookie-2" / "run.json"
    stale.parent.mkdir()
    stale.write_text('{"pid": 1}')
    disk = RealDisk()
    async with LocalCluster(tmp_path, 2, disk, RealClock()):
        assert not stale.exists()
    await disk.close()


@pytest.mark.parametrize("name", ["plain", "a b", "100%", "ä#?"])
def test_the_uri_of_a_cluster_names_its_file_in_a_directory_of_any_name(tmp_path, name):
    cluster = LocalCluster(tmp_path / name, 1, None, RealClock())
    assert parse_uri(cluster.metadata) == SqliteUri(f"{tmp_path}/{name}/metadata.db")


def test_the_paragraphs_of_a_help_text_are_for_the_terminal_to_wrap():
    groups = typer.main.get_command(build(COMMANDS)).commands.values()
    for command in [child for group in groups for child in getattr(group, "commands", {"": group}).values()]:
        assert "\n" not in command.help.replace("\n\n", ""), command.name


def test_the_list_of_commands_says_of_each_what_its_own_help_begins_with():
    commands = typer.main.get_command(build(COMMANDS)).commands
    assert {name: command.help.partition("\n")[0] for name, command in commands.items()} == SUMMARIES
    assert list(SUMMARIES) == list(COMMANDS)


@pytest.mark.parametrize("known", [{1, 3}, {1}])
def test_what_was_deleted_is_one_json_document_also_after_an_error(known, capsys):
    async def delete(ledger_id: int) -> None:
        if ledger_id == 4:
            raise Busy("too many requests")
        if ledger_id not in known:
            raise NoSuchLedger(f"there is no ledger {ledger_id}")

    with pytest.raises(Busy):
        asyncio.run(delete_each("ledger", [1, 2, 3, 4, 5], delete, if_exists=True, as_json=True))
    missing = sorted({1, 2, 3} - known)
    assert json.loads(capsys.readouterr().out) == {"deleted": sorted(known), "missing": missing}
    with pytest.raises(NoSuchLedger):
        asyncio.run(delete_each("ledger", [2, 1], delete, if_exists=False, as_json=True))
    assert capsys.readouterr().out == ""


def test_warnings_of_ours_keep_their_fields_and_silent_libraries_stay_silent():
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    stream = io.StringIO()
    try:
        set_up_logging("WARNING", "text", stream, silent=["kazoo"])
        logger("client").warning("bad copy", bookie="bookie-1")
        logging.getLogger("kazoo.client").warning("Connection dropped")
        logging.getLogger("kazoofari").warning("another one")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    ours, other = stream.getvalue().splitlines()
    assert ours.endswith(" WARNING client: bad copy bookie=bookie-1")
    assert "kazoofari" in other


def test_a_table_never_breaks_or_shortens_a_value():
    rows = [
        {"bookie_id": f"bookie-with-a-long-name-{number}", "why": "no answer for " + "very " * 9} for number in (7, 12)
    ]
    for width in (None, 200, 80, 30):
        text = "\n".join(table(rows, ("bookie_id", "why"), width))
        assert all(str(row["bookie_id"]) in text for row in rows)
        assert text.count("very") == 18
    assert max(map(len, table(rows, ("bookie_id", "why"), 80)[2:])) <= 80, "the last column is wrapped between words"


def test_the_way_forward_of_a_bookie_with_several_disks_names_all_of_them():
    settings = BookieSettings(
        data_directory="/data/b 1", metadata="sqlite:///m.db", journal_directories=("/fast/j",),
        ledger_directories=("/disk1/l", "/disk2/l"),
    )  # fmt: skip
    told = way_forward(settings, DamagedFile("/data/b 1/FORMAT is missing"))
    data, metadata = "--data '/data/b 1'", "--metadata sqlite:///m.db"
    directories = "--set journal_directories=/fast/j --set ledger_directories=/disk1/l,/disk2/l"
    assert f"tallybook bookie init --accept-loss {data} {metadata} {directories}, " in told
    assert "move /data/b 1, /fast/j, /disk1/l, /disk2/l away" in told
    assert f"tallybook bookie init --replace {data} --id ID {metadata}" in told
    again = load_settings(BookieSettings, overrides={"data_directory": "/d", "metadata": "memory:", **assigned(
        ["journal_directories=/fast/j", "ledger_directories=/disk1/l,/disk2/l"]
    )})  # fmt: skip
    assert again.journal_directories == settings.journal_directories
    assert again.ledger_directories == settings.ledger_directories


class Ticking:
    """A clock that advances by a second at each read."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def test_where_there_is_no_terminal_progress_is_a_line_now_and_then_if_one_is_wanted():
    pipe, clock = io.StringIO(), Ticking()
    progress = Progress("draining b1", clock, pipe, plain=lambda: f"at {clock.now:.0f} s")
    for _ in range(100):
        progress.update(1, 0, 1.0)
    progress.end()
    times = [float(line.split()[1]) for line in pipe.getvalue().splitlines()]
    assert len(times) > 2
    assert all(30 <= late - early <= 33 for early, late in itertools.pairwise(times))


@pytest.mark.parametrize(
    ("content", "mode", "found"),
    [
        (b"abc\n", 0o600, b"abc"), (b"a\nb", 0o600, b"a\nb"), (b"x\r\n", 0o600, b"x"), (b" ", 0o600, b" "),
        (b"", 0o600, "must hold"), (b"\n", 0o600, "must hold"), (b"x" * 1025, 0o600, "must hold"),
        (b"abc", 0o644, "chmod o-rwx"),
    ],
)  # fmt: skip
def test_a_password_is_the_file_less_one_newline_and_others_may_not_read_it(tmp_path, content, mode, found):
    file = tmp_path / "password"
    file.write_bytes(content)
    file.chmod(mode)
    if isinstance(found, bytes):
        assert read_password(file) == found
    else:
        with pytest.raises(InvalidArgument, match=found):
            read_password(file)


def test_a_password_file_that_is_none_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, why in (("pipe", "is not a regular file"), ("", "is not a regular file"), ("none", "does not exist")):
        with pytest.raises(InvalidArgument, match=why):
            read_password(tmp_path / name)


def test_a_password_may_come_through_what_a_shell_has_opened():
    """A file as given by --password-file <(pass show ledger)."""
    reading, writing = os.pipe()
    os.write(writing, b"abc\n")
    os.close(writing)
    assert read_password(Path(f"/dev/fd/{reading}")) == b"abc"
    os.close(reading)

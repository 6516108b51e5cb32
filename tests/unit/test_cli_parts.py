"""The parts of the command line that can be had without a cluster."""

import asyncio
import hashlib
import io
import itertools
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from hypothesis import given
from hypothesis import strategies as st

from tallybook.cli.app import COMMANDS, SUMMARIES, build
from tallybook.cli.bookie import way_forward
from tallybook.cli.bookie_modes import how_far
from tallybook.cli.demo_check import Tally
from tallybook.cli.demo_source import FLIGHTS, find_flights, flights
from tallybook.cli.exits import (
    MEANINGS,
    Exit,
    RefusedToStart,
    disk_failed,
    error_object,
    exit_code,
    reading_only,
    sentence,
)
from tallybook.cli.launcher import LocalCluster
from tallybook.cli.options import assigned, read_password
from tallybook.cli.output import plain, print_record, print_rows
from tallybook.cli.pipes import PIECE_BYTES, read_lines
from tallybook.cli.progress import Progress, human_bytes, watched
from tallybook.core.config import BookieSettings
from tallybook.core.errors import (
    BookieUnavailable,
    Busy,
    DamagedFile,
    DiskFailed,
    EntryTooLarge,
    InvalidArgument,
    InvariantViolation,
    Outcome,
    TallybookError,
    error_class,
)
from tallybook.core.limits import MAX_ENTRY_BYTES
from tallybook.metadata.uri import SqliteUri, parse_uri
from tallybook.runtime.clock import RealClock
from tallybook.runtime.disk_real import RealDisk
from tallybook.runtime.logging import logger, set_up_logging
from tallybook.runtime.settings import load_settings
from tallybook.runtime.tasks import ThreadWorkers


def lines_through(open_input) -> list[bytes]:
    """What ``read_lines`` makes of an input; ``open_input`` gives its descriptor."""

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


@pytest.mark.parametrize("size", [PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 7])
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


def test_lines_come_through_a_pipe_whatever_the_pieces():
    reading, writing = os.pipe()
    program = "import os, time\nfor x in (b'on', b'e\\ntwo', b'\\n', b'\\nfour'): os.write(1, x); time.sleep(0.02)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=writing):
        os.close(writing)
        assert lines_through(lambda: reading) == [b"one", b"two", b"", b"four"]


def all_errors() -> list[type[TallybookError]]:
    """Every error there is."""
    return sorted({error_class(code) for code in range(1, 1000)}, key=lambda error: error.wire_code)


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: error.__name__)
def test_every_error_has_an_exit_code_a_sentence_and_an_object(error):
    made = error("it happened")
    code = exit_code(made)
    assert code in (Exit.USAGE, Exit.CALLER, Exit.PEER, Exit.STORAGE, Exit.DEFECT)
    assert sentence(made).startswith("it happened (")
    told = json.loads(error_object(made, code))["error"]
    assert (told["type"], told["code"], told["exit_code"]) == (error.__name__, error.wire_code, code)


def test_a_sentence_says_whose_fault_whether_to_retry_and_what_is_unknown():
    assert sentence(InvalidArgument("no")) == "no (the request is at fault; trying again will not help)"
    assert sentence(Busy("later", retry_after_ms=5)) == "later (another process is at fault; trying again may help)"
    unknown = TallybookError("odd", outcome=Outcome.UNKNOWN)
    assert sentence(unknown).endswith("; whether it took effect is not known)")
    assert sentence(InvariantViolation()).startswith("InvariantViolation (this is a defect in Tallybook")


def test_a_refused_start_and_a_read_leave_no_outcome_unknown():
    assert RefusedToStart(DiskFailed("no")).cause.outcome is Outcome.NOT_DONE
    with pytest.raises(BookieUnavailable) as failed, reading_only():
        raise BookieUnavailable("gone")
    assert failed.value.outcome is Outcome.NOT_DONE


def test_an_error_of_the_system_is_told_in_words():
    assert (
        disk_failed(FileNotFoundError(2, "No such file or directory", "/x")).message == "/x: No such file or directory"
    )
    assert disk_failed(OSError("odd")).message == "odd"


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
def test_the_uri_of_a_cluster_names_its_file_whatever_the_directory_is_called(tmp_path, name):
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


def test_every_exit_code_is_explained():
    assert list(MEANINGS) == list(Exit)


def test_records_and_rows_are_aligned_for_people_and_json_for_programs(capsys):
    print_record({"ledger_id": 7, "state": "open", "closed": False, "missed": []}, as_json=False)
    assert capsys.readouterr().out == "ledger id  7\nstate      open\nclosed     no\nmissed     -\n"
    print_record({"ledger_id": 7}, as_json=True)
    print_rows([{"a": 1, "b": "x" * 200}], ["a", "b"], as_json=True)
    assert capsys.readouterr().out == '{"ledger_id": 7}\n' + json.dumps([{"a": 1, "b": "x" * 200}]) + "\n"
    print_rows([{"a": 1, "b": "[red]" + "x" * 200}], ["a", "b"], as_json=False)
    assert "[red]" + "x" * 200 in capsys.readouterr().out


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


def test_a_bookie_that_is_drained_is_told_how_far_it_is_and_never_as_empty_when_it_is_not():
    found = {"bookie_id": "b1", "ledgers": 0, "growing": 0, "still_chosen": False, "may_be_switched_off": False}
    assert "may be switched off" in how_far({**found, "may_be_switched_off": True})
    some = {**found, "ledgers": 2_000, "growing": 3, "first_ledger_ids": [7, 9]}
    assert how_far(some) == "2,000 ledgers still name b1, 3 of them where they grow: 7, 9 and 1,998 more"
    assert how_far({**some, "ledgers": 2, "why": {"9": "it is open"}}).endswith("where they grow: 7, 9 (it is open)")
    assert how_far({**some, "ledgers": 1, "growing": 0, "first_ledger_ids": [7]}) == "1 ledger still names b1: 7"
    assert "new ones may yet" in how_far({**found, "still_chosen": True})
    assert "not all of them could be looked at" in how_far(found)


def test_plain_values():
    assert plain({"first": 1, "rest": [2, None]}) == "first=1, rest=2, -"
    assert (plain(""), plain(True), plain(0)) == ("-", "yes", "0")


def test_sizes_are_readable():
    assert [human_bytes(size) for size in (0, 999, 1000, 123_456_789, 5e12)] == [
        "0 B", "999 B", "1.0 kB", "123.5 MB", "5.0 TB",
    ]  # fmt: skip


class Terminal(io.StringIO):
    """Looks like a terminal."""

    def isatty(self) -> bool:
        return True


class Ticking:
    """A clock that moves by a second whenever it is looked at."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def test_progress_is_a_line_that_is_gone_in_the_end_and_only_a_terminal_sees_it():
    terminal, file = Terminal(), io.StringIO()
    for out in (terminal, file):
        progress = Progress("ledger 3", Ticking(), out)
        progress.update(1234, 5_000_000, 2.0)
        progress.end()
    assert terminal.getvalue() == "\r\x1b[Kledger 3: 1,234 entries, 5.0 MB, 617 entries/s\r\x1b[K"
    assert file.getvalue() == ""


def test_where_there_is_no_terminal_progress_is_a_line_now_and_then_if_one_is_wanted():
    pipe, clock = io.StringIO(), Ticking()
    progress = Progress("draining b1", clock, pipe, plain=lambda: f"at {clock.now:.0f} s")
    for _ in range(100):
        progress.update(1, 0, 1.0)
    progress.end()
    times = [float(line.split()[1]) for line in pipe.getvalue().splitlines()]
    assert len(times) > 2
    assert all(30 <= late - early <= 33 for early, late in itertools.pairwise(times))


async def test_work_that_does_not_say_how_far_it_is_is_looked_at_again_and_again():
    class Quick(Ticking):
        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(0)

    terminal, looks, seen = Terminal(), itertools.count(1), asyncio.Event()

    def look() -> tuple[int, int]:
        number = next(looks)
        if number == 5:
            seen.set()
        return number, 3_000_000

    clock = Quick()
    async with watched(Progress("verifying", clock, terminal, unit="objects done"), clock, look):
        await seen.wait()
    assert re.match(r"(\r\x1b\[Kverifying: \d objects done, 3.0 MB, [\d.]+ .?B/s)+\r\x1b\[K$", terminal.getvalue())


@pytest.mark.parametrize(
    ("content", "password"), [(b"abc\n", b"abc"), (b"a\nb", b"a\nb"), (b"x\r\n", b"x"), (b" ", b" ")]
)
def test_a_password_is_the_file_less_one_newline(tmp_path, content, password):
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_bytes(content)
    assert read_password(file) == password


@pytest.mark.parametrize("content", [b"", b"\n", b"x" * 1025])
def test_a_password_file_without_a_password_is_refused(tmp_path, content):
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_bytes(content)
    with pytest.raises(InvalidArgument, match="must hold"):
        read_password(file)


def test_a_password_file_that_everybody_may_read_is_refused(tmp_path):
    file = tmp_path / "password"
    file.write_bytes(b"abc")
    file.chmod(0o644)
    with pytest.raises(InvalidArgument, match="chmod o-rwx"):
        read_password(file)


def test_a_password_file_that_is_none_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, why in (("pipe", "is no file"), ("", "is no file"), ("none", "cannot be read")):
        with pytest.raises(InvalidArgument, match=why):
            read_password(tmp_path / name)


def test_a_password_may_come_through_what_a_shell_has_opened():
    """As --password-file <(pass show ledger) gives it."""
    reading, writing = os.pipe()
    os.write(writing, b"abc\n")
    os.close(writing)
    assert read_password(Path(f"/dev/fd/{reading}")) == b"abc"
    os.close(reading)


@given(
    lines=st.lists(st.binary(max_size=5), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    places=st.sets(st.integers(0, 30), max_size=4),
)
def test_a_tally_remembers_the_digest_at_each_place_however_the_lines_came(lines, cuts, places):
    reached = sorted(place for place in places if place <= len(lines))
    tally = Tally(reached)
    ends = [*sorted(min(cut, len(lines)) for cut in cuts), len(lines)]
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        tally.add(lines[start:end])
    expected = [hashlib.sha256(b"".join(line + b"\n" for line in lines[:place])).hexdigest() for place in reached]
    assert tally.digests == expected
    assert (tally.lines, tally.bytes) == (len(lines), sum(map(len, lines)))


def test_the_flights_are_all_there_and_each_is_json():
    found = [line for lines in flights(find_flights()) for line in lines]
    assert len(found) == FLIGHTS
    for line in found[:: FLIGHTS // 50]:
        json.loads(line)
    cancelled = json.loads(found[838])
    assert (cancelled["dep_time"], cancelled["carrier"], cancelled["flight"]) == (None, "EV", 4308)
    assert [line for lines in flights(find_flights(), 1_500) for line in lines] == found[:1_500]

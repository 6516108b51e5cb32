"""Parts of a chaos run without processes: the plan, the payloads, the log of a load."""

import asyncio
import json
import logging

import pytest

from tallybook.bench.loads.payloads import MIN_BYTES, Payloads, identify, payload_of
from tallybook.client.ports import ClientWorld
from tallybook.core.errors import InvalidArgument, MetadataUnavailable
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng
from tallybook.sim.chaos import __main__ as chaos_command
from tallybook.sim.chaos.load import CANNOT_OPEN, LoadProcess
from tallybook.sim.chaos.nemesis import plan
from tallybook.sim.chaos.records import BookiePromises, Recorder, replay
from tallybook.sim.workload.history import History, Violation, check

KILLS = {"kill": 1, "kill_while_starting": 2, "kill_all": 5}


def test_a_plan_follows_from_its_seed_ends_in_time_and_kills_stops_and_cuts():
    for seed in range(20):
        strikes = plan(SeededRng(seed), 60, bookies=5, loads=2)
        assert strikes == plan(SeededRng(seed), 60, bookies=5, loads=2)
        assert strikes != plan(SeededRng(seed + 1), 60, bookies=5, loads=2)
        assert all(strike.at + strike.seconds <= 60 for strike in strikes)
        short = plan(SeededRng(seed), 10, bookies=5, loads=2)
        assert {strike.kind for strike in short[:3]} == {"kill", "stop", "cut"}
        assert sum(KILLS.get(strike.kind, 0) for strike in plan(SeededRng(seed), 300, bookies=5, loads=2)) > 60


@pytest.mark.parametrize("size", [MIN_BYTES, 33, 1000])
def test_a_payload_tells_what_it_is_and_any_other_byte_shows(size):
    payload = payload_of(7, 12, size)
    assert len(payload) == size
    assert identify(7, payload) == (12, size)
    assert identify(8, payload) is None
    assert identify(7, payload[:-1]) is None
    for at in (0, 3, size - 1):
        damaged = bytearray(payload)
        damaged[at] ^= 1
        assert identify(7, bytes(damaged)) is None


@pytest.fixture
def log(tmp_path):
    """The log of a load that appended two entries, of which one was confirmed, and read one."""
    recorder = Recorder(tmp_path / "log")
    create = recorder.begin("create", "w")
    recorder.note("made", create, 7)
    first = recorder.begin("append", "w", 7, 0, 40)
    recorder.begin("append", "w", 7, 1, 50)
    recorder.note("ok", first, 0)
    reading = recorder.reading("r", 7)
    recorder.note("lac", reading, 0)
    recorder.saw(reading, 7, 0, payload_of(7, 0, 40))
    recorder.close()
    return tmp_path / "log"


def add(log, *words):
    with log.open("a") as file:
        file.write(json.dumps(words) + "\n")


def violations(log):
    history = History()
    told = replay(log, history, Payloads(), BookiePromises())
    return told, {violation.invariant for violation in check(history)}


@pytest.mark.parametrize(
    ("lines", "invariants"),
    [
        ([("close", 9, "w", 7), ("end", 9, -1, 0)], {"I2"}),
        ([("lac", 4, -1)], {"I6"}),
        ([("saw", 4, 7, 1, "")], {"I8"}),
    ],
    ids=["confirmed and not read", "a last add confirmed that falls", "an entry that no load wrote"],
)
def test_a_violation_in_a_log_is_found(log, lines, invariants):
    for words in lines:
        if words[0] == "saw":
            recorder = Recorder(log)
            recorder.saw(*words[1:4], b"other")
            recorder.close()
        else:
            add(log, *words)
    assert violations(log) == ([], invariants)


def test_a_log_without_fault_has_no_violation_even_if_its_last_line_is_torn(log):
    assert violations(log) == ([], set())
    with log.open("a") as file:
        file.write('["saw",4,1,9')
    assert violations(log) == ([], set())


def test_a_log_keeps_what_loads_found_wrong_and_what_bookies_promised(log):
    add(log, "violation", "defect", -1, "an error")
    add(log, "acked", "b1", 7, 4, 3)
    add(log, "fenced", "b2", 7, 0, 0)
    promises = BookiePromises()
    assert replay(log, History(), Payloads(), promises) == [Violation("defect", -1, "an error")]
    assert promises.acked == {(7, "b1"): {4: 6}}
    assert promises.fenced == {(7, "b2")}
    add(log, "laf", 4, 1)
    with pytest.raises(InvalidArgument, match="'laf'"):
        violations(log)


def test_the_highest_entry_that_an_ack_quorum_acked_is_found_over_gaps_and_batches_of_different_sizes():
    promises = BookiePromises()
    assert promises.highest_acked(7, 1) == -1
    for bookie, first, count in (("b0", 0, 4), ("b1", 0, 2), ("b1", 3, 1), ("b2", 2, 8), ("b0", 9, 3)):
        promises.note("acked", bookie, 7, first, count)
    promises.note("acked", "b3", 8, 0, 99)
    assert [promises.highest_acked(7, quorum) for quorum in (1, 2, 3, 4)] == [11, 9, 3, -1]


async def test_an_append_that_ends_with_an_undeclared_error_is_a_violation_and_those_after_it_still_count(tmp_path):
    log = tmp_path / "log"
    recorder = Recorder(log)
    load = LoadProcess("load", None, recorder, RealClock(), SeededRng(1), writers=0, readers=0, recoverers=0)
    first, second = (recorder.begin("append", "w", 7, number, 40) for number in range(2))
    broken, well = asyncio.Future(), asyncio.Future()
    broken.set_exception(KeyError("who"))
    well.set_result(0)
    await load._settle([(first, broken), (second, well)], None)
    recorder.close()
    told, _ = violations(log)
    assert [(violation.invariant, "KeyError" in violation.detail) for violation in told] == [("client", True)]
    assert '["ok",2,0]' in log.read_text()


@pytest.mark.parametrize(("fails", "code"), [("open_world", CANNOT_OPEN), ("Client", 1)])
def test_only_a_client_that_cannot_be_opened_is_excused(fails, code, tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise MetadataUnavailable("the store does not answer")

    async def opened(*_):
        return ClientWorld(None, None, None, None, None)

    # The program silences the library for good, which other tests of this process listen to.
    monkeypatch.setattr(logging.getLogger("kazoo"), "setLevel", lambda _: None)
    monkeypatch.setattr(chaos_command, "die_with_parent", lambda _: None)
    monkeypatch.setattr(chaos_command, "open_world", opened)
    monkeypatch.setattr(chaos_command, fails, fail)
    words = ["--name", "load", "--log", str(tmp_path / "log"), "--metadata", "", "--seed", "1", "--parent-pipe", "0"]
    monkeypatch.setattr("sys.argv", ["chaos", "load", *words])
    assert chaos_command.main() == code
    assert "MetadataUnavailable" in capsys.readouterr().err

"""Arithmetic of the profile: stacks to steps, shares of samples to processor time, and the page."""

import ast
from pathlib import Path

import pytest

from tallybook.bench.equipment.processor_time import ProcessorTime, ThreadTime, parse_stat, used_between
from tallybook.bench.loads.traced_calls import CALLER
from tallybook.bench.profile.attribution import LoadCosts, attribute, entries_in_batches
from tallybook.bench.profile.load_run import BOOKIES, CLIENT
from tallybook.bench.profile.loads import CALLS, LOADS
from tallybook.bench.profile.native_stacks import library_shares, loop_shares, parse_native_stacks
from tallybook.bench.profile.page import largest, render
from tallybook.bench.profile.stacks import parse_stacks
from tallybook.bench.profile.steps import BY_FUNCTION, WHOLE_FILES, Step, step_of_stack
from tallybook.bench.profile.waterfall import TimedSpan, chart, waterfall
from tallybook.bookie.spans import ENTRY_LOG, INDEX, JOURNAL, JOURNAL_WRITE, SERVE
from tallybook.client.spans import ADD, READ, REQUEST
from tallybook.core.batch import encode_batch
from tallybook.core.errors import InvalidArgument

ROOT = Path(__file__).resolve().parents[2]

LOOP = "thread (7): MainThread;main (cli/app.py:1);Runner.run (asyncio/runners.py:118)"
VERIFIES = "AddPath.take (bookie/write/add_path.py:136);verify_batch (core/batch.py:293);helper (core/buffers.py:1)"
SAMPLES = f"""\
{LOOP} 5
thread (7): MainThread 3
{LOOP};{VERIFIES} 2
{LOOP};AddPath.take.<locals>.f (bookie/write/add_path.py:9);helper (core/buffers.py:1) 1
thread (8): checkpoint_0;_worker (concurrent/futures/thread.py:83) 4
thread (9): unknown-1;_worker (concurrent/futures/thread.py:83) 1
"""


def steps_of(text):
    """The step of each line."""
    return [step_of_stack(stack) for stack in parse_stacks(text)]


def test_the_innermost_listed_function_decides_then_the_name_of_the_thread():
    assert steps_of(SAMPLES) == [Step.EVENT_LOOP, Step.OTHER, Step.VERIFY, Step.ADMISSION, Step.FLUSH, Step.OTHER]


def test_a_line_that_is_no_stack_is_refused():
    with pytest.raises(InvalidArgument, match="not a stack"):
        steps_of("Sampling process 100 times a second\n")


def test_the_longest_path_that_fits_a_file_counts():
    lines = ["bookie/storage/checkpoint.py", "bookie/storage/index/format.py", "site-packages/other/wire/x.py"]
    assert steps_of("".join(f"thread (1): T;f ({file}:3) 1\n" for file in lines)) == [
        Step.FLUSH,
        Step.INDEX,
        Step.OTHER,
    ]


def test_every_listed_function_exists_so_that_the_table_follows_the_code():
    for path in WHOLE_FILES:
        assert (ROOT / path).exists(), path
    for file, function in BY_FUNCTION:
        if file.startswith(("asyncio/", "grpc/")):
            continue
        body = ast.parse((ROOT / file).read_text()).body
        for name in function.split("."):
            found = [node for node in body if getattr(node, "name", "") == name]
            assert found, f"{file} has no {function}"
            body = found[0].body


def test_processor_time_is_divided_by_samples_and_waiting_does_not_count():
    used = {7: (0.4, 0.4), 8: (0.0, 0.0), 20: (1.0, 0.0), 21: (0.5, 0.0)}
    names = {7: "python", 8: "python", 20: "rocksdb:low", 21: "python"}
    threads = {thread: ThreadTime(names[thread], ProcessorTime(*times)) for thread, times in used.items()}
    found = attribute(parse_stacks(SAMPLES), threads)
    assert {step: pytest.approx(times.total_s) for step, times in found.items()} == {
        Step.EVENT_LOOP: 0.5,
        Step.VERIFY: 0.2,
        Step.ADMISSION: 0.1,
        Step.INDEX: 1.0,
        Step.OTHER: 0.5,
    }
    assert found[Step.VERIFY].system_s == pytest.approx(0.1)


def test_the_measured_share_of_the_loop_replaces_the_sampled_one():
    threads = {7: ThreadTime("python", ProcessorTime(1.0, 0.0))}
    found = attribute(parse_stacks(SAMPLES), threads, {7: {Step.EVENT_LOOP: 0.1}})
    assert {step: pytest.approx(times.total_s) for step, times in found.items()} == {
        Step.EVENT_LOOP: 0.1,
        Step.VERIFY: 0.6,
        Step.ADMISSION: 0.3,
    }


def native(*frames, thread=5):
    """A sample as ``perf script`` prints it, innermost frame first."""
    lines = [f"\t    7f12 {function} (/usr/lib/{file})\n" for function, file in frames]
    return f"py thon  4/{thread} \n{''.join(lines)}\n"


def test_native_stacks_tell_the_loop_from_the_python_code_that_it_calls():
    python, loop = ("_PyEval_EvalFrameDefault", "libpython3.11.so"), ("uv__io_poll", "loop.cpython.so")
    text = (
        native(("epoll", "[kernel.kallsyms]"), loop)
        + native(("f", "libc.so.6"), ("g", "cygrpc.so"), loop)
        + native(("crc", "_crc32c.so"), python, loop, python) * 2
        + native(("wait", "libc.so.6"), thread=6)
    )
    stacks = list(parse_native_stacks(text))
    assert loop_shares(stacks) == {5: {Step.EVENT_LOOP: 0.25, Step.LOOP_GRPC: 0.25}}
    assert library_shares(stacks) == {"kernel": 0.2, "C library": 0.4, "crc32c": 0.4}
    assert library_shares([]) == {}


def test_times_of_threads_are_differences_of_stat_files():
    before = {1: parse_stat("1 (a) b (c) S " + "0 " * 10 + "250 50 0", 100)}
    assert before == {1: ThreadTime("a) b (c", ProcessorTime(2.5, 0.5))}
    after = {1: ThreadTime("a", ProcessorTime(3.0, 0.5)), 2: ThreadTime("new", ProcessorTime(0.0, 1.0))}
    assert [thread.used for thread in used_between(before, after).values()] == [
        ProcessorTime(0.5, 0.0),
        ProcessorTime(0.0, 1.0),
    ]
    with pytest.raises(InvalidArgument, match="not the stat file"):
        parse_stat("", 100)


def test_entries_are_counted_by_the_bytes_of_their_batches():
    batch = encode_batch(1, 0, [b"x" * 100] * 7, lac=-1, ledger_length=700, written_at_us=0)
    assert entries_in_batches(3, 3 * len(batch), 100) == pytest.approx(21)


def test_the_page_has_every_load_and_names_its_largest_costs():
    times = {step: ProcessorTime(1.0) for step in Step} | {
        Step.SEND: ProcessorTime(9.0),
        Step.OTHER: ProcessorTime(5.0),
    }
    shares = {"Python": 0.75, "kernel": 0.25}
    costs = [
        LoadCosts(load.title, 10.0, 1024, 1e6, 1e4, {CLIENT: times, BOOKIES: times}, {CLIENT: shares}) for load in LOADS
    ]
    page = render({"processor": "one"}, costs, quick=True)
    assert largest(costs[0])[0][0] is Step.SEND
    assert page.count("Largest: send 2") == len(LOADS)
    assert "| send | 9.00 | 9.00 | 18.0 | 2" in page
    assert "| 100,000 |" in page
    assert f"| {CALLS[1].title} | 100,000 | 42.0 | 42.0 | 100 | 8.40 |" in page


def span(name, span_id, parent_id, begin_ms, end_ms, **events_ms):
    """A span of the only trace."""
    events = {event: int(at * 1e6) for event, at in events_ms.items()}
    return TimedSpan(name, "trace", span_id, parent_id, int(begin_ms * 1e6), int(end_ms * 1e6), events)


def requests(parent, times, *below):
    """Requests of one call: the end of each, with the spans of the bookie below it."""
    for number, end in enumerate(times):
        me, serve = f"{number}", f"{number}s"
        yield span(REQUEST, me, parent, 3, end, sent=4)
        yield span(SERVE, serve, me, 5, end - 1)
        yield from (span(name, name + me, serve, *ends) for name, *ends in below)


def test_the_stages_of_an_append_end_with_the_ack_that_completes_the_quorum():
    below = [(JOURNAL, 6, 8)]
    spans = [
        span(CALLER, "c", "", 0, 14),
        span(ADD, "a", "c", 1, 13, sealed=2, confirmed=13),
        *requests("a", [20, 11, 10], *below),
        *(span(JOURNAL_WRITE, "w" + me, JOURNAL + me, 7, 8) for me in ("0", "1", "2")),
    ]
    stages = waterfall("append", spans).stages
    milliseconds = [round(times[0] * 1e3, 3) for times in stages.values()]
    assert milliseconds == [1, 1, 1, 1, 1, 1, 1, 1, 2, 1, 2, 1]
    assert milliseconds[list(stages).index("bookie: device write, until reported")] == 1
    assert "14.000" in chart(waterfall("append", spans))


def test_a_cache_takes_no_time_for_a_lookup_and_calls_without_all_spans_are_left_out():
    call = [span(CALLER, "c", "", 0, 14), span(READ, "r", "c", 1, 13)]
    disk = waterfall("read", [*call, *requests("r", [12], (INDEX, 6, 7), (ENTRY_LOG, 8, 10))]).stages
    assert [round(times[0] * 1e3) for times in disk.values()] == [3, 1, 1, 1, 1, 3, 1, 1, 1, 1]
    cached = waterfall("read", [*call, *requests("r", [12])]).stages
    assert (cached["bookie: index"], cached["bookie: entry log"], cached["bookie: answer"]) == ([0.0], [0.0], [0.006])
    broken = waterfall("read", call)
    assert (broken.calls, broken.incomplete) == (0, 1)
    assert "0 calls, 1 more left out" in chart(broken)


def test_a_small_step_is_listed_below_the_table():
    times = {Step.SEND: ProcessorTime(9.9), Step.ACK: ProcessorTime(0.1)}
    page = render({}, [LoadCosts("load", 10.0, 1024, 1e6, 0.0, {CLIENT: times})])
    assert "*Steps below 2 %*, µs: ack 0.10." in page
    assert "| ack |" not in page

"""Tuning of a process, measured from outside: page faults and scheduling policy, each in a separate process."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE_SECONDS = 240


def output_of(program: str, *arguments: object, check: bool = True, env: dict[str, str] | None = None) -> str:
    """The output of a Python program, in a process of its own."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=check, timeout=DEADLINE_SECONDS, env=env
    ).stdout


PROGRAM = """
import resource, threading
from tallybook.runtime.tuning import keep_freed_memory

def churn():
    for _ in range(200):
        messages = [bytes(600_000), bytes(300_000), bytes(600_000)]
        del messages

def churn_in_a_thread():
    thread = threading.Thread(target=churn)
    thread.start()
    thread.join()

assert keep_freed_memory()
for work in (churn, churn_in_a_thread):
    work()  # takes the memory from the system
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told how to keep memory")
def test_messages_are_made_of_memory_that_was_freed_before_not_of_fresh_pages():
    output = output_of(PROGRAM)
    pages_of_all_messages = 200 * 1_500_000 // 4096
    for faults in map(int, output.split()):
        assert faults < pages_of_all_messages / 10


TURNS = """
import os, sys, threading
from tallybook.runtime.tuning import take_turns

os.sched_setscheduler(0, getattr(os, sys.argv[1]), os.sched_param(0))
taken = take_turns()
seen = []
thread = threading.Thread(target=lambda: seen.append(os.sched_getscheduler(threading.get_native_id())))
thread.start()
thread.join()
print(taken, next(name for name in ("SCHED_OTHER", "SCHED_BATCH", "SCHED_IDLE") if getattr(os, name) == seen[0]))
"""


def turns_taken_from(policy: str) -> str:
    return output_of(TURNS, policy).strip()


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has scheduling policies")
def test_threads_take_turns_unless_the_process_was_given_another_policy():
    assert turns_taken_from("SCHED_OTHER") == "True SCHED_BATCH"
    assert turns_taken_from("SCHED_BATCH") == "True SCHED_BATCH"
    assert turns_taken_from("SCHED_IDLE") == "False SCHED_IDLE"


RUNNING = """
import os, sys

class WhenLoaded:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_EXPERIMENTS"))
            sys.meta_path.remove(self)

sys.meta_path.insert(0, WhenLoaded())
import tallybook.bookie.process.server
from tallybook.cli.running import run

async def command():
    print(getattr(os, "SCHED_BATCH", None) in (None, os.sched_getscheduler(0)))

run(command())
"""


def test_commands_run_tuned_and_grpc_is_loaded_with_its_settings():
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    output = output_of(RUNNING, env=kept)
    assert output.split() == ["-event_engine_client,-event_engine_listener", "True"]


ASIDE = """
import asyncio, os
from tallybook.runtime.tasks import ThreadWorkers

def niceness():
    return os.getpriority(os.PRIO_PROCESS, 0)

async def main():
    workers, others = ThreadWorkers(1, "aside", background=True), ThreadWorkers(1, "usual")
    print(await workers.run(niceness), await others.run(niceness), niceness())
    await workers.close()
    await others.close()

asyncio.run(main())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has priorities of single threads")
def test_threads_in_the_background_let_others_go_first_and_only_they_do():
    output = output_of(ASIDE)
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert output.split() == [str(max(usual, 10)), str(usual), str(usual)]


SETTLED = """
import gc
from tallybook.runtime.tuning import settle_memory

lasting = [[] for _ in range(100_000)]
settle_memory()
print(sum(len(gc.get_objects(generation)) for generation in range(3)), *gc.get_threshold())
"""


def test_the_collector_of_garbage_does_not_look_again_at_what_was_there_and_looks_less_often():
    output = output_of(SETTLED)
    looked_at, first, *_ = map(int, output.split())
    assert looked_at < 1_000
    assert first > 700


GIVEN_BACK = """
import os, sys
from tallybook.runtime.tuning import give_back_freed_memory, keep_freed_memory

def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

assert keep_freed_memory()
messages = [b"x" * 600_000 for _ in range(100)]
lasting = messages[::10]
del messages
print(held())
assert give_back_freed_memory()
print(held())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told how to keep memory")
def test_freed_memory_is_returned_to_the_system_by_a_trim():
    output = output_of(GIVEN_BACK)
    kept, left = map(int, output.split())
    assert kept - left > 40_000_000


LASTING = """
import asyncio, gc, sys
from tallybook.archive.memory_release import release_memory
from tallybook.cli.__main__ import main
from tallybook.metadata.uri import open_metadata
from tallybook.offload.service import OffloadService
from tallybook.repair.service import RepairService
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng

async def make(uri):
    await (await open_metadata(uri, create=True, clock=RealClock(), rng=SystemRng(), timeout_seconds=10)).close()

async def work(service, *_):
    print("settled:", gc.get_freeze_count() > 0)
    print("gives back:", vars(service).get("_give_back") is release_memory)

OffloadService.run = RepairService.serve = work
asyncio.run(make(sys.argv[sys.argv.index("--metadata") + 1]))
print("at first:", gc.get_freeze_count() > 0)
main()
"""


@pytest.mark.parametrize("command", ["offload", "repair"])
def test_what_works_until_it_is_told_to_stop_settles_its_memory_and_gives_back_what_archiving_has_used(
    command: str, tmp_path: Path
):
    options = ["--metadata", f"sqlite://{tmp_path}/metadata.db"]
    options += ["--archive", f"file://{tmp_path}"] if command == "offload" else []
    output = output_of(LASTING, command, "run", *options, check=False)
    archiving = command == "offload"
    told = ["at first: False", "settled: True", f"gives back: {archiving}"]
    assert output.splitlines()[:3] == told

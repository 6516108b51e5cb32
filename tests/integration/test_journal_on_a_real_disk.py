"""The journal on a real disk: its pump on a thread, and the process killed without warning."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from tallybook.bookie.journal.format import BatchRecord
from tallybook.bookie.journal.journal import Journal
from tallybook.core.limits import KIB
from tallybook.core.settings import JournalSettings
from tallybook.runtime.clock import RealClock
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.tasks import Tasks

SETTINGS = JournalSettings(segment_bytes=256 * KIB, segment_count=4, max_commit_bytes=64 * KIB)
KILLS = 6


def record(number: int) -> BatchRecord:
    return BatchRecord(number.to_bytes(8, "big") * (1 + number * 37 % 1000))


def number_of(found: BatchRecord) -> int:
    number = int.from_bytes(found.batch[:8], "big")
    assert found == record(number)
    return number


def unexpected(*what: object) -> None:
    raise AssertionError(what)


async def test_appends_rolls_and_trims_run_beside_each_other(tmp_path: Path) -> None:
    disk = RealDisk()
    tasks = Tasks("test", unexpected)
    recovered = await Journal.recover(disk, str(tmp_path / "journal"), SETTINGS, SystemRng())
    journal = await recovered.start(RealClock(), tasks, unexpected, on_space=lambda: None)
    durable: list[int] = []
    trimmed_below = 0
    for number in range(3000):
        journal.append(record(number), lambda number=number: durable.append(number))
        if number % 40 == 0:
            assert await journal.drained(10.0)
            trimmed_below = len(durable)
            await journal.trim(journal.durable_mark())
    assert await journal.drained(10.0)
    assert durable == list(range(3000))
    assert journal.oldest_queued_age_seconds() == journal.queued_bytes == 0
    await journal.close(clean=False)
    await tasks.close()

    recovered = await Journal.recover(disk, str(tmp_path / "journal"), SETTINGS, SystemRng())
    assert recovered.damage == ()
    assert [number_of(found) async for found in recovered.records()] == list(range(trimmed_below, 3000))
    await disk.close()


async def one_life(directory: str) -> None:
    """Journal until killed. Prints what was replayed, and each number once it is durable."""
    disk = RealDisk()
    recovered = await Journal.recover(disk, directory, SETTINGS, SystemRng())
    assert recovered.damage == (), recovered.damage
    numbers = [number_of(found) async for found in recovered.records()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
    print("replayed", *([numbers[0], numbers[-1]] if numbers else []), flush=True)
    journal = await recovered.start(RealClock(), Tasks("life", unexpected), unexpected, on_space=lambda: None)
    number = int(sys.argv[2]) if not numbers else numbers[-1] + 1
    print("started", flush=True)
    while True:
        for _ in range(1 + number % 7):
            journal.append(record(number), lambda number=number: os.write(1, b"durable %d\n" % number))
            number += 1
        assert await journal.drained(10.0)
        if number % 5 == 0:
            mark = journal.durable_mark()
            os.write(1, b"trimmed %d\n" % number)
            await journal.trim(mark)


def test_i1_nothing_acked_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    following = 0  # the number that the next start continues with
    acked = -1
    forgettable = 0  # all numbers below were checkpointed: replay may begin here, or earlier
    for life in range(KILLS + 1):
        command = [sys.executable, __file__, str(tmp_path / "journal"), str(following)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            word, *ends = child.stdout.readline().split()
            assert word == "replayed"
            first, last = map(int, ends) if ends else (forgettable, forgettable - 1)
            assert last >= acked, f"life {life}: {acked} was acked, {last} is the last that came back"
            assert first <= forgettable, f"life {life}: replay begins at {first}, but {forgettable} was not trimmed"
            assert child.stdout.readline() == "started\n"
            following = forgettable = last + 1
            for count, line in enumerate(child.stdout):
                word, value = line.split()
                if word == "durable":
                    acked = int(value)
                else:
                    forgettable = int(value)
                following = max(following, int(value) + (word == "durable"))
                if count == 150 + life * 37:
                    child.send_signal(signal.SIGKILL)
    assert acked > 500


if __name__ == "__main__":
    asyncio.run(one_life(sys.argv[1]))

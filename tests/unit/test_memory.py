"""Memory that was freed is used again: counted in page faults, in a process of its own."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, threading
from tallybook.runtime.memory import keep_freed_memory

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
    output = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    pages_of_all_messages = 200 * 1_500_000 // 4096
    for faults in map(int, output.stdout.split()):
        assert faults < pages_of_all_messages / 10

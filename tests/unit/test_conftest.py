"""The shared test set-up: what it runs and what it detects, on small correct and faulty tests."""

from pathlib import Path

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).resolve().parent.parent / "conftest.py"

TESTS = """
import asyncio, subprocess, sys, threading

import grpc.aio
import pytest

channels = []
stop = threading.Event()
children = []

async def test_async_runs_and_has_fixtures(tmp_path):
    await asyncio.sleep(0)
    assert tmp_path.is_dir()

async def test_async_runs_to_its_end():
    await asyncio.sleep(0)
    raise ArithmeticError("reached the end")

def test_run_fixture(run):
    assert run(asyncio.sleep(0, "result")) == "result"

def test_task():
    async def main():
        asyncio.get_running_loop().create_task(asyncio.sleep(60), name="forgotten-task")
        await asyncio.sleep(0)
    asyncio.run(main())

async def test_error_that_only_reached_the_loop():
    asyncio.get_running_loop().call_soon(lambda: [].pop())
    await asyncio.sleep(0)
    await asyncio.sleep(0)

async def test_that_drops_what_grpc_waits_for():
    channels.append(grpc.aio.insecure_channel("127.0.0.1:1"))
    waiting = asyncio.ensure_future(channels[0].wait_for_state_change(channels[0].get_state()))
    await asyncio.sleep(0.05)
    waiting.cancel()

async def test_during_which_grpc_hears_of_it_is_not_blamed():
    grpc.aio.insecure_channel("127.0.0.1:1")
    channels[0].get_state(try_to_connect=True)
    await asyncio.sleep(0.2)

def test_thread():
    threading.Thread(target=stop.wait, name="forgotten-thread").start()

def test_of_an_earlier_thread_is_not_blamed():
    stop.set()

def test_process():
    children.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

def test_of_an_earlier_process_is_not_blamed():
    children.pop().communicate(b"go on")

def test_patches_undone_in_the_wrong_order(monkeypatch):
    with pytest.MonkeyPatch.context() as inner:
        inner.setattr(asyncio, "sleep", None)
        monkeypatch.setattr("asyncio.sleep", print)

def test_patches_undone_in_order(monkeypatch):
    monkeypatch.setattr(asyncio, "wait", None)
    with pytest.MonkeyPatch.context() as inner:
        inner.setattr(asyncio, "wait", print)
"""


def test_leaks_and_lost_errors_fail_the_test_that_made_them(pytester, monkeypatch):
    monkeypatch.delenv("TALLYBOOK_TEST_TIMES", raising=False)
    pytester.makeconftest(CONFTEST.read_text().replace("LEAK_GRACE_SECONDS = 2.0", "LEAK_GRACE_SECONDS = 0.05"))
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-v", "-W", "error", "-p", "no:cacheprovider", "-p", "no:xdist")

    result.stdout.fnmatch_lines_random(
        [
            "*::test_async_runs_and_has_fixtures PASSED*",
            "*::test_async_runs_to_its_end FAILED*",
            "E*ArithmeticError: reached the end",
            "*::test_run_fixture PASSED*",
            "*::test_task ERROR*",
            "E*task forgotten-task: *",
            "*::test_error_that_only_reached_the_loop FAILED*",
            "E*IndexError(*",
            "*::test_during_which_grpc_hears_of_it_is_not_blamed PASSED*",
            "*::test_thread ERROR*",
            "E*thread forgotten-thread",
            "*::test_of_an_earlier_thread_is_not_blamed PASSED*",
            "*::test_process ERROR*",
            "E*child process *",
            "*::test_of_an_earlier_process_is_not_blamed PASSED*",
            "*::test_patches_undone_in_the_wrong_order ERROR*",
            "E*asyncio.sleep",
            "*::test_patches_undone_in_order PASSED*",
        ]
    )
    result.assert_outcomes(passed=11, failed=2, errors=4)

"""Shared by all tests: support for async tests, the leak check and the hypothesis profiles."""

import asyncio
import asyncio.runners
import contextlib
import gc
import inspect
import os
import pkgutil
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# "ci" tries the same examples on every run; "nightly" searches for new ones. HYPOTHESIS_PROFILE selects one.
settings.register_profile("ci", max_examples=60, derandomize=True, deadline=None, database=None)
# derandomize is given explicitly, because hypothesis sets it where the variable CI is set.
settings.register_profile("nightly", max_examples=5000, derandomize=False, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

LEAK_GRACE_SECONDS = 2.0


def of_an_earlier_loop(context: dict[str, Any]) -> bool:
    """Whether gRPC only failed to deliver a late event to the loop of an earlier test.

    gRPC has one poller for the whole process; the running loop takes its events and passes them on. An event of a
    dropped call or channel may arrive after its loop was closed. No code waits for such an event, and later events of
    the running loop are not affected.
    """
    error = context.get("exception")
    return (
        isinstance(error, RuntimeError)
        and str(error) == "Event loop is closed"
        and context["message"].startswith("Exception in callback PollerCompletionQueue._handle_events(")
    )


def run_async(work: Coroutine[Any, Any, Any]) -> Any:
    """Run ``work`` on a new event loop. An error that only the loop's exception handler gets fails the test, too."""
    unhandled: list[str] = []

    def keep(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not of_an_earlier_loop(context):
            unhandled.append(f"{context['message']}: {context.get('exception')!r}")

    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(keep)
        result = runner.run(work)
    if unhandled:
        pytest.fail("the event loop reported\n  " + "\n  ".join(unhandled))
    return result


@pytest.fixture(scope="session")
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """``run(coroutine)`` for tests that are not async, such as those with ``@given``."""
    return run_async


def pytest_configure(config: pytest.Config) -> None:
    """Measure processor time if ``TALLYBOOK_TEST_TIMES`` names a file for it."""
    if file := os.environ.get("TALLYBOOK_TEST_TIMES"):
        # Imported late: other test sets use this file alone.
        from .processor_time import ProcessorTimes  # noqa: PLC0415

        config.pluginmanager.register(ProcessorTimes(Path(file)))


def exempt_from_collection() -> None:
    """Exempt the objects that exist now from garbage collection.

    Each simulated run ends with a full collection, which would scan all objects of earlier tests: up to a second.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Exempt the test modules and what they import."""
    exempt_from_collection()


def pytest_runtest_logfinish() -> None:
    """Exempt what the test left in caches."""
    exempt_from_collection()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run with a test that was skipped for a reason that is not listed in ``skips``."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    reasons = [report.longrepr[2] for report in (reporter.stats.get("skipped", ()) if reporter else ())]
    if reasons:
        # Imported late: other test sets use this file alone.
        from .skips import unexpected  # noqa: PLC0415

        if found := unexpected(reasons):
            reporter.line(f"\nskipped for no reason in tests/skips.py: {sorted(set(found))}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call ``async def test_...`` with ``run_async``."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    run_async(pyfuncitem.obj(**{name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}))
    return True


def children() -> set[int]:
    """Process ids of this process's children, including zombies; empty without /proc."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):  # the thread has ended since it was listed
            found.update(map(int, file.read_text().split()))
    return found


@pytest.fixture(autouse=True)
def all_patches_undone() -> Iterator[None]:
    """Fail a test that leaves an attribute patched.

    Undoing two patches of one attribute in the wrong order does that: the later one puts the earlier one back, and
    every test after it in the same process runs with it.
    """
    unpatched: dict[tuple[int, str], tuple[Any, Any]] = {}
    setattr_of_pytest = pytest.MonkeyPatch.setattr

    def record_and_set(patch: pytest.MonkeyPatch, target: Any, name: Any, *value: Any, **options: Any) -> None:
        # A string names the attribute, too, and is followed by the value alone.
        owner, _, attribute = target.rpartition(".") if isinstance(target, str) else (target, "", name)
        owner = pkgutil.resolve_name(owner) if isinstance(owner, str) else owner
        unpatched.setdefault((id(owner), attribute), (owner, inspect.getattr_static(owner, attribute, None)))
        setattr_of_pytest(patch, target, name, *value, **options)

    pytest.MonkeyPatch.setattr = record_and_set  # type: ignore[assignment, method-assign]
    yield
    pytest.MonkeyPatch.setattr = setattr_of_pytest  # type: ignore[method-assign]
    left = [
        f"{getattr(owner, '__name__', owner)}.{attribute}"
        for (_, attribute), (owner, value) in unpatched.items()
        if inspect.getattr_static(owner, attribute, None) is not value
    ]
    if left:
        pytest.fail("this test left patched\n  " + "\n  ".join(sorted(left)))


@pytest.fixture(autouse=True)
def no_leaks(all_patches_undone: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that leaves asyncio tasks, threads or child processes behind.

    Tasks are counted when a loop closes; threads and processes get ``LEAK_GRACE_SECONDS`` to end.
    """
    tasks: list[str] = []
    cancel_all_tasks = asyncio.runners._cancel_all_tasks

    def record_and_cancel(loop: asyncio.AbstractEventLoop) -> None:
        # gRPC ends the tasks of a dropped call asynchronously, and a test cannot wait for them. The loop closes a
        # dropped async generator when the garbage collector finds it, which may be right now.
        tasks.extend(
            f"task {task.get_name()}: {task.get_coro()!r}"
            for task in asyncio.all_tasks(loop)
            if not type(task.get_coro()).__module__.startswith("_cython")
            and type(task.get_coro()).__name__ != "async_generator_athrow"
        )
        cancel_all_tasks(loop)

    monkeypatch.setattr(asyncio.runners, "_cancel_all_tasks", record_and_cancel)
    threads_before, children_before = set(threading.enumerate()), children()

    yield

    deadline = time.monotonic() + LEAK_GRACE_SECONDS
    while True:
        # gRPC keeps one polling thread for the whole process.
        threads = {thread for thread in threading.enumerate() if "_poll_wrapper" not in thread.name} - threads_before
        processes = children() - children_before
        if not (threads or processes) or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    left = tasks + [f"thread {thread.name}" for thread in threads] + [f"child process {pid}" for pid in processes]
    if left:
        pytest.fail("this test left behind\n  " + "\n  ".join(sorted(left)))


@pytest.fixture
def new_cluster(tmp_path: Path) -> Callable[..., str]:
    """``new_cluster(name)`` makes the metadata of a cluster without bookies and returns its URI."""
    # Imported late: most tests do not need it.
    from tallybook.metadata.sqlite import schema  # noqa: PLC0415

    def make(name: str = "metadata") -> str:
        path = tmp_path / f"{name}.db"
        schema.connect(str(path), f"sqlite://{path}", name).close()
        return f"sqlite://{path}"

    return make


@pytest.fixture
def authority(tmp_path: Path) -> Any:
    """A certificate authority; ``authority.issue(directory, Subject(...), days=1)`` makes security directories."""
    # Imported late: most tests do not need it.
    from tallybook.runtime.security.authority import Authority  # noqa: PLC0415

    return Authority.create(tmp_path / "authority")

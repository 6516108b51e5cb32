"""Behavior without extras, and the names of absent extras in errors. test_wheel.py tries real environments.

A finder of modules, in a process of its own, hides libraries as if they were not installed.
"""

import json
import signal
import subprocess
import sys

import pytest

from tallybook.runtime.extras import EXTRAS, NeedsExtra, missing_extra
from tallybook.runtime.extras import how_to_install as install

HIDE = """
import asyncio, json, sys

class Hides:
    def find_spec(self, name, path=None, target=None):
        if name in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

hidden = set(json.loads(sys.argv[1]))
sys.meta_path.insert(0, Hides())
"""

USED = """
from tallybook.core.settings import ClientSettings
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng

def use():
    {}

try:
    use()
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""

USES = {
    "zookeeper": (
        "from tallybook.client import Client; asyncio.run(Client('zk://127.0.0.1:1/x').__aenter__())",
        f"zk:// needs kazoo: {install('zookeeper')}",
    ),
    "traces": (
        "from tallybook.runtime.tracing.opening import open_tracer; open_tracer('http://127.0.0.1:1', 'test')",
        f"the option 'traces' needs requests: {install('traces')}",
    ),
    "security": (
        (
            "from tallybook.client import Client; asyncio.run(Client('sqlite:///x', "
            "ClientSettings(security='/security')).__aenter__())"
        ),
        f"a security directory needs cryptography: {install('security')}",
    ),
    "archive": (
        (
            "from tallybook.stream.records.compression import Compression, compressed; "
            "compressed(bytes(1000), Compression.ZSTD)"
        ),
        f"a compressed stream needs pyarrow: {install('archive')}",
    ),
    "cli": (
        "from tallybook.client.metrics import collector; collector(None)",
        f"tallybook.client.metrics needs prometheus_client: {install('cli')}",
    ),
    "s3": (
        (
            "from tallybook.archive.objects.open import open_store; "
            "asyncio.run(open_store('s3://bucket', RealClock(), SeededRng(1)))"
        ),
        f"s3:// needs botocore: {install('s3')}",
    ),
    "spark": (
        "import tallybook.spark; tallybook.spark.TallybookDataSource",
        f"tallybook.spark needs pyspark: {install('spark')}",
    ),
    "server": (
        (
            "from tallybook.wire.bookie_transport import bookie_transport; "
            "asyncio.run(bookie_transport().listen('127.0.0.1:0', None))"
        ),
        f"a server needs grpc_health: {install('server')}",
    ),
}


def without(hidden: list[str], program: str) -> subprocess.CompletedProcess[str]:
    """Run a program that cannot import the modules ``hidden``."""
    command = [sys.executable, "-P", "-c", HIDE + program, json.dumps(hidden)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("extra", sorted(USES))
def test_an_absent_extra_is_named(extra):
    use, message = USES[extra]
    done = without([module for module, home in EXTRAS.items() if home == extra], USED.format(use))
    assert done.stdout == f"InvalidConfig: {message}\n", done.stderr


def test_every_extra_is_tried():
    assert set(USES) == set(EXTRAS.values())


@pytest.mark.parametrize(
    ("hidden", "words", "message"),
    [
        (
            EXTRAS,
            [],
            f"the command line needs typer: {install('cli')}; the extra 'server' has",
        ),
        (
            ["pyarrow"],
            ["offload", "run"],
            f"'tallybook offload' needs pyarrow: {install('archive')}\n",
        ),
        (
            ["uvicorn"],
            ["up"],
            f"'tallybook up' needs uvicorn: {install('server')}\n",
        ),
    ],
)
def test_the_command_line_names_an_absent_extra_in_one_line(hidden, words, message):
    words = ["tallybook", *words, *(["--metadata", "sqlite:///./absent.db"] if words == ["offload", "run"] else [])]
    done = without([*hidden], f"from tallybook.cli.__main__ import main; sys.argv = {words}; main()")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"tallybook: {message}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("hidden", "url", "code", "message"),
    [
        (["pyarrow"], "file:///", 2, f"an archive needs pyarrow: {install('archive')}\n"),
        (["botocore"], "s3://bucket", 2, f"s3:// needs botocore: {install('s3')}\n"),
        ([], "file:///tmp/absent/archive", 4, "file:///tmp/absent/archive: the directory does not exist"),
    ],
)
def test_up_starts_nothing_if_the_named_archive_cannot_be_opened(tmp_path, hidden, url, code, message):
    data = tmp_path / "data"
    words = ["tallybook", "up", "--data", str(data), "--archive", url]
    done = without(hidden, f"from tallybook.cli.__main__ import main; sys.argv = {words}; main()")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"tallybook: {message}")
    assert not data.exists()


def test_a_cluster_on_this_machine_works_without_an_archive_and_names_the_extra(tmp_path):
    words = [
        "tallybook",
        "up",
        "--data",
        str(tmp_path),
        "--bookies",
        "1",
        "--no-gateway",
        "--no-console",
        "--no-repair",
    ]
    program = f"from tallybook.cli.__main__ import main; sys.argv = {words}; main()"
    command = [sys.executable, "-P", "-c", HIDE + program, json.dumps(["pyarrow"])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline().startswith("ready sqlite:")
            warning = process.stderr.readline()
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
    needs = "an archive needs pyarrow: install Tallybook with the extra 'archive'"
    needs += " (pip install '.[archive]' in the source tree)"
    assert (warning, process.returncode) == (f"tallybook: closed ledgers are not archived: {needs}\n", 0)


def test_a_module_of_no_extra_stays_an_import_error():
    absent = ModuleNotFoundError("No module named 'elsewhere'", name="elsewhere")
    assert missing_extra(absent, "a test") is None
    with pytest.raises(ModuleNotFoundError), NeedsExtra("a test"):
        raise absent

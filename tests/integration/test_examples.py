"""The examples in other languages do what they show, on a real gateway; each where its language is there."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
BUILD_SECONDS = 600
"""With nothing there that was downloaded before, on a machine that others use, too."""
TOOLS = os.environ["PATH"] + os.pathsep + "/usr/local/go/bin"


def built(language: str, *tools: str) -> None:
    """Build an example, or skip the test where that cannot be done."""
    for tool in tools:
        if shutil.which(tool, path=TOOLS) is None:
            pytest.skip(f"the example in {language} needs {tool}, which was not found")
    done = subprocess.run(
        [ROOT / "scripts" / "build-examples", language],
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def said(*command: object, code: int = 0) -> str:
    """What a program prints."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def gateway(cli, cluster) -> Iterator[str]:
    """The address of a gateway of the shared cluster."""
    words = ["gateway", "run", "--metadata", cluster.metadata, "--listen", "127.0.0.1:0", "--json"]
    process = cli.start(*words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        yield json.loads(process.stdout.readline())["ready"]
    finally:
        process.terminate()
        process.wait(cli.patience)
        process.stdout.close()


def check(output: str, language: str) -> None:
    """The entries were acknowledged, and read back in their order."""
    assert [*map(int, re.findall(r"durable: (\d+) from", output))] == [3]
    assert re.findall(r"^(\d+): (.*)$", output, re.MULTILINE) == [("0", "hello"), ("1", "from"), ("2", language)]


def test_the_example_in_go_writes_a_ledger_and_reads_it_back(gateway):
    built("go", "go")
    program = EXAMPLES / "go" / "build" / "example"
    check(said(program, gateway), "Go")
    said(program, "127.0.0.1:1", code=1)


def test_the_example_in_java_writes_a_ledger_and_reads_it_back(gateway):
    built("java", "mvn", "javac")
    target = EXAMPLES / "java" / "target"
    program = ["java", "-cp", f"{target / 'classes'}:{target / 'lib'}/*", "Example"]
    check(said(*program, gateway), "Java")
    said(*program, "127.0.0.1:1", code=1)

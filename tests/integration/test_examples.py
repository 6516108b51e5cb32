"""Examples do what they show: the programs of README.md, and those in other languages, on a real gateway.

An example in another language is tested if its tools are installed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from tallybook.cli.app import COMMANDS, build

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
BUILD_SECONDS = 600
"""A generous time limit: downloads, on a shared machine."""
FIRST_PAGE = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", FIRST_PAGE, re.DOTALL)
"""The programs of README.md, each with the output that the page shows."""
USED = [
    pytest.param(program, id=f"{page}-{number}")
    for page in ("ledgers", "streams")
    for number, program in enumerate(
        re.findall(r"```python\n((?:import|from) .*?)```", (ROOT / f"docs/use/{page}.md").read_text(), re.DOTALL)
    )
]
"""Programs of docs/use: each block of code that begins with its imports."""
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
    """The output of a program."""
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


def check(outputs: list[str], language: str) -> None:
    """Each time three records were acknowledged, and read back in their order, behind those of the time before."""
    for turn, output in enumerate(outputs):
        assert sum(map(int, re.findall(r"durable: (\d+) from", output))) == 3
        read = re.findall(r"^(\d+): (.*)$", output, re.MULTILINE)
        assert read == [(str(3 * turn + at), line) for at, line in enumerate(("hello", "from", language))]


def test_the_example_in_go_appends_to_a_stream_and_reads_it_back(gateway):
    built("go", "go")
    program = EXAMPLES / "go" / "build" / "example"
    check([said(program, gateway) for _ in range(2)], "Go")
    said(program, "127.0.0.1:1", code=1)


def test_the_example_in_java_appends_to_a_stream_and_reads_it_back(gateway):
    built("java", "mvn", "javac")
    target = EXAMPLES / "java" / "target"
    program = ["java", "-cp", f"{target / 'classes'}:{target / 'lib'}/*", "Example"]
    check([said(*program, gateway) for _ in range(2)], "Java")
    said(*program, "127.0.0.1:1", code=1)


@pytest.mark.parametrize(("program", "output"), PROGRAMS, ids=["asyncio", "blocking"])
def test_a_program_of_the_first_page_runs_as_it_stands(program, output, cluster, tmp_path):
    assert run_beside(cluster, tmp_path, program) == output


@pytest.mark.parametrize("program", USED)
def test_a_program_of_the_pages_on_use_runs_as_it_stands(program, cluster, tmp_path):
    run_beside(cluster, tmp_path, program)


def run_beside(cluster, tmp_path, program) -> str:
    """The output of a program that runs in the folder in which `tallybook up` was started."""
    options = typer.main.get_command(build(COMMANDS)).commands["up"].params
    (data,) = [option.default for option in options if option.name == "data"]
    (tmp_path / data).symlink_to(cluster.data)
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-P", "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_program_of_the_first_page_is_run():
    assert FIRST_PAGE.count("```python\n") == len(PROGRAMS) == 2

"""docs/start/tutorial*.md, run from its first command to its last, one pasted block after the other.

Every ``bash`` block is run unchanged, all of them in one shell, whose home has only this source tree as
``~/tallybook``. The output of the commands has to equal the ``text`` block behind them. On the page

    # exit code 1        after a command says that it ends with this code; every other one ends with 0
    ...                  stands for any text, in a line, or as a line of its own for any number of lines

and what differs between runs (times, sizes, random ids: ``VARYING``) is made equal on both sides. ``Hour`` has all
differences between the test and a new user: pip gets the libraries of this environment in place of an index, bookies
get small journals and a disk with space, Spark a Java that starts faster, and ports differ from those of the page,
which may be in use.
"""

import faulthandler
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("tutorial.md", "tutorial-2-data.md", "tutorial-3-operation.md")
NOT_COPIED = shutil.ignore_patterns(
    ".*", "__pycache__", "*.egg-info", "build", "data", "dist", "out", "results", "tests"
)
PORTS = "127.0.0.1:74"
"""The common prefix of all addresses on the page."""
BLOCK_SECONDS = 150
VARYING = (
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", "TIME"),
    (r"\d{4}-\d\d-\d\d-[0-9a-f]{6}", "KEY"),
    (r"(\d+-\d+-\d+)@[0-9a-f]{8}", r"\1@STREAM"),
    (r"\d{19}-\d{19}-[0-9a-f-]{36}", "OBJECT"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\b\d+(\.\d+)? s(econds)?\b", "SECONDS"),
    (r"\b\d+(\.\d+)? [kMGT]?B\b", "SIZE"),
    (r"(object bytes|archived bytes|last round s ago) +\d+", r"\1 NUMBER"),
    (r"(OBJECT\.parquet +\d+) +\d+", r"\1 NUMBER"),
    (r"\d+%", "PERCENT"),
    (r" +", " "),
    (r"(?m) $", ""),
)
DIED = re.compile(r"\S+: line \d+: +\d+ Killed .*\n")
"""The message of a shell without a terminal about a killed background process."""
JOINED = re.compile(r"^(\S.*?) && ", re.MULTILINE)
"""Commands of which the second is run only where the first ends with 0. A shell counts the failure of the last one
alone, so they are given to it line by line."""


@dataclass
class Block:
    """A command of the page, and the output that the page shows for it."""

    commands: str
    expected: str | None

    @property
    def codes(self) -> list[int]:
        """Exit codes of commands that do not end with 0, in their order."""
        return [int(code) for code in re.findall(r"# exit code (\d+)$", self.commands, re.MULTILINE)]


def blocks_of(page: str) -> list[Block]:
    """The fenced blocks of a page: commands, each with the output behind them."""
    fences = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    found: list[Block] = []
    for language, text in fences:
        if language == "text":
            assert found, "an output stands before every command"
            assert found[-1].expected is None, f"two outputs of one block: {text}"
            found[-1].expected = text
        else:
            assert language == "bash", f"there is a block of {language}"
            found.append(Block(text, None))
    return found


def settled(text: str) -> str:
    """Without what differs from run to run."""
    for pattern, instead in VARYING:
        text = re.sub(pattern, instead, text)
    return text.strip()


def fits(expected: str, printed: str) -> bool:
    """Whether a command has printed what the page shows."""
    lines = [re.escape(line).replace(r"\.\.\.", ".*?") for line in settled(expected).split("\n")]
    pattern = "\n".join("(?s:.*?)" if line == ".*?" else line for line in lines)
    return re.fullmatch(pattern, settled(printed)) is not None


def free_ports() -> str:
    """A value for ``PORTS``: a hundred free ports, below the ephemeral ones."""
    for _ in range(100):
        begin = f"127.0.0.1:{random.randrange(200, 320)}"
        if all(is_free(int(begin.partition(":")[2]) * 100 + last) for last in range(100)):
            return begin
    pytest.fail("there are no free ports")


def is_free(port: int) -> bool:
    """Whether a port can be listened on."""
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Hour:
    """The shell of a new user."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ports = free_ports()
        java = {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], stdin=subprocess.PIPE, text=True, cwd=home, start_new_session=True,
            env={
                **java,
                "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
                "HOME": str(home),
                # No package index is used: the requirements of the package have to be there.
                "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_COMPILE": "1",
                "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                # Spark runs for seconds: what it would compile better would not come back.
                "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
                "TALLYBOOK_JOURNAL__SEGMENT_BYTES": "8MiB", "TALLYBOOK_STORAGE__WRITE_CACHE_BYTES": "32MiB",
                "TALLYBOOK_STORAGE__MIN_FREE_BYTES": "1MiB",
                # The test must run on a full disk as well; a new user has space.
                **{f"TALLYBOOK_STORAGE__DISK_{name}_PERCENT": "100" for name in ("WARN", "BACK", "READ_ONLY")},
            },
        )  # fmt: skip
        self._said = self.home / ".said"
        self._said.mkdir()
        self._tell(f"set -o pipefail; trap 'echo $? >>{self._said}/codes' ERR")

    def _tell(self, line: str) -> None:
        self._shell.stdin.write(f"{line}\n")
        self._shell.stdin.flush()

    def run(self, number: int, block: Block, wait_until) -> tuple[str, list[int]]:
        """Run a block to its end; give what it has printed, and the exit codes that were not 0."""
        file, out, done, codes = (self._said / name for name in (f"{number}.sh", f"{number}.out", "done", "codes"))
        commands = JOINED.sub(r"\1\n", block.commands.replace(PORTS, self.ports))
        file.write_text(f"{commands}\n:\n")
        codes.write_text("")
        done.unlink(missing_ok=True)
        self._tell(f". {file} </dev/null >{out} 2>&1; echo >{done}")
        wait_until(
            lambda: done.exists() or self._shell.poll() is not None, f"this has ended:\n{block.commands}", BLOCK_SECONDS
        )
        printed = out.read_text().replace(str(self.home), "/home/ada")
        assert done.exists(), f"the shell has ended:\n{printed}"
        return DIED.sub("", printed), [int(code) for code in codes.read_text().split()]

    def give_libraries(self) -> None:
        """Let a new virtual environment see the libraries of this one, before what came with its pip."""
        for site in self.home.glob("hour/venv/lib/python*/site-packages"):
            (site / "libraries.pth").write_text(f"import sys; sys.path.insert(0, {sysconfig.get_path('purelib')!r})\n")

    def running(self) -> list[int]:
        """Everything that was started from the shell, and runs."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(session) == self._shell.pid and state not in "ZX" and int(stat.parent.name) != self._shell.pid:
                found.append(int(stat.parent.name))
        return found

    def end(self) -> None:
        """End the shell and all processes that it has left."""
        for pid in self.running():
            os.kill(pid, signal.SIGKILL)
        self._shell.kill()
        self._shell.wait()
        self._shell.stdin.close()


@pytest.fixture
def hour(tmp_path: Path) -> Iterator[Hour]:
    """A home with the source tree, and the interpreter of this environment as ``python3``."""
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    (home / "bin/python3").symlink_to(Path(sys._base_executable).resolve())
    shutil.copytree(ROOT, home / "tallybook", ignore=NOT_COPIED)
    found = Hour(home)
    yield found
    found.end()


def printed_by(hour: Hour, number: int, block: Block, wait_until) -> str:
    """Run a block, whose commands have to end as the page says; give what it has printed."""
    printed, codes = hour.run(number, block, wait_until)
    assert codes == block.codes, f"{block.commands}\nended otherwise, and has printed:\n{printed}"
    return printed


@pytest.mark.timeout(600)
def test_the_tutorial_pasted_block_by_block_prints_what_it_shows(hour, cli):
    # A walk of two minutes hangs nowhere. Where a single block does, BLOCK_SECONDS ends it, and names it.
    faulthandler.cancel_dump_traceback_later()
    otherwise = []
    for number, block in enumerate(blocks_of("\n".join((ROOT / "docs/start" / page).read_text() for page in PAGES))):
        commands, _, installs = block.commands.partition("\npip install")
        printed = ""
        if installs:
            printed = printed_by(hour, number, Block(commands, None), cli.wait_until)
            hour.give_libraries()
            commands = f"pip install{installs}"
        printed += printed_by(hour, number, Block(commands, None), cli.wait_until)
        if not fits(block.expected or "", printed):
            otherwise.append(f"{block.commands}\nhas printed:\n{printed}\nand not:\n{block.expected}")
    assert not otherwise, "\n".join(otherwise)
    assert not hour.running(), "nothing is left running"
    assert not (hour.home / "hour").exists(), "nothing is left"


@pytest.mark.parametrize(
    ("expected", "printed", "fit"),
    [
        ("3 ledgers\n", "3 ledgers\n", True),
        ("3 ledgers\n", "4 ledgers\n", False),
        ("3 ledgers, 1.5 kB, 0.5 seconds\n", "3 ledgers,  900 B, 12 seconds \n", True),
        ("1-0-4@fc1c18c9\n", "1-0-4@00000000\n", True),
        ("1-0-4@fc1c18c9\n", "1-0-5@fc1c18c9\n", False),
        ("...\nhealthy\n", "bookie-1\nbookie-2\nhealthy\n", True),
        ("...\nhealthy\n", "bookie-1\nwrong\n", False),
        ("no copy: ... is away\n", "no copy: bookie-1 is away\n", True),
        ("", "surprise\n", False),
    ],
)
def test_what_the_page_shows_is_compared_but_for_what_differs_from_run_to_run(expected, printed, fit):
    assert fits(expected, printed) is fit


@pytest.mark.parametrize(
    ("commands", "codes"),
    [
        ("true\n", []),
        ("(exit 3)\ntrue\n", [3]),
        ("(exit 3) && true\ntrue\n", [3]),
        ("true && (exit 4)\n(exit 5)   # exit code 5\n", [4, 5]),
    ],
)
def test_no_command_of_a_block_fails_unnoticed(hour, cli, commands, codes):
    assert hour.run(0, Block(commands, None), cli.wait_until)[1] == codes

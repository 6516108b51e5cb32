"""The packages that users install: wheel and source distribution, and a ``tallybook`` with only the wheel's contents.

Each environment is a new one. pip installs the wheel, and the libraries that the wheel's metadata require, with no
extra or with those that the test names, are linked from this environment. There is no source tree and no network, and
a library that is missing in setup.cfg is missing there, too.
"""

import email
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from .conftest import wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
OTHER_FOLDERS = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "data", "dist", "out", "results")
BESIDE_PACKAGES = {
    *("LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "proto/buf.yaml", "pyproject.toml", "setup.cfg")
}
FOR_IMAGES = {"requirements-build.lock", "requirements-run.lock"}
FOR_READERS = ("CHANGELOG.md", "CONTRIBUTING.md", "docs/**/*.md", "docs/**/*.png", "docker/**/*", "examples/**/*.*")
FOR_DEVELOPERS = ("tests", "scripts", "sim", "bench", "devtools")
MADE_OF_EXAMPLES = ("examples/go/api/", "examples/go/build/", "examples/java/target/")
BUILD_SECONDS = 120
SPARK_SECONDS = 300
"""A query takes some ten Pythons and a JVM to start: seconds on an idle machine."""
NEEDS_KAZOO = (
    "zk:// needs kazoo: install Tallybook with the extra 'zookeeper' (pip install '.[zookeeper]' in the source tree)"
)
NEEDS_BOTOCORE = "s3:// needs botocore: install Tallybook with the extra 's3'"
NEEDS_OTEL = "the option 'traces' needs requests: install Tallybook with the extra 'traces'"
NEEDS_TYPER = "tallybook: the command line needs typer: install Tallybook with the extra 'cli'"
EXTRAS = {"all", "archive", "cli", "s3", "security", "server", "spark", "traces", "zookeeper"}


@dataclass
class Built:
    """Both distributions, and what they were made of."""

    tree: Path
    said: str
    source: Path
    wheel: Path

    def product(self) -> set[str]:
        """Every file of the packages, relative to the tree."""
        parts = [folder for folder in self.tree.iterdir() if (folder / "py.typed").exists()]
        parts = [folder for folder in parts if folder.name not in FOR_DEVELOPERS]
        files = [
            file for folder in parts for pattern in ("*.py", "*.pyi", "py.typed") for file in folder.rglob(pattern)
        ]
        files += (self.tree / "gateway/console/static").iterdir()
        return {file.relative_to(self.tree).as_posix() for file in files}

    def top(self) -> set[str]:
        """Files of the wheel above them, relative to their source folder."""
        return {file.relative_to(self.tree / "wheel").as_posix() for file in (self.tree / "wheel").rglob("*.py")}

    def asked_for(self) -> list[str]:
        """The requirements in the wheel's metadata."""
        return wheel_metadata(self.wheel).get_all("Requires-Dist", [])


def build(tree: Path, into: Path, *options: str) -> str:
    """Build distributions of a tree; give all that was said meanwhile. A warning ends it."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", into, *options, tree],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=BUILD_SECONDS,
        env={**kept, "PYTHONWARNINGS": "error"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both distributions, as ``make dist`` makes them: the wheel from the source distribution."""
    tree, into = tmp_path_factory.mktemp("tree") / "tallybook", tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT, tree, ignore=OTHER_FOLDERS)
    for folder in MADE_OF_EXAMPLES:
        (tree / folder).mkdir(parents=True, exist_ok=True)
        for name in ("made.go", "Made.java"):
            (tree / folder / name).write_text("// Made of proto/ by make examples.\n")
    said = build(tree, into)
    (source,), (wheel,) = into.glob("*.tar.gz"), into.glob("*.whl")
    return Built(tree, said, source, wheel)


def wheel_metadata(wheel: Path) -> email.message.Message:
    """The metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def contents(wheel: Path) -> dict[str, bytes]:
    """Every file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def version() -> str:
    """The version that setup.cfg names."""
    return re.search(r"^version = (.+)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)[1]


# --- what is in them --------------------------------------------------------------------------------------------------


def test_both_are_built_without_a_warning(built):
    assert "warning" not in built.said.lower(), built.said


def test_the_wheel_has_every_package_its_types_and_its_license_and_nothing_else(built):
    about = f"tallybook-{version()}.dist-info"
    files = contents(built.wheel)
    expected = {f"tallybook/{path}" for path in built.product()}
    expected |= built.top()
    expected |= {f"{about}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt")}
    assert set(files) == expected | {f"{about}/licenses/LICENSE"}
    assert files[f"{about}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()


def test_the_source_distribution_has_what_both_are_made_of_and_what_there_is_to_read_and_no_tests(built):
    with tarfile.open(built.source) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    generated_from = {file.relative_to(ROOT).as_posix() for file in (ROOT / "proto").glob("tallybook/**/*.proto")}
    files = (file for pattern in FOR_READERS for file in built.tree.glob(pattern) if file.is_file())
    found = {file.relative_to(built.tree).as_posix() for file in files}
    to_read = {name for name in found if not name.startswith(MADE_OF_EXAMPLES)}
    above = {f"wheel/{path}" for path in built.top()}
    assert {name for name in names if not name.startswith("tallybook.egg-info/")} == (
        built.product() | above | BESIDE_PACKAGES | FOR_IMAGES | generated_from | to_read
    )


def test_what_a_page_of_the_source_distribution_leads_to_is_in_it_unless_it_is_for_developers(built):
    with tarfile.open(built.source) as archive:
        files = {member.name.partition("/")[2]: member for member in archive.getmembers() if member.isfile()}
        pages = {
            name: archive.extractfile(file).read().decode() for name, file in files.items() if name.endswith(".md")
        }
    missing = [
        (page, target)
        for page, text in pages.items()
        for link in re.findall(r"\]\((?!https?:)([^)#\s]+)[^)]*\)", text)
        for target in [os.path.normpath(Path(page).parent / link)]
        if target not in files and not any(name.startswith(f"{target}/") for name in files)
    ]
    assert [each for each in missing if not each[1].startswith(FOR_DEVELOPERS)] == []


@pytest.mark.nightly
def test_the_wheel_is_the_same_whether_it_is_built_from_the_source_distribution_or_from_the_tree(built, tmp_path):
    build(built.tree, tmp_path, "--wheel")
    (direct,) = tmp_path.glob("*.whl")
    assert direct.name == built.wheel.name
    assert contents(direct) == contents(built.wheel)


def test_the_metadata_say_what_it_is_and_how_it_may_be_used(built):
    said = wheel_metadata(built.wheel)
    assert (said["Name"], said["Version"], said["License-Expression"]) == ("tallybook", version(), "Apache-2.0")
    assert set(said.get_all("Provides-Extra")) == EXTRAS | {"dev", "fuzz", "testdata"}
    assert said["Description-Content-Type"] == "text/markdown"
    assert said.get_payload().startswith("# Tallybook\n")


# --- what it does, installed ------------------------------------------------------------------------------------------


def needed(asked: list[str], *extras: str) -> dict[str, importlib.metadata.Distribution]:
    """The distributions of this environment that ``asked`` requires with extras, and all that they require in turn."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting, seen = [(text, extra) for text in asked for extra in ("", *extras)], set()
    while waiting:
        text, extra = waiting.pop()
        requirement = Requirement(text)
        if (text, extra) in seen or (requirement.marker and not requirement.marker.evaluate({"extra": extra})):
            continue
        seen.add((text, extra))
        if requirement.name == "tallybook":
            waiting += [(each, wanted) for each in asked for wanted in requirement.extras]
            continue
        one = importlib.metadata.distribution(requirement.name)
        assert requirement.specifier.contains(one.version, prereleases=True), f"{text}: there is {one.version}"
        found[requirement.name] = one
        waiting += [(below, wanted) for below in one.requires or () for wanted in ("", *requirement.extras)]
    return found


def link(one: importlib.metadata.Distribution, site: Path) -> None:
    """Make a distribution appear in another environment, file by file: some share a folder."""
    for file in one.files or ():
        if ".." not in file.parts and not os.path.lexists(target := site / file):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(file.locate())


def create_environment(folder: Path, built: Built, *extras: str) -> Path:
    """Make an environment with what the wheel requires, without the wheel; give where its libraries are."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for one in needed(built.asked_for(), *extras).values():
        link(one, site)
    return site


@dataclass
class Installed:
    """An environment with the wheel in it."""

    folder: Path
    home: Path

    @property
    def words(self) -> dict[str, str]:
        """Variables for its programs: none of ours."""
        return {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "HOME": str(self.home), "COLUMNS": "100"}

    def run(
        self, program: str, *arguments: object, stdin: str = "", seconds: float = BUILD_SECONDS, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its programs to its end."""
        return subprocess.run(
            [self.folder / "bin" / program, *map(str, arguments)], input=stdin, env={**self.words, **more},
            capture_output=True, text=True, check=False, timeout=seconds, cwd=self.home,
        )  # fmt: skip

    def start(self, program: str, *arguments: object) -> subprocess.Popen[str]:
        """Start one of its programs; what it complains of is in ``home / "err"``."""
        with (self.home / "err").open("wb") as errors:
            return subprocess.Popen(
                [self.folder / "bin" / program, *map(str, arguments)],
                env=self.words, text=True, cwd=self.home, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip


def install(built: Built, tmp_path_factory: pytest.TempPathFactory, *extras: str) -> Installed:
    """Make an environment with the wheel and some extras."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    create_environment(folder, built, *extras)
    pip = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--python", folder / "bin" / "python"]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", built.wheel],
        check=True, timeout=BUILD_SECONDS,
    )  # fmt: skip
    return Installed(folder, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def base(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the wheel and no extra."""
    return install(built, tmp_path_factory)


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with what the README installs for a cluster on one machine."""
    return install(built, tmp_path_factory, "server", "archive")


CLIENT = """
import sys
from tallybook.client.sync import Client
from tallybook.stream.sync import StreamStore

with Client(sys.argv[1]) as client:
    with client.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
        ledger.append_many([b"one", b"two"])
    print([entry.payload for entry in client.open_ledger(ledger.id).read(0, 1)])
    streams = StreamStore(client)
    streams.create("orders")
    with streams.writer("orders") as writer:
        writer.append(b"three")
    print([record.payload for record in streams.reader("orders", follow=False)])
"""


def test_a_client_without_extras_writes_and_reads_ledgers_and_streams(base, cluster):
    done = base.run("python", "-c", CLIENT, cluster.metadata)
    assert (done.stdout, done.stderr) == ("[b'one', b'two']\n[b'three']\n", "")


def test_the_command_without_extras_says_which_extra_has_the_command_line(base):
    done = base.run("tallybook", "--version")
    assert (done.returncode, done.stdout, done.stderr.splitlines()[0].startswith(NEEDS_TYPER)) == (2, "", True)


def test_up_serves_a_cluster_where_nothing_but_the_wheel_and_the_extras_for_it_is_installed(cli, installed):
    home = installed.run("python", "-c", "import tallybook.cli as it; print(it.__file__)").stdout
    assert home.startswith(str(installed.folder)), "it is the wheel that runs"
    assert installed.run("tallybook", "--version").stdout == f"tallybook {version()}\n"
    up = installed.start("tallybook", "up", "--bookies", 3, "--data", "data", *cli.small)
    try:
        ready = up.stdout.readline()
        assert ready.startswith("ready sqlite:///"), (installed.home / "err").read_text()
        where = {"TALLYBOOK_METADATA": ready.removeprefix("ready ").strip()}
        ledger = installed.run("tallybook", "ledger", "create", **where).stdout.strip()
        lines = "".join(f"{number}\n" for number in range(10_000))
        appended = installed.run("tallybook", "ledger", "append", ledger, "--close", stdin=lines, **where)
        assert appended.returncode == 0, appended.stderr
        assert installed.run("tallybook", "ledger", "read", ledger, **where).stdout == lines
        up.send_signal(signal.SIGTERM)
        assert up.wait(cli.patience) == 0, (installed.home / "err").read_text()
    finally:
        if up.poll() is None:
            up.kill()
        up.wait()
        up.stdout.close()


def test_every_command_is_loaded_without_the_other_extras(installed):
    program = """
import importlib
from tallybook.cli.app import COMMANDS
for name in [*COMMANDS.values(), "tallybook.archive.reader"]:
    importlib.import_module(name)
"""
    assert installed.run("python", "-c", program).stderr == ""


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["ledger", "ls", "--metadata", "zk://127.0.0.1:1/tallybook"], 2, NEEDS_KAZOO),
        (["offload", "rebuild-catalog", "s3://bucket/prefix"], 2, NEEDS_BOTOCORE),
        (
            ["bookie", "run", "--data", "b1", "--metadata", "memory:", "--set", "traces=http://127.0.0.1:1"],
            3,
            NEEDS_OTEL,
        ),
    ],
)
def test_what_needs_an_extra_says_how_to_install_it(installed, words, code, told):
    done = installed.run("tallybook", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


# --- in Spark ---------------------------------------------------------------------------------------------------------

COUNTED = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sql(f"CREATE TEMPORARY VIEW entries USING tallybook OPTIONS (metadata '{sys.argv[1]}', ledger '{sys.argv[2]}')")
print(spark.sql("SELECT count(*) FROM entries").first()[0])
"""


def test_an_archive_of_the_wheel_is_imported_as_it_is(built, tmp_path):
    """Import like Python with ``--py-files``, which ignores folders without ``__init__``."""
    archive = shutil.copy(built.wheel, tmp_path / "tallybook.zip")
    libraries = next(path for path in sys.path if path.endswith("site-packages"))
    # Without -S this source tree would be found, too.
    found = subprocess.run(
        [sys.executable, "-S", "-c", "import pyspark_tallybook as it; print(it.DefaultSource.__module__, it.__file__)"],
        env={"PYTHONPATH": f"{archive}:{libraries}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=BUILD_SECONDS,
    ).stdout
    assert found == f"tallybook.spark.source {archive}/pyspark_tallybook/__init__.py\n"


@pytest.mark.nightly
def test_spark_finds_an_installed_wheel_without_registration(built, installed, cluster):
    (site,) = installed.folder.glob("lib/python*/site-packages")
    for one in needed(built.asked_for(), "spark").values():
        link(one, site)
    ledger = cluster("ledger", "create").out.decode().strip()
    cluster("ledger", "append", ledger, "--close", stdin=b"one\ntwo\nthree\n")
    python = str(installed.folder / "bin" / "python")
    words = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": python, "JAVA_HOME": os.environ.get("JAVA_HOME", "")}
    counted = installed.run("python", "-c", COUNTED, cluster.metadata, ledger, seconds=SPARK_SECONDS, **words)
    assert counted.returncode == 0, counted.stderr
    assert int(counted.stdout.split()[-1]) == 3


SUBMITTED = """
import sys
from pyspark.sql import SparkSession
from tallybook.spark import TallybookDataSource

spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(TallybookDataSource)
stream = {"metadata": sys.argv[1], "stream": "submitted"}
rows = spark.range(0, 1000, 1, 2).selectExpr("CAST(id AS STRING) AS payload")
rows.write.format("tallybook").options(**stream, createStream="true").mode("append").save()
print(spark.sparkContext.master, spark.read.format("tallybook").options(**stream, minPartitions=2).load().count())
"""


@contextmanager
def standalone_cluster(home: Path, folder: Path, words: dict[str, str]) -> Iterator[str]:
    """Start a master and a worker of Spark on loopback; give the URL of the master.

    Args:
        home: of Spark.
        folder: for logs, and for what the worker keeps of applications.
        words: variables of both.
    """
    daemons = {**words, "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false"}
    with ExitStack() as stack:

        def start(role: str, *options: str, until: str) -> str:
            log = folder / f"{role}.log"
            program = f"org.apache.spark.deploy.{role}.{role.capitalize()}"
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [home / "bin" / "spark-class", program, "--host", "127.0.0.1", "--webui-port", "0", *options],
                    env=daemons, cwd=folder, stdout=output, stderr=subprocess.STDOUT,
                )  # fmt: skip
            stack.callback(process.wait, SPARK_SECONDS)
            stack.callback(process.terminate)
            return wait_until(lambda: re.search(until, log.read_text()), f"the {role} runs", SPARK_SECONDS)[0]

        master = start("master", "--port", "0", until=r"(?<=Starting Spark master at )spark://\S+")
        options = ("--cores", "2", "--memory", "1g", "--work-dir", str(folder / "work"), master)
        start("worker", *options, until="Successfully registered with master")
        yield master


@pytest.mark.nightly
def test_executors_of_a_standalone_cluster_read_and_write_with_the_wheel_that_comes_with_the_job(
    built, cluster, tmp_path
):
    site = create_environment(tmp_path / "venv", built, "spark")
    python = tmp_path / "venv" / "bin" / "python"
    words = {
        "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
        "SPARK_HOME": str(site / "pyspark"), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python),
    }  # fmt: skip
    alone = subprocess.run([python, "-c", "import tallybook"], env=words, capture_output=True, check=False)
    assert alone.returncode != 0, "the environment of the executors has no tallybook"
    shutil.copy(built.wheel, tmp_path / "tallybook.zip")
    (tmp_path / "job.py").write_text(SUBMITTED)
    with standalone_cluster(site / "pyspark", tmp_path, words) as master:
        done = subprocess.run(
            [
                site / "pyspark" / "bin" / "spark-submit", "--master", master, "--py-files", "tallybook.zip",
                "--executor-memory", "512m", "--conf", "spark.ui.enabled=false", "job.py", cluster.metadata,
            ],
            env=words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=SPARK_SECONDS,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [master, "1000"]

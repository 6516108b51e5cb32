"""What tests/fixtures keeps of a release: the files of a whole cluster as it left them, and what there is to be read.

    NAME.tar.xz         data directories of three bookies, metadata, archive, and the keys for what is sealed in it
    NAME.json           the manifest: what has to be there
    NAME.wire.json      what a client and a bookie said to each other
    NAME.zookeeper.txt  what the metadata would be in ZooKeeper

The cluster is a real one, of processes with the code of a revision. In the end all of them are killed at once, so that
journals hold what nothing else has. Paths in it are relative but for the place of the archive, which the metadata keep
as a URL: whoever unpacks it puts the new one there; and for the list of places that one bookie has elsewhere, which it
brings up to date itself when it is started with other paths.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tallybook.archive.location import FORMAT, RECORD
from tallybook.bench.bookies import Bookie, metadata_in
from tallybook.bench.programs import ProgramFailed, Server, module, run_json_lines
from tallybook.bench.revisions import Tree
from tallybook.core.errors import check
from tallybook.metadata.store import Ok
from tallybook.metadata.uri import open_metadata
from tallybook.repair.service import STATUS_RECORD
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng

from .asking import AskingProgram

NAMES: Final = ("b0", "b1", "b2")
SETTINGS: Final = (
    "journal.segment_bytes=1MiB",
    "journal.segment_count=4",
    "journal.max_commit_bytes=256KiB",
    "storage.write_cache_bytes=2MiB",
    "storage.entry_log_bytes=4MiB",
    "storage.min_free_bytes=1MiB",
    # What came last is to stay in the journal.
    "storage.flush_interval_ms=600000",
    "admission.max_inflight_bytes=384KiB",
    "admission.stream_credit_bytes=256KiB",
    # What a bookie notes in a while, or says in its journal when it drops a ledger, is to be there, too.
    "collection.interval_ms=500",
    "scrub.period_s=2",
)
"""A small cluster, which packs well."""
DROP_AT_ONCE: Final = "collection.deleted_delay_s=0"
"""Deleted ledgers are dropped while the cluster is being filled."""

PLACES: Final = {
    "b2": {"journal_directories": ("b2-journal-0", "b2-journal-1"), "ledger_directories": ("b2-logs-0", "b2-logs-1")}
}
"""Directories of bookies that have them elsewhere."""

KEYS: Final = "archive-keys.json"

AT_ONCE: Final = ("own_object_bytes=8KiB", "max_set_wait_s=0", "deletion_lag_s=0", "compact_below_bytes=0")
"""An offloader that waits for nothing."""

CONTENTS: Final = Path(__file__).with_name("contents.py")
WIRE_PLAY: Final = Path(__file__).with_name("wire_play.py")
ZOOKEEPER_NODES: Final = Path(__file__).with_name("zookeeper_nodes.py")
PROGRAM_SECONDS: Final = 180.0
AUDIT_SECONDS: Final = 60.0
BY_THEMSELVES_SECONDS: Final = 60.0
DROPPED: Final = "tallybook_bookie_ledgers_dropped_total"
POLL_SECONDS: Final = 0.2
SUFFIX: Final = ".tar.xz"
WIRE_SUFFIX: Final = ".wire.json"
NODES_SUFFIX: Final = ".zookeeper.txt"


def make(tree: Tree, name: str, target: Path) -> Path:
    """Have the revision in ``tree`` fill a cluster, and put what it leaves into ``target`` under ``name``.

    Raises:
        ProgramFailed: a process did not do what it was started for.
    """
    cluster = _Cluster(tree)
    found = cluster.filled()
    packed = target / f"{name}{SUFFIX}"
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(packed, "w:xz", preset=9) as files:
        for path in sorted(cluster.root.rglob("*")):
            files.add(path, path.relative_to(cluster.root), recursive=False, filter=_anonymous)
    facts = {"revision": tree.name, "settings": list(SETTINGS), "bookies": list(NAMES), "places": PLACES, "keys": KEYS}
    manifest = {**facts, **found}
    (target / f"{name}.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return packed


def record_wire(tree: Tree, name: str, target: Path) -> Path:
    """Have a client and a bookie of the revision talk, and keep what they say.

    Raises:
        ProgramFailed: a process did not do what it was started for.
    """
    directory = tree.directory.with_name("talk")
    directory.mkdir()
    metadata = metadata_in(directory)
    bookie = Bookie("b0", directory / "b0", metadata, SETTINGS, environment=tree.environment)
    try:
        bookie.start()
        bookie.ready()
        command = [sys.executable, "-P", str(WIRE_PLAY), metadata, bookie.name]
        [found] = run_json_lines(command, timeout_seconds=PROGRAM_SECONDS, environment=tree.environment)
    finally:
        bookie.stop()
    recorded = target / f"{name}{WIRE_SUFFIX}"
    rows = [f'"{key}": [\n' + ",\n".join(map(json.dumps, found.pop(key))) + "\n]" for key in ("results", "events")]
    facts = json.dumps({"revision": tree.name, **found})[1:-1]
    recorded.write_text("{" + ",\n".join((facts, *rows)) + "}\n")
    return recorded


def keep_nodes(tree: Tree, name: str, target: Path) -> Path:
    """Keep what the metadata of a fixture, as they were left, would be in ZooKeeper, as the revision lays them out.

    Raises:
        ProgramFailed: they cannot be read.
    """
    directory = tree.directory.with_name("nodes")
    with tarfile.open(target / f"{name}{SUFFIX}") as files:
        files.extractall(directory, filter="data")
    command = [sys.executable, "-P", str(ZOOKEEPER_NODES), str(directory / "metadata.db")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False, env=tree.environment
    )
    if done.returncode:
        raise ProgramFailed(f"the nodes of {name} cannot be told: {done.stderr.strip()[-2000:]}")
    kept = target / f"{name}{NODES_SUFFIX}"
    kept.write_text(done.stdout)
    return kept


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    # RocksDB's own logs tell of the machine that it ran on, and nobody reads them.
    if not (member.isfile() or member.isdir()) or re.search(r"/rocksdb/LOG[^/]*$", member.name):
        return None
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


class _Cluster:
    """Bookies with the code of a revision, and what is done with them."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.root = tree.directory
        self.root.mkdir(parents=True)
        self._logs = tree.directory.with_suffix(".logs")
        self._logs.mkdir()
        self._metadata = metadata_in(self.root)
        self._bookies = [
            Bookie(
                name,
                self.root / name,
                self._metadata,
                (*SETTINGS, DROP_AT_ONCE, *places_of(name, PLACES, self.root)),
                self._logs,
                environment=tree.environment,
            )
            for name in NAMES
        ]

    def filled(self) -> dict[str, Any]:
        """Do everything, and end as a power cut would; what there is to be read."""
        self._start()
        with self._program("settled") as program:
            manifest = program.until_done({
                "archive": self._archive,
                "sealed archive": self._sealed_archive,
                "one bookie less": self._bookies[1].kill,
                "all bookies": lambda: self._start(self._bookies[1]),
            })  # fmt: skip
        self._audit()
        self._tidied()
        for bookie in self._bookies:
            bookie.stop()
        self._start()
        with self._program("recent") as program:
            last = program.until_done({"a collection": self._collected})
            asyncio.run(_until(self._scrubbed))
            for bookie in self._bookies:
                bookie.kill()
        return {part: {**found, **last.get(part, {})} for part, found in manifest.items()}

    def _start(self, *bookies: Bookie) -> None:
        for bookie in bookies or self._bookies:
            bookie.start()
        for bookie in bookies or self._bookies:
            bookie.ready()

    def _archive(self, *settings: str) -> None:
        """Everything that is closed goes to the archive; by the second time, its copies are let go."""
        (self.root / "archive").mkdir(exist_ok=True)
        for _ in range(2):
            self._offload(*AT_ONCE, *settings)

    def _offload(self, *settings: str) -> None:
        options = ["--metadata", self._metadata, "--archive", archive_url(self.root), "--once"]
        self._run("offload", "run", *options, *(word for each in settings for word in ("--set", each)))

    def _sealed_archive(self) -> None:
        """What is archived from here on is sealed, beside what is there and is not."""
        self._run("security", "archive-key", str(self.root / KEYS))
        self._archive(self._with_keys)

    def _tidied(self) -> None:
        """The archive has its manifest, and the copy of what is known of streams; no more ledgers move."""
        self._offload(self._with_keys, "min_age_s=86400")

    @property
    def _with_keys(self) -> str:
        return f"archive_keys={self.root / KEYS}"

    def _collected(self) -> None:
        """Every bookie that had the ledger which was deleted has said so in its journal."""
        asyncio.run(_until(lambda: all(each.metrics()[DROPPED] for each in self._bookies)))

    def _scrubbed(self) -> bool:
        return all((each.directory / "scrub").exists() for each in self._bookies)

    def _audit(self) -> None:
        """The auditor of the repair goes over all of it once, and writes that down."""
        command = module("tallybook.cli", "repair", "run", "--metadata", self._metadata, "--set", "interval_s=1")
        command += ["--set", self._with_keys]
        repair = Server(command, self._logs / "repair.out", self._tree.environment)
        try:
            asyncio.run(_until_there(self._metadata, STATUS_RECORD))
        finally:
            repair.stop()

    def _run(self, *words: str) -> None:
        command = module("tallybook.cli", *words)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False, env=self._tree.environment
        )
        if done.returncode:
            raise ProgramFailed(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")

    @contextmanager
    def _program(self, phase: str) -> Iterator[AskingProgram]:
        command = [sys.executable, "-P", str(CONTENTS), self._metadata, phase]
        program = AskingProgram(command, self._logs / f"{phase}.log", self._tree.environment)
        try:
            yield program
        finally:
            program.kill()


async def _until(done: Callable[[], bool]) -> None:
    """Wait until bookies have done something by themselves."""
    clock = RealClock()
    async with asyncio.timeout(BY_THEMSELVES_SECONDS):
        while not done():
            await clock.sleep(POLL_SECONDS)


async def _until_there(metadata: str, record: str) -> None:
    """Wait for a record that somebody writes."""
    clock = RealClock()
    client = await open_metadata(metadata, clock=clock, rng=SystemRng(), timeout_seconds=AUDIT_SECONDS)
    try:
        async with asyncio.timeout(AUDIT_SECONDS):
            while await client.store.read_record(record) is None:
                await clock.sleep(POLL_SECONDS)
    finally:
        await client.close()


# --- reading it ---------------------------------------------------------------------------------------------------


def names_in(folder: Path) -> list[str]:
    """The fixtures that there are."""
    return sorted(path.name.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}"))


async def unpack(folder: Path, name: str, target: Path) -> dict[str, Any]:
    """Put the files of a fixture into ``target``, as an operator would who has moved a cluster; its manifest."""
    with tarfile.open(folder / f"{name}{SUFFIX}") as files:
        files.extractall(target, filter="data")
    await say_where(metadata_in(target), target)
    manifest: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return manifest


async def say_where(metadata: str, root: Path) -> None:
    """Say in the metadata of a fixture that its archive is below ``root`` by now."""
    client = await open_metadata(metadata, clock=RealClock(), rng=SystemRng())
    try:
        found = await client.store.read_record(RECORD, linearizable=True)
        check(found is not None, "the fixture has no archive")
        moved = json.dumps({"format": FORMAT, "url": archive_url(root)}).encode()
        written = await client.store.write_record(RECORD, moved, found.version if found else None)
        check(isinstance(written, Ok), "somebody else uses the fixture")
    finally:
        await client.close()


def nodes_of(folder: Path, name: str) -> dict[str, bytes]:
    """What the metadata of a fixture would be in ZooKeeper, by the path below the root of a cluster; parents first."""
    lines = (folder / f"{name}{NODES_SUFFIX}").read_text().splitlines()
    parted = (line.partition(" ") for line in lines)
    return {path: bytes.fromhex(value) for path, _, value in parted}


def places_of(bookie: str, places: Mapping[str, Mapping[str, Sequence[str]]], root: Path) -> list[str]:
    """Settings that say where a bookie has its directories, for the cluster in ``root``."""
    found = places.get(bookie, {})
    return [f"{name}={','.join(str(root.resolve() / each) for each in paths)}" for name, paths in found.items()]


def archive_url(root: Path) -> str:
    """Where the archive of the cluster in a directory is."""
    return f"file://{quote(str(root.resolve()))}/archive"

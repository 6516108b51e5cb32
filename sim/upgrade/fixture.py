"""Fixtures of a release in tests/fixtures: the files of a whole cluster, and a manifest of its contents.

    NAME.tar.xz         data directories of three bookies, metadata, archive, and keys of its encrypted objects
    NAME.json           manifest: what a later revision must read
    NAME.wire.json      recorded messages between a client and a bookie
    NAME.zookeeper.txt  the metadata as ZooKeeper nodes

A fixture is made by a real cluster of processes with the code of a revision. In the end all are killed, so that
journals hold entries that are in no entry log. Paths are relative, with two exceptions: the URL of the archive in the
metadata, which ``unpack`` replaces, and the list of directories of one bookie, which the bookie updates itself when it
starts with other paths.
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

from tallybook.archive.url_record import FORMAT, RECORD
from tallybook.bench.compare.revisions import Tree, extract
from tallybook.bench.equipment.bookies import RestartableBookie, metadata_in
from tallybook.bench.equipment.programs import ProgramFailed, Server, module, run_json_lines
from tallybook.core.errors import check
from tallybook.metadata.store import Ok
from tallybook.metadata.uri import open_metadata
from tallybook.repair.service import STATUS_RECORD
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng

from .controlled_program import ControlledProgram

NAMES: Final = ("b0", "b1", "b2")
SETTINGS: Final = (
    "journal.segment_bytes=1MiB",
    "journal.segment_count=4",
    "journal.max_commit_bytes=256KiB",
    "storage.write_cache_bytes=2MiB",
    "storage.entry_log_bytes=4MiB",
    "storage.min_free_bytes=1MiB",
    # The last entries must stay in the journal.
    "storage.flush_interval_ms=600000",
    "admission.max_inflight_bytes=384KiB",
    "admission.stream_credit_bytes=256KiB",
    # The fixture must have scrub state, and journal records of dropped ledgers.
    "collection.interval_ms=500",
    "scrub.period_s=2",
)
"""Settings of the bookies: small files, which compress well."""
DROP_IMMEDIATELY: Final = "collection.deleted_delay_s=0"
"""Setting to drop deleted ledgers while the cluster is filled."""

PLACES: Final = {
    "b2": {"journal_directories": ("b2-journal-0", "b2-journal-1"), "ledger_directories": ("b2-logs-0", "b2-logs-1")}
}
"""Bookies with journal and ledger directories outside their data directory."""

KEYS: Final = "archive-keys.json"

EAGER_OFFLOAD: Final = ("own_object_bytes=8KiB", "max_set_wait_s=0", "deletion_lag_s=0", "compact_below_bytes=0")
"""Settings of an offloader that archives and releases without delay."""

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
    """Let the revision in ``tree`` fill a cluster, and save it as fixture ``name`` in ``target``.

    Raises:
        ProgramFailed: a process failed.
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
    """Record the messages between a client and a bookie of the revision.

    Raises:
        ProgramFailed: a process failed.
    """
    directory = tree.directory.with_name("talk")
    directory.mkdir()
    metadata = metadata_in(directory)
    bookie = RestartableBookie("b0", directory / "b0", metadata, SETTINGS, environment=tree.environment)
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
    """Save the metadata of a fixture as ZooKeeper nodes, in the layout of the revision.

    Raises:
        ProgramFailed: the metadata cannot be read.
    """
    directory = tree.directory.with_name("nodes")
    extract(target / f"{name}{SUFFIX}", directory)
    command = [sys.executable, "-P", str(ZOOKEEPER_NODES), str(directory / "metadata.db")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False, env=tree.environment
    )
    if done.returncode:
        raise ProgramFailed(f"cannot convert the metadata of {name} to nodes: {done.stderr.strip()[-2000:]}")
    kept = target / f"{name}{NODES_SUFFIX}"
    kept.write_text(done.stdout)
    return kept


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    # Leave out RocksDB's own logs: they are not needed and describe the machine.
    if not (member.isfile() or member.isdir()) or re.search(r"/rocksdb/LOG[^/]*$", member.name):
        return None
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


class _Cluster:
    """Fills a cluster of bookies with the code of a revision."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.root = tree.directory
        self.root.mkdir(parents=True)
        self._logs = tree.directory.with_suffix(".logs")
        self._logs.mkdir()
        self._metadata = metadata_in(self.root)
        self._bookies = [
            RestartableBookie(
                name,
                self.root / name,
                self._metadata,
                (*SETTINGS, DROP_IMMEDIATELY, *places_of(name, PLACES, self.root)),
                self._logs,
                environment=tree.environment,
            )
            for name in NAMES
        ]

    def filled(self) -> dict[str, Any]:
        """Fill the cluster, kill all bookies, and return the manifest."""
        self._start()
        with self._program("settled") as program:
            manifest = program.serve_until_done({
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
            last = program.serve_until_done({"a collection": self._collected})
            asyncio.run(_until(self._scrubbed))
            for bookie in self._bookies:
                bookie.kill()
        return {part: {**found, **last.get(part, {})} for part, found in manifest.items()}

    def _start(self, *bookies: RestartableBookie) -> None:
        for bookie in bookies or self._bookies:
            bookie.start()
        for bookie in bookies or self._bookies:
            bookie.ready()

    def _archive(self, *settings: str) -> None:
        """Archive all closed ledgers; the second pass releases their copies."""
        (self.root / "archive").mkdir(exist_ok=True)
        for _ in range(2):
            self._offload(*EAGER_OFFLOAD, *settings)

    def _offload(self, *settings: str) -> None:
        options = ["--metadata", self._metadata, "--archive", archive_url(self.root), "--once"]
        self._run("offload", "run", *options, *(word for each in settings for word in ("--set", each)))

    def _sealed_archive(self) -> None:
        """Create an archive key and archive again: new objects are encrypted, older ones stay plain."""
        self._run("security", "archive-key", str(self.root / KEYS))
        self._archive(self._with_keys)

    def _tidied(self) -> None:
        """Run the offloader once more for its manifest and the copy of stream records, without moving ledgers."""
        self._offload(self._with_keys, "min_age_s=86400")

    @property
    def _with_keys(self) -> str:
        return f"archive_keys={self.root / KEYS}"

    def _collected(self) -> None:
        """Wait until every bookie has dropped the deleted ledger."""
        asyncio.run(_until(lambda: all(each.metrics()[DROPPED] for each in self._bookies)))

    def _scrubbed(self) -> bool:
        return all((each.directory / "scrub").exists() for each in self._bookies)

    def _audit(self) -> None:
        """Run the repair until its auditor has written its status record."""
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
    def _program(self, phase: str) -> Iterator[ControlledProgram]:
        command = [sys.executable, "-P", str(CONTENTS), self._metadata, phase]
        program = ControlledProgram(command, self._logs / f"{phase}.log", self._tree.environment)
        try:
            yield program
        finally:
            program.kill()


async def _until(done: Callable[[], bool]) -> None:
    """Wait until ``done()`` holds."""
    clock = RealClock()
    async with asyncio.timeout(BY_THEMSELVES_SECONDS):
        while not done():
            await clock.sleep(POLL_SECONDS)


async def _until_there(metadata: str, record: str) -> None:
    """Wait until a metadata record exists."""
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
    """Names of all fixtures."""
    return sorted(path.name.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}"))


async def unpack(folder: Path, name: str, target: Path) -> dict[str, Any]:
    """Unpack a fixture into ``target``, as if a cluster were moved there; return its manifest."""
    extract(folder / f"{name}{SUFFIX}", target)
    await say_where(metadata_in(target), target)
    manifest: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return manifest


async def say_where(metadata: str, root: Path) -> None:
    """Set the archive URL in the metadata of a fixture to a directory below ``root``."""
    client = await open_metadata(metadata, clock=RealClock(), rng=SystemRng())
    try:
        found = await client.store.read_record(RECORD, linearizable=True)
        check(found is not None, "the fixture has no archive")
        moved = json.dumps({"format": FORMAT, "url": archive_url(root)}).encode()
        written = await client.store.write_record(RECORD, moved, found.version if found else None)
        check(isinstance(written, Ok), "another process changed the metadata of the fixture")
    finally:
        await client.close()


def nodes_of(folder: Path, name: str) -> dict[str, bytes]:
    """ZooKeeper nodes of a fixture's metadata, by path below the root of the cluster; parents first."""
    lines = (folder / f"{name}{NODES_SUFFIX}").read_text().splitlines()
    parted = (line.partition(" ") for line in lines)
    return {path: bytes.fromhex(value) for path, _, value in parted}


def places_of(bookie: str, places: Mapping[str, Mapping[str, Sequence[str]]], root: Path) -> list[str]:
    """Settings for the directories of a bookie, for a cluster in ``root``."""
    found = places.get(bookie, {})
    return [f"{name}={','.join(str(root.resolve() / each) for each in paths)}" for name, paths in found.items()]


def archive_url(root: Path) -> str:
    """URL of the archive of the cluster in ``root``."""
    return f"file://{quote(str(root.resolve()))}/archive"

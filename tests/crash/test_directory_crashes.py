"""Initialising a data directory, with a power failure at every disk operation, and another one at the next start."""

import asyncio

import pytest

from tallybook.bookie.directories.cookie import Cookie, decode_cookie
from tallybook.bookie.directories.layout import _DirectoryClaimer, claim, replace_identity
from tallybook.bookie.directories.limbo import load_limbo
from tallybook.core.errors import ForeignDirectory, MetadataConflict
from tallybook.core.settings import BookieSettings
from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import CrashOptions, SimDisk, enumerate_crashes
from tallybook.sim.deterministic.crash import Promises

ROOT = "/data/b1"
OWN = f"{ROOT}/ledgers"
OTHER = "/disk2/ledgers"
OLD_COOKIE = b"the cookie of a directory that is gone"
ID_COUNTER = 128
FEW = CrashOptions(subsets=8)


async def id_counter() -> int:
    await asyncio.sleep(0)
    return ID_COUNTER


def settings(*ledgers: str) -> BookieSettings:
    return BookieSettings(
        bookie_id="b1",
        data_directory=ROOT,
        metadata="memory:",
        storage={"min_free_bytes": 0},
        ledger_directories=ledgers,
    )


class Registry:
    """The metadata, as a store apart from the disk: what it took stays, and that it did is promised at once."""

    def __init__(self, promises: Promises | None = None, cookie: bytes | None = None) -> None:
        self._promises = promises
        self.cookie = cookie

    async def cluster_id(self) -> str:
        return "cluster-a"

    async def read_cookie(self, bookie_id: str) -> bytes | None:
        await asyncio.sleep(0)
        return self.cookie

    async def write_cookie(self, bookie_id: str, cookie: bytes, *, replace: bool = False) -> None:
        await asyncio.sleep(0)
        if self.cookie not in (None, cookie) and not replace:
            raise MetadataConflict("another cookie")
        self.cookie = cookie
        if self._promises is not None:
            self._promises.add(cookie)


async def initialise(disk: SimDisk, promises: Promises) -> None:
    directory = await claim(settings(), disk, Registry(promises), SeededRng(1))
    promises.add("claimed")
    await directory.release()


async def start_twice(disk: SimDisk, cookie: bytes | None) -> None:
    """Two starts after a crash: both succeed, under one identity, which is the registered one."""
    registry = Registry(cookie=cookie)
    first = await claim(settings(), disk, registry, SeededRng(2))
    await first.release()
    second = await claim(settings(), disk, registry, SeededRng(3))
    await second.release()
    assert first.cookie == second.cookie
    assert registry.cookie == first.cookie.encode()
    assert cookie in (None, registry.cookie)


async def starts_as_registered(disk: SimDisk, promises: tuple[object, ...]) -> None:
    await start_twice(disk, next((promise for promise in promises if isinstance(promise, bytes)), None))


def test_initialising_survives_a_crash_at_every_disk_operation(crashes) -> None:
    report = crashes(initialise, starts_as_registered, options=FEW, doubles=0, full_doubles=0)
    assert report.points > 80
    assert report.distinct > 30


def test_a_second_crash_while_initialising_is_survived_too(crashes) -> None:
    async def check(disk: SimDisk, promises: tuple[object, ...]) -> None:
        # What an earlier start, itself cut off, told the metadata: at the latest, it did so before there was a cookie.
        told = next((promise for promise in promises if isinstance(promise, bytes)), None)
        await start_twice(disk, told or await disk.read_file(f"{ROOT}/cookie", 4096))

    report = crashes(initialise, check, options=FEW, doubles=300, full_doubles=300)
    assert report.doubles


def test_replacing_an_identity_can_be_repeated_after_a_crash_at_every_disk_operation(crashes) -> None:
    async def workload(disk: SimDisk, promises: Promises) -> None:
        promises.add(OLD_COOKIE)
        await replace_identity(settings(), disk, Registry(promises, OLD_COOKIE), SeededRng(1), id_counter)
        promises.add("replaced")

    async def check(disk: SimDisk, promises: tuple[object, ...]) -> None:
        registry = Registry(cookie=[promise for promise in promises if isinstance(promise, bytes)][-1])
        if await disk.read_file(f"{ROOT}/cookie", 4096) is None:
            assert "replaced" not in promises
            await replace_identity(settings(), disk, registry, SeededRng(2), id_counter)
        directory = await claim(settings(), disk, registry, SeededRng(3))
        await directory.release()
        limbo = await load_limbo(disk, directory.layout.limbo)
        assert limbo.covers(ID_COUNTER - 1, repaired=0), "what the old directory held would be ABSENT"
        assert registry.cookie is not None
        assert decode_cookie(registry.cookie, "metadata") == directory.cookie

    report = crashes(workload, check, options=FEW, doubles=0, full_doubles=0)
    assert report.distinct > 30


def test_a_directory_of_entry_logs_may_be_added_with_a_crash_at_every_disk_operation(crashes) -> None:
    async def workload(disk: SimDisk, promises: Promises) -> None:
        await initialise(disk, promises)
        registry = Registry(promises, disk.peek(f"{ROOT}/cookie"))
        directory = await claim(settings(OWN, OTHER), disk, registry, SeededRng(4))
        promises.add("added")
        await directory.release()

    async def check(disk: SimDisk, promises: tuple[object, ...]) -> None:
        if "claimed" not in promises:
            return
        registry = Registry(cookie=[promise for promise in promises if isinstance(promise, bytes)][-1])
        for seed in (5, 6):
            directory = await claim(settings(OWN, OTHER), disk, registry, SeededRng(seed))
            await directory.release()
            assert directory.directories.ledger_paths == (OWN, OTHER)
        if "added" not in promises:
            return
        # What was added stays known.
        emptied = disk.fork()
        await emptied.unlink(f"{OTHER}/cookie")
        with pytest.raises(ForeignDirectory, match=f"{OTHER} is missing or empty"):
            await claim(settings(OWN, OTHER), emptied, registry, SeededRng(7))

    report = crashes(workload, check, options=FEW, doubles=100, full_doubles=100)
    assert report.distinct > 60


def test_a_cookie_planted_before_the_metadata_knows_it_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The enumeration is worth something only if it finds the order that is wrong."""
    finish, register = _DirectoryClaimer.finish, _DirectoryClaimer._register

    async def register_late(self: _DirectoryClaimer, draft: Cookie) -> None:
        await finish(self, draft)
        await register(self, draft)

    async def nothing(self: _DirectoryClaimer, draft: Cookie) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(_DirectoryClaimer, "finish", nothing)
    monkeypatch.setattr(_DirectoryClaimer, "_register", register_late)
    with pytest.raises(AssertionError, match="crash states fail"):
        enumerate_crashes(initialise, starts_as_registered, options=FEW)

"""An offloader that dies, or gets no answer, at any of its calls; the next one finishes its work.

The first offloader has every kind of work: ledgers to archive, alone and together, copies to release, objects to merge,
an orphan object and an orphan upload. Each of its requests to the object store and to the metadata is a step. If any
step fails, the ledgers are complete, then and in the end, each in one object, and nothing else is left in the bucket.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from tallybook.archive.format.schema import object_key
from tallybook.archive.manifest import MANIFEST_KEY
from tallybook.client.client import Client
from tallybook.core.coverage import listen
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.offload.verify import verify_objects
from tallybook.runtime.tasks import InlineWorkers
from tallybook.sim.deterministic import World, run_seed

from ..sampling import sample
from ..support.archive_stage import ArchiveStage
from ..support.ledger_scenario import SMALL, lines, read_all
from ..support.memory_cluster import MemoryCluster
from ..support.steps import OBJECT_CHANGES, CallSteps, OffloadProcess, StepFault

T = TypeVar("T")

SETTINGS = OffloadSettings(
    row_group_bytes=4096,
    own_object_bytes=150,
    set_object_bytes=4_000,
    max_set_wait_s=0,
    compact_below_bytes=120,
    deletion_lag_s=60,
    attempt_ttl_s=100,
    orphan_delay_s=20,
    tidy_interval_s=0,
)
EVERY_CALL = {
    "list_ledgers", "read_ledger", "update_ledger", "write", "finish", "info", "read", "read_many", "list",
    "unfinished_uploads", "delete", "abort_upload",
}  # fmt: skip


@dataclass
class Play:
    """A small cluster with an archive, and what its ledgers hold."""

    world: World
    cluster: MemoryCluster
    client: Client
    stage: ArchiveStage
    written: dict[int, list[bytes]] = field(default_factory=dict)

    async def ledger(self, count: int) -> int:
        ledger = await self.client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1)
        await ledger.append_many(lines(count))
        await ledger.close()
        self.written[ledger.id] = lines(count)
        return ledger.id

    async def fill(self) -> None:
        """Work of every kind."""
        small = [await self.ledger(count) for count in (2, 3, 3, 0)]
        await self.ledger(14)
        deleted = await self.ledger(1)
        for ledger_id in (small[0], small[1], deleted):
            await self.stage.archive(ledger_id)
        await self.stage.release(small[0])
        await self.client.delete_ledger(deleted)
        del self.written[deleted]
        await self.stage.store.upload(object_key(self.world.rng.uuid(), [small[2]])).write(b"left behind")

    async def ledgers(self) -> list[LedgerMetadata]:
        return [await self.client.ledger_metadata(ledger_id) for ledger_id in self.written]

    async def look(self, when: str) -> list[LedgerMetadata]:
        """Every ledger is there, and no copy was released that is not good in the bucket."""
        found = await self.ledgers()
        released = [metadata for metadata in found if metadata.copies_released]
        async for verdict in verify_objects(self.stage.store, InlineWorkers(), released):
            assert verdict.good, f"{when}: {verdict.problem}"
        for metadata in released:
            for bookie in self.cluster.bookies.values():
                bookie.delete(metadata.ledger_id)
        for ledger_id, payloads in self.written.items():
            assert await read_all(self.stage.client, ledger_id) == payloads, f"{when}: ledger {ledger_id}"
        return found

    async def settled(self, when: str) -> None:
        """Everything is archived and released once, and nothing else is in the bucket."""
        found = await self.look(when)
        assert all(metadata.copies_released and metadata.archiving is None for metadata in found), when
        owned = {metadata.archived.key for metadata in found if metadata.archived}
        left = {each.key async for page in self.stage.store.list() for each in page}
        assert left - {MANIFEST_KEY} == owned, f"{when}: {sorted(left ^ owned)}"
        assert await self.stage.store.unfinished_uploads() == [], when
        assert len(owned) <= 3, f"{when}: what is small shares objects"


async def live(play: Play, steps: CallSteps, name: str, rounds: int) -> None:
    """The life of one offloader: so many rounds, or until it dies."""
    async with OffloadProcess(play.stage, steps, SETTINGS, name) as process:
        for _ in range(rounds):
            if not await process.run_pass():
                return
            await play.world.clock.sleep(SETTINGS.attempt_ttl_s + 1)


def played(at: int = 0, wrong: StepFault = StepFault.DIES) -> list[str]:
    """One offloader with something wrong at one call, then another one with nothing wrong; the calls of the first."""
    steps = CallSteps(at, wrong)

    async def play(world: World) -> None:
        cluster = MemoryCluster(world, bookies=1)
        await cluster.start()
        async with cluster.client(SMALL) as client, ArchiveStage(cluster, SETTINGS) as stage:
            play = Play(world, cluster, client, stage)
            await play.fill()
            await live(play, steps, "one", 3)
            when = f"call {at}, {steps.calls[at - 1]}, {wrong.value}"
            await play.look(when)
            await live(play, CallSteps(), "two", 5)
            await play.settled(when)
        await cluster.stop()

    run_seed(1, play)
    return steps.calls


@pytest.mark.crash_states
@pytest.mark.parametrize("wrong", StepFault)
def test_any_failed_call_of_an_offloader_loses_nothing_and_leaves_nothing(wrong: StepFault) -> None:
    """A sample of its calls in an ordinary run. Answers of changes can be lost."""
    calls = played()
    assert set(calls) >= EVERY_CALL
    changes = [at for at, name in enumerate(calls, 1) if name in OBJECT_CHANGES or name == "update_ledger"]
    wanted = changes if wrong is StepFault.ANSWER_LOST else range(1, len(calls) + 1)
    for at in sample(wanted):
        played(at, wrong)


@pytest.fixture
def marks() -> Iterator[set[str]]:
    """The rare branches that were taken."""
    found: set[str] = set()
    listen(found.add)
    yield found
    listen(None)


class Slow(CallSteps):
    """Every call takes a while, so that what others do comes in between."""

    def __init__(self, world: World, name: str, longest_s: float) -> None:
        super().__init__()
        self._clock = world.clock
        self._rng = world.rng.fork(f"pauses of {name}")
        self._longest_s = longest_s

    async def call(self, what: str, work: Callable[[], Awaitable[T]], lost: Callable[[str], T]) -> T:
        await self._clock.sleep(self._rng.random() * self._longest_s)
        return await super().call(what, work, lost)


@pytest.mark.parametrize(
    ("longest_s", "seeds", "met"),
    [
        (0.1, 5, {"offload: another offloader was first"}),
        (20.0, 2, {"offload: another offloader has taken over", "offload: a dead attempt is given up"}),
    ],
)
def test_of_two_offloaders_that_both_believe_to_lead_one_object_of_each_ledger_is_left(
    longest_s: float, seeds: int, met: set[str], marks: set[str]
) -> None:
    """The slow ones take longer over an object than an attempt may: they take each other's work away all the time."""

    async def play(world: World) -> None:
        cluster = MemoryCluster(world, bookies=1)
        await cluster.start()
        async with cluster.client(SMALL) as client, ArchiveStage(cluster, SETTINGS) as stage:
            play = Play(world, cluster, client, stage)
            await play.fill()
            both = [Slow(world, name, longest_s) for name in ("one", "two")]
            await asyncio.gather(*(live(play, steps, f"{at}", 4) for at, steps in enumerate(both)))
            await play.look("after both")
            await live(play, CallSteps(), "alone", 5)
            await play.settled("in the end")
        await cluster.stop()

    for seed in range(seeds):
        run_seed(seed, play)
    assert marks >= met

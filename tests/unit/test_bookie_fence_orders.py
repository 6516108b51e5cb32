"""Fences, deletions and adds of a ledger in a bookie, in every order. Test names carry ids of docs/project/lessons.md.

Every write of the journal takes a tenth of a second, and only the step "commit" lets that time pass. So a write in
flight to the device and a durable one are different steps of an order.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from itertools import permutations
from typing import Any

import pytest

from tallybook.core.add_kind import AddKind
from tallybook.core.answers import AddAnswer
from tallybook.core.errors import EntryAbsent, LedgerFenced, NoSuchLedger
from tallybook.sim.deterministic import SimDisk, World, run_seed
from tallybook.sim.stage.disk_bookie import DiskBookie, batch_of

FENCED, GONE = LedgerFenced.wire_code, NoSuchLedger.wire_code
COMMIT_SECONDS = 0.1
STATES = ("unknown", "in memory", "on disk")

Order = tuple[str, ...]


def orders(*steps: str) -> list[Order]:
    """Every order of these steps in which "add 1" comes before "add 2"."""
    return sorted(each for each in set(permutations(steps)) if each.index("add 1") < each.index("add 2"))


class Run:
    """One order of steps, done to one ledger of a running bookie."""

    def __init__(self, node: DiskBookie, world: World, ledger_id: int, turns: int) -> None:
        self.node = node
        self.world = world
        self.ledger_id = ledger_id
        self.turns = turns
        self.adds: dict[str, asyncio.Future[AddAnswer]] = {}
        self.calls: dict[str, asyncio.Task[Any]] = {}
        self.held_when_fenced: set[str] | None = None

    async def go(self, order: Order) -> None:
        for step in order:
            await self._step(step)
            for _ in range(self.turns):
                await asyncio.sleep(0)
        await asyncio.gather(*self.adds.values(), *self.calls.values())

    async def _step(self, step: str) -> None:
        bookie = self.node.bookie
        match step.split():
            case ["add", number]:
                self.adds[number] = self.node.add(batch_of(int(number), ledger_id=self.ledger_id))
            case ["recovery-add"]:
                self.adds["3"] = self.node.add(batch_of(3, ledger_id=self.ledger_id), kind=AddKind.RECOVERY)
            case ["fence"]:
                self._call(step, self._fence(bookie.fence(self.ledger_id, b"")))
            case ["recovery-read"]:
                self._call(step, self._fence(bookie.recovery_read(self.ledger_id, 9, b"")))
            case ["delete"]:
                self._call(step, bookie.delete_ledger(self.ledger_id))
            case ["commit"]:
                await self.world.clock.sleep(1.1 * COMMIT_SECONDS)

    def _call(self, step: str, work: Coroutine[Any, Any, Any]) -> None:
        self.calls[step] = asyncio.ensure_future(work)

    async def _fence(self, work: Coroutine[Any, Any, Any]) -> str:
        """When the fence is answered, read at once what a recovery would find."""
        try:
            await work
        except EntryAbsent:
            pass
        except NoSuchLedger:
            return "gone"
        self.held_when_fenced = {number for number in ("0", "1", "2") if await self.holds(int(number))}
        return "fenced"

    async def holds(self, entry_id: int) -> bool:
        try:
            await self.node.bookie.read_batches(self.ledger_id, entry_id, entry_id, 1)
        except (EntryAbsent, NoSuchLedger):
            return False
        return True

    def codes(self) -> dict[str, int]:
        return {number: answer.result().code for number, answer in self.adds.items()}


def runs(every: list[Order], state: str) -> Iterator[tuple[int, Order, int]]:
    """A ledger for each order and each number of turns of the loop between the steps."""
    for number, (order, turns) in enumerate((order, turns) for order in every for turns in (0, 1, 4)):
        yield 10 * number + STATES.index(state), order, turns


async def booted(world: World, state: str, ledger_ids: list[int]) -> DiskBookie:
    """A bookie whose ledgers are in ``state``, and whose journal is slow from now on."""
    node = DiskBookie(SimDisk(world.rng), world.clock)
    await node.boot()
    if state != "unknown":
        await asyncio.gather(*(node.add(batch_of(0, ledger_id=ledger_id)) for ledger_id in ledger_ids))
    if state == "on disk":
        await node.stop()
        await node.boot()
    await world.clock.sleep(1)
    node.disk.fail("write", "journal/segment", times=1 << 30, error=None, delay_seconds=COMMIT_SECONDS)
    return node


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("fence", ["fence", "recovery-read"])
def test_f02_every_acked_add_is_seen_by_the_fencing_client_in_any_order_of_adds_fence_and_commits(
    fence: str, state: str
) -> None:
    every = list(runs(orders("add 1", "add 2", fence, "recovery-add", "commit", "commit"), state))
    assert len(every) == 3 * 180

    async def scenario(world: World) -> None:
        node = await booted(world, state, [ledger_id for ledger_id, *_ in every])
        for ledger_id, order, turns in every:
            run = Run(node, world, ledger_id, turns)
            await run.go(order)
            codes = run.codes()
            assert run.held_when_fenced is not None
            for number in ("1", "2"):
                assert codes[number] in (0, FENCED)
                assert codes[number] or number in run.held_when_fenced, (order, turns, codes)
                if order.index(f"add {number}") > order.index(fence) and state == "in memory" and turns:
                    assert codes[number] == FENCED, (order, turns, codes)
            assert codes["3"] == 0
            assert (await node.add(batch_of(7, ledger_id=ledger_id))).code == FENCED
        node.disk.faults.clear()
        await node.lose_power()
        await node.boot()
        for ledger_id, *_ in every:
            assert (await node.add(batch_of(7, ledger_id=ledger_id))).code == FENCED
        await node.stop()

    run_seed(1, scenario, deadline_seconds=3600)


@pytest.mark.parametrize("state", STATES)
def test_f03_f11_a_fence_a_deletion_and_adds_in_any_order_each_have_one_typed_outcome(state: str) -> None:
    every = list(runs(orders("add 1", "add 2", "fence", "delete", "commit"), state))
    assert len(every) == 3 * 60

    async def scenario(world: World) -> None:
        node = await booted(world, state, [ledger_id for ledger_id, *_ in every])
        for ledger_id, order, turns in every:
            run = Run(node, world, ledger_id, turns)
            await run.go(order)
            assert set(run.codes().values()) <= {0, FENCED, GONE}
            assert run.calls["fence"].result() in ("fenced", "gone")
            assert run.calls["delete"].result() is None
        node.disk.faults.clear()
        for _ in range(2):
            for ledger_id, *_ in every:
                assert (await node.add(batch_of(7, ledger_id=ledger_id))).code in (FENCED, GONE)
                assert (await node.add(batch_of(7, ledger_id=ledger_id), kind=AddKind.RECOVERY)).code == GONE
                with pytest.raises(NoSuchLedger):
                    await node.bookie.fence(ledger_id, b"")
            await node.lose_power()
            await node.boot()
        await node.stop()

    run_seed(1, scenario, deadline_seconds=3600)

"""A journal that stops without a device error, by a defect or a write that never returns: the process ends."""

import asyncio

import pytest

from tallybook.bookie.journal.group_commit import GroupCommit, OpenBlock
from tallybook.core.errors import InvariantViolation
from tallybook.runtime.process import end_on_broken_invariants
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import DiskBookie, batch_of

from ..simulated import simulated


async def started(world: World) -> DiskBookie:
    node = DiskBookie(SimDisk(world.rng), world.clock)
    await node.boot()
    await world.clock.sleep(1)
    assert (await node.add(batch_of(0))).code == 0
    return node


@pytest.mark.parametrize(("part", "method"), [(GroupCommit, "take"), (GroupCommit, "done"), (OpenBlock, "add")])
@simulated
async def test_a_defect_where_records_become_blocks_ends_the_node(world: World, *, monkeypatch, part, method) -> None:
    def planted(*_: object) -> None:
        raise MemoryError("planted")

    node = await started(world)
    monkeypatch.setattr(part, method, planted)
    answer = node.add(batch_of(1))
    assert (await asyncio.wait_for(answer, 10)).code != 0
    assert "planted" in node.failures[0]
    await node.kill()


@pytest.mark.parametrize(("seconds", "ends"), [(50, False), (600, True)])
@simulated
async def test_a_device_that_hangs_ends_the_node_after_a_minute(world: World, *, seconds: int, ends: bool) -> None:
    node = await started(world)
    node.disk.fail("write", "journal/segment", error=None, delay_seconds=seconds)
    answer = node.add(batch_of(1))
    await world.clock.sleep(80)
    assert answer.done()
    assert bool(answer.result().code) == ends
    assert bool(node.failures) == ends
    assert all("kept a record waiting" in failure for failure in node.failures)
    await node.kill()


def test_an_unhandled_invariant_violation_ends_the_process_and_another_error_does_not() -> None:
    ended: list[str] = []

    class Recorder:
        def fail_safe(self, reason: str) -> None:
            ended.append(reason)

    def raises(error: Exception) -> None:
        raise error

    async def main() -> None:
        loop = asyncio.get_running_loop()
        end_on_broken_invariants(loop, Recorder())
        loop.call_soon(raises, ValueError("somebody's mistake"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert ended == []
        loop.call_soon(raises, InvariantViolation("planted"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    [reason] = ended
    assert "planted" in reason

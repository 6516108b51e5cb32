"""A bookie that stops while errors occur: every part is closed, and the next boot has everything."""

import pytest

from tallybook.core.errors import DirectoryInUse, DiskFailed, DiskFull, InvariantViolation, RequestTimeout
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, batch_of

from ..simulated import simulated


@pytest.mark.parametrize("error", [DiskFull, DiskFailed, RequestTimeout, InvariantViolation, OSError])
@pytest.mark.parametrize("part", ["journals", "logs", "index"])
@simulated
async def test_a_part_that_cannot_be_closed_keeps_no_other_from_being_closed(world, *, monkeypatch, part, error):
    node = DiskBookie(SimDisk(world.rng), world.clock)
    await node.boot()
    assert (await node.add(batch_of(0))).code == 0
    parts = node.parts
    closed = []

    def watched(name: str) -> None:
        owner = getattr(parts, name)
        whole = owner.close

        async def close(**options: bool) -> None:
            await whole(**options)
            closed.append(name)
            if name == part:
                raise error("planted")

        # Not through the instance, which may have slots.
        monkeypatch.setattr(type(owner), "close", lambda _, **options: close(**options))

    for name in ("journals", "logs", "index"):
        watched(name)
    await node.bookie.close()
    monkeypatch.undo()
    assert closed == ["journals", "logs", "index"]
    assert bool(node.failures) == (error is not DiskFull)
    assert all(f"could not stop: {error.__name__}('planted')" in failure for failure in node.failures)
    await node.kill()
    await node.boot()
    assert (await node.bookie.read_batches(1, 0, 0, 1)).batches == (batch_of(0),)
    await node.stop()


@pytest.mark.parametrize("error", [None, DiskFull, DiskFailed, RequestTimeout, TimeoutError])
@pytest.mark.parametrize("part", ["_pump", "logs", "index"])
@simulated
async def test_the_directory_is_held_until_the_process_ends_where_a_write_may_still_be_in_flight(
    world: World, *, monkeypatch: pytest.MonkeyPatch, part: str, error: type[Exception] | None
) -> None:
    node = DiskBookie(SimDisk(world.rng), world.clock)
    await node.boot()
    assert (await node.add(batch_of(0))).code == 0
    parts = node.parts
    owner = parts.journals.each[0]._pump if part == "_pump" else getattr(parts, part)
    whole = owner.close

    async def close(_: object) -> None:
        await whole()
        if error is not None:
            raise error("planted")

    monkeypatch.setattr(type(owner), "close", close)
    await node.bookie.close()
    monkeypatch.undo()
    if error in (None, DiskFull):
        assert node.failures == []
        await (await node.disk.lock(ROOT)).release()
    else:
        assert node.failures
        with pytest.raises(DirectoryInUse):
            await node.disk.lock(ROOT)
    await node.kill()

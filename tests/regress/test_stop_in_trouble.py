"""A bookie that stops while something is wrong: every part is closed all the same, and the next boot has everything."""

import pytest

from tallybook.core.errors import DiskFailed, DiskFull, InvariantViolation, RequestTimeout
from tallybook.runtime.deterministic import SimDisk, World, run_seed
from tallybook.sim.disk_bookie import DiskBookie, batch_of


@pytest.mark.parametrize("error", [DiskFull, DiskFailed, RequestTimeout, InvariantViolation, OSError])
@pytest.mark.parametrize("part", ["journal", "logs", "index"])
def test_a_part_that_cannot_be_closed_keeps_no_other_from_being_closed(
    monkeypatch: pytest.MonkeyPatch, part: str, error: type[Exception]
) -> None:
    async def scenario(world: World) -> None:
        node = DiskBookie(SimDisk(world.rng), world.clock)
        await node.boot()
        assert (await node.add(batch_of(0))).code == 0
        parts = node.bookie._parts
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

        for name in ("journal", "logs", "index"):
            watched(name)
        await node.bookie.close()
        monkeypatch.undo()
        assert closed == ["journal", "logs", "index"]
        assert bool(node.failures) == (error is not DiskFull)
        assert all(f"could not stop: {error.__name__}('planted')" in failure for failure in node.failures)
        await node.kill()
        await node.boot()
        assert (await node.bookie.read_batches(1, 0, 0, 1)).batches == (batch_of(0),)
        await node.stop()

    run_seed(1, scenario)

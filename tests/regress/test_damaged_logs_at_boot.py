"""Boot reports damaged entry logs with file and offset, and starts anyway."""

import pytest

from tallybook.core.errors import DiskFailed
from tallybook.core.limits import BLOCK_BYTES
from tallybook.sim.deterministic import SimDisk, World, run_seed
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, batch_of

from ..support.log_lines import line_of


def said_at_boot(caplog: pytest.LogCaptureFixture, damage: str) -> list[str]:
    """The logged errors of a bookie with two finished logs and one unfinished log after ``damage``."""

    async def scenario(world: World) -> list[str]:
        node = DiskBookie(SimDisk(world.rng), world.clock)
        for number in range(3):
            await node.boot()
            assert (await node.add(batch_of(number))).code == 0
            await node.bookie.flush()
            await (node.stop() if number < 2 else node.kill())
        first = (
            f"{ROOT}/ledgers/" + sorted(name for name in await node.disk.list(f"{ROOT}/ledgers") if "log" in name)[0]
        )
        size = len(node.disk.peek(first))
        match damage:
            case "header":
                node.disk.rot.flip_bit(first, 9, 1)
            case "footer":
                node.disk.rot.flip_bit(first, size - BLOCK_BYTES + 8, 1)
            case "unreadable":
                node.disk.fail("read", first, times=3, error=DiskFailed)
        caplog.clear()
        await node.boot()
        messages = [line_of(record) for record in caplog.records if record.levelname == "ERROR"]
        assert all(first in message for message in messages)
        for number in (1, 2):
            assert (await node.bookie.read_batches(1, number, number, 1)).batches == (batch_of(number),)
        assert (await node.add(batch_of(3))).code == 0
        await node.kill()
        return messages

    return run_seed(1, scenario).value


@pytest.mark.parametrize(("damage", "place"), [("header", "offset 0"), ("footer", "offset "), ("unreadable", "")])
def test_a_damaged_entry_log_is_named_at_boot_which_goes_on(caplog, damage, place):
    [message] = said_at_boot(caplog, damage)
    assert "entry log damaged" in message
    assert place in message


def test_a_log_that_a_crash_left_unfinished_is_not_called_damaged(caplog: pytest.LogCaptureFixture) -> None:
    assert said_at_boot(caplog, "none") == []

"""Recoveries over a narrow link: answers queued behind large reads are not late."""

import pytest

from tallybook.client.connection.request_stream import MAX_DEADLINES
from tallybook.core.answers import ReadAnswer
from tallybook.core.errors import RequestTimeout
from tallybook.wire.lanes import Lane

from .test_wire_client import batch, connected


async def answered_reads(bookie, connection, count: int) -> None:
    """Recovery reads that are answered one after the other, each nearly a deadline after the one before."""
    for first in range(count):
        call = bookie.call(connection.recovery_read(1, first, b""))
        while getattr((request := await bookie.asked(Lane.CONTROL)).ask, "entry_id", None) != first:
            pass
        await bookie.world.clock.sleep(0.9 * bookie.settings.request_timeout_ms / 1000)
        await bookie.reply(Lane.CONTROL, request.request_id, ReadAnswer((batch(0),), -1))
        await call


@pytest.mark.parametrize("what", ["recovery_read", "fence", "recovery_add"])
@connected()
async def test_while_a_recovery_gets_copies_what_is_answered_behind_them_is_not_late(bookie, connection, *, what):
    reads = bookie.call(answered_reads(bookie, connection, 3))
    await bookie.world.clock.sleep(0.01)
    arguments = {"recovery_read": (1, 9, b""), "fence": (1, b""), "recovery_add": (batch(9), b"")}[what]
    behind = bookie.call(getattr(connection, what)(*arguments))
    await reads
    assert not behind.done()
    since = bookie.world.clock.monotonic()
    with pytest.raises(RequestTimeout):
        await behind
    assert bookie.world.clock.monotonic() - since <= 1.01 * bookie.settings.request_timeout_ms / 1000


@connected()
async def test_a_recovery_read_that_is_not_answered_fails_however_many_others_are(bookie, connection):
    began = bookie.world.clock.monotonic()
    never = bookie.call(connection.recovery_read(1, 99, b""))
    await bookie.asked(Lane.CONTROL)
    reads = bookie.call(answered_reads(bookie, connection, 2 * MAX_DEADLINES))
    with pytest.raises(RequestTimeout):
        await never
    took_ms = (bookie.world.clock.monotonic() - began) * 1000
    assert took_ms <= 1.01 * MAX_DEADLINES * bookie.settings.request_timeout_ms
    await reads

"""Rights on a bookie's streams: those of now, however old the stream is."""

import pytest

from tallybook.core.access import Permission, Presented, Principal
from tallybook.core.errors import AccessDenied, TallybookError
from tallybook.runtime import grpc_messages as wire
from tallybook.runtime.allowed import LOOK_SECONDS
from tallybook.runtime.transport import Lane
from tallybook.runtime.wire import frame_batch
from tallybook.sim.wire_bench import batch_of as batch
from tallybook.sim.wire_bench import bench, reason_of, reply_on


class Somebody:
    """Lets everybody in as one principal, and looks who he is now."""

    def __init__(self, *permissions: Permission) -> None:
        self.principal_now: Principal | TallybookError = Principal("somebody", frozenset(permissions))

    def principal(self, presented: Presented) -> Principal:
        if isinstance(self.principal_now, TallybookError):
            raise self.principal_now
        return self.principal_now


@pytest.mark.parametrize("lane", list(Lane), ids=[lane.value for lane in Lane])
@pytest.mark.parametrize(
    "now", [AccessDenied("not he"), Principal("somebody", frozenset(Permission), ledgers=("mine-",))]
)
@bench()
async def test_a_stream_ends_within_a_minute_of_a_change_of_the_rules_that_forbids_it(made, lane, now, caplog):
    made.service._access = somebody = Somebody(*Permission)
    stream, _ = await made.open(lane)
    await made.world.clock.sleep(3 * LOOK_SECONDS)
    assert made.service.stream_count == 1
    somebody.principal_now, changed = now, made.world.clock.monotonic()
    assert isinstance(await reason_of(stream), AccessDenied)
    assert made.world.clock.monotonic() - changed <= LOOK_SECONDS + 1
    await made.world.clock.sleep(1)
    assert made.service.stream_count == 0
    [line] = [record.tallybook_fields for record in caplog.records if record.getMessage() == "refused"]
    assert (line["method"], line["error_type"]) == (f"bookie {lane.value}", "AccessDenied")


@bench()
async def test_streams_are_served_by_the_rights_of_now(made):
    made.service._access = somebody = Somebody(Permission.READ)
    adds, _ = await made.attached()
    control, _ = await made.open(Lane.CONTROL)
    number = 0

    async def allowed() -> tuple[bool, bool]:
        nonlocal number
        number += 1
        await adds.send(frame_batch(batch(number - 1)))
        [ack] = wire.decode_acks(await adds.receive())
        await control.send(wire.encode_request(number, wire.WriteLac(1, -1, b"")))
        answer = await reply_on(control, number)
        return ack.answer.code == 0, not isinstance(answer, AccessDenied)

    assert await allowed() == (False, False)
    for permissions, expected in ((list(Permission), True), ([Permission.READ], False), (list(Permission), True)):
        somebody.principal_now = Principal("somebody", frozenset(permissions))
        await made.world.clock.sleep(LOOK_SECONDS + 1)
        assert await allowed() == (expected, expected)
    assert made.service.stream_count == 2

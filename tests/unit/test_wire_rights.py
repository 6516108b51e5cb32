"""Authorization on streams of a bookie: current permissions apply to old streams, and wrong keys are logged."""

import ast
import inspect
from typing import get_args

import pytest

from tallybook.bookie.ledgers.key_verification import LedgerFacts
from tallybook.bookie.rpc import request_stream
from tallybook.core.access import Permission, Presented, Principal
from tallybook.core.errors import AccessDenied, InvalidArgument, TallybookError, Unauthorized
from tallybook.core.keys import key_verifier
from tallybook.runtime.security.reauthorization import RECHECK_SECONDS
from tallybook.wire import inspection
from tallybook.wire import messages as wire
from tallybook.wire.batches import WRITER_RETURN_SECONDS, frame_batch
from tallybook.wire.lanes import Lane

from ..support.wire_bench import batch_of as batch
from ..support.wire_bench import bench, reason_of, reply_on

KEY, WRONG = b"k" * 16, b"w" * 16
ALL_BUT_WRITE = [permission for permission in Permission if permission is not Permission.WRITE]


class OneCaller:
    """Accepts every caller as one principal, and looks its permissions up at each check."""

    def __init__(self, *permissions: Permission) -> None:
        self.principal_now: Principal | TallybookError = Principal("caller", frozenset(permissions))

    def principal(self, presented: Presented) -> Principal:
        if isinstance(self.principal_now, TallybookError):
            raise self.principal_now
        return self.principal_now


@pytest.mark.parametrize("lane", list(Lane), ids=[lane.value for lane in Lane])
@pytest.mark.parametrize(
    "now", [AccessDenied("no access"), Principal("caller", frozenset(Permission), ledgers=("mine-",))]
)
@bench(access=lambda: OneCaller(*Permission))
async def test_a_stream_ends_within_a_minute_of_a_change_of_the_rules_that_forbids_it(made, lane, now, caplog):
    caller = made.access
    stream, _ = await made.open(lane)
    await made.world.clock.sleep(3 * RECHECK_SECONDS)
    assert made.service.stream_count == 1
    caller.principal_now, changed = now, made.world.clock.monotonic()
    assert isinstance(await reason_of(stream), AccessDenied)
    assert made.world.clock.monotonic() - changed <= RECHECK_SECONDS + 1
    await made.world.clock.sleep(1)
    assert made.service.stream_count == 0
    [line] = [record.tallybook_fields for record in caplog.records if record.getMessage() == "refused"]
    assert (line["method"], line["error_type"]) == (f"bookie {lane.value}", "AccessDenied")


@bench(access=lambda: OneCaller(*ALL_BUT_WRITE))
async def test_a_ledger_has_no_writer_in_one_that_attached_it_and_may_not_write(made):
    await made.world.clock.sleep(WRITER_RETURN_SECONDS)
    adds, _ = await made.attached()
    control, _ = await made.open(Lane.CONTROL)
    number = 0

    async def writer() -> bool | None:
        nonlocal number
        number += 1
        await made.world.clock.sleep(RECHECK_SECONDS + 1)
        await control.send(wire.encode_request(number, inspection.AskHeld(1, 0, 0)))
        return (await reply_on(control, number)).writer

    said = [await writer()]
    for permissions in (Permission, ALL_BUT_WRITE):
        made.access.principal_now = Principal("caller", frozenset(permissions))
        said.append(await writer())
    adds.abort()
    assert [*said, await writer()] == [False, True, False, False]


@bench(access=lambda: OneCaller(Permission.READ))
async def test_streams_are_served_by_the_rights_of_now(made):
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
        made.access.principal_now = Principal("caller", frozenset(permissions))
        await made.world.clock.sleep(RECHECK_SECONDS + 1)
        assert await allowed() == (expected, expected)
    assert made.service.stream_count == 2


async def facts(_ledger_id: int) -> LedgerFacts:
    return LedgerFacts(key_verifier(KEY))


@bench(facts_of=facts, access=lambda: OneCaller(*Permission))
async def test_wrong_ledger_keys_are_in_the_audit_log_once_a_minute_per_kind_of_request(made, caplog):
    adds, _ = await made.open(Lane.ADD)
    await adds.send(wire.encode_attach(wire.Attach(1, WRONG)))
    control, _ = await made.open(Lane.CONTROL)
    for number in range(1, 11):
        await adds.send(frame_batch(batch(number)))
        [ack] = wire.decode_acks(await adds.receive())
        assert ack.answer.code == Unauthorized.wire_code
        await control.send(wire.encode_request(2 * number, wire.Fence(1, WRONG)))
        assert isinstance(await reply_on(control, 2 * number), Unauthorized)
        await control.send(wire.encode_request(2 * number + 1, wire.RecoveryAdd(WRONG, batch(number))))
        assert isinstance(await reply_on(control, 2 * number + 1), Unauthorized)
    told = [record.tallybook_fields for record in caplog.records if record.getMessage() == "refused"]
    assert {(line["method"], line["principal"], line["error_type"]) for line in told} == {
        (f"bookie {what}", "caller", "Unauthorized") for what in ("add", "Fence", "RecoveryAdd")
    }
    assert len(told) == 3


async def facts_are_denied(_ledger_id: int) -> LedgerFacts:
    raise AccessDenied("the metadata are another user's")


@bench(access=lambda: OneCaller(*Permission))
async def test_what_is_no_guess_of_a_key_is_no_refusal_of_the_client(made, caplog):
    control, _ = await made.open(Lane.CONTROL)
    await control.send(wire.encode_request(1, inspection.EndLimbo(1)))
    assert isinstance(await reply_on(control, 1), Unauthorized)
    assert not [record for record in caplog.records if record.getMessage() == "refused"]


@bench(facts_of=facts_are_denied, access=lambda: OneCaller(*Permission))
async def test_what_is_denied_to_the_bookie_itself_is_no_refusal_of_the_client(made, caplog):
    control, _ = await made.open(Lane.CONTROL)
    await control.send(wire.encode_request(1, wire.Fence(1, KEY)))
    assert isinstance(await reply_on(control, 1), AccessDenied)
    assert not [record for record in caplog.records if record.getMessage() == "refused"]


async def asked(made, number: int, control, permission: str, command: str = "bookie drain", arguments: str = "b3"):
    await control.send(wire.encode_request(number, inspection.Authorize(permission, command, arguments)))
    return await reply_on(control, number)


@bench(access=lambda: OneCaller(Permission.READ, Permission.WRITE))
async def test_a_command_is_allowed_by_the_permission_that_it_needs_and_noted(made, caplog):
    caplog.set_level("INFO", "tallybook.audit")
    control, _ = await made.open(Lane.CONTROL)
    assert await asked(made, 1, control, "write", "ledger rm", "7") is None
    assert isinstance(await asked(made, 2, control, "administer"), AccessDenied)
    made.access.principal_now = Principal("caller", frozenset({Permission.READ, Permission.ADMINISTER}))
    await made.world.clock.sleep(RECHECK_SECONDS + 1)
    assert isinstance(await asked(made, 3, control, "write"), AccessDenied)
    assert await asked(made, 4, control, "administer") is None
    lines = [record.tallybook_fields for record in caplog.records if record.getMessage() == "command"]
    assert [(line["principal"], line["command"], line["arguments"]) for line in lines] == [
        ("caller", "ledger rm", "7"),
        ("caller", "bookie drain", "b3"),
    ]
    [refusal, *_] = [record.tallybook_fields for record in caplog.records if record.getMessage() == "refused"]
    assert refusal["method"] == "bookie Authorize"


@pytest.mark.parametrize(
    ("permission", "command", "arguments"),
    [("", "c", ""), ("read", "c", ""), ("everything", "c", ""), ("write", "c" * 101, ""), ("write", "c", "a" * 1001)],
)
@bench()
async def test_a_permission_that_is_none_or_a_command_that_is_too_long_is_the_callers_fault(
    made, permission, command, arguments, caplog
):
    caplog.set_level("INFO", "tallybook.audit")
    control, _ = await made.open(Lane.CONTROL)
    assert isinstance(await asked(made, 1, control, permission, command, arguments), InvalidArgument)
    assert not [record for record in caplog.records if record.getMessage() == "command"]


def test_every_kind_of_request_has_a_permission_a_lane_and_a_handler() -> None:
    kinds = {kind.__name__ for kind in get_args(wire.Ask)}
    tables = {
        node.target.attr if isinstance(node.target, ast.Attribute) else node.target.id: node.value
        for node in ast.walk(ast.parse(inspect.getsource(request_stream)))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute | ast.Name)
    }
    for table in ("_PERMISSIONS", "_serve_kind"):
        assert {key.attr for key in tables[table].keys} == kinds, table
    on_lanes = {kind.__name__ for lane in request_stream._ON_LANE.values() for kind in lane}
    assert on_lanes == kinds

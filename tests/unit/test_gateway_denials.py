"""Denials in a gateway: who is told, and whether the client or the gateway is at fault."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.rpc.code_pb2 import PERMISSION_DENIED, UNAVAILABLE
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from tallybook.core.access import NOTHING, Permission, Presented, Principal
from tallybook.core.errors import AccessDenied, Outcome, TallybookError, Unauthenticated
from tallybook.core.settings import GatewaySettings
from tallybook.gateway.auth import AuthorizedCall, Authorizer
from tallybook.gateway.interceptor import intercepted
from tallybook.gateway.limits import GatewayLimits
from tallybook.gateway.metrics import GatewayCounters
from tallybook.runtime.calls import CallFailed
from tallybook.runtime.clock import RealClock
from tallybook.runtime.security.denial_log import DenialLog

from ..support.log_lines import line_of

METHOD = "LedgerService/Delete"
DENIED = AccessDenied("zookeeper:2281: this user may not access these nodes")
READER = Principal("readers", frozenset({Permission.READ})).with_identity("tallybook://reader/x")
WRITER = Principal("writers", frozenset({Permission.READ, Permission.WRITE}), ledgers=("orders-",)).with_identity(
    "tallybook://writer/x"
)


class Rules:
    """All callers are one and the same."""

    def __init__(self, principal: Principal) -> None:
        self._principal = principal

    def principal(self, presented: Presented) -> Principal:
        return self._principal


class Metadata:
    """A client whose calls all fail with an error."""

    def __init__(self, error: TallybookError) -> None:
        self._error = error

    async def ledger_metadata(self, ledger_id: int) -> Any:
        raise self._error


class Called:
    """A call that says nothing."""

    peer = "ipv4:10.0.0.9:5"
    presented = NOTHING


async def failed(
    principal: Principal, error: TallybookError, serve: Callable[[Authorizer, AuthorizedCall], Awaitable[None]]
) -> Any:
    """The status and the reason that a call ends with, where the metadata refuse the gateway."""
    access, clock = Rules(principal), RealClock()
    authorizer = Authorizer(access, Metadata(error), DenialLog(clock, access))  # type: ignore[arg-type]

    async def handler(call: AuthorizedCall) -> None:
        await serve(authorizer, call)

    limits = GatewayLimits(GatewaySettings(metadata="memory:"))
    call: Any = Called()
    with pytest.raises(CallFailed) as caught:
        await intercepted(METHOD, handler, GatewayCounters(), clock, authorizer, limits)(call)
    status, info = Status.FromString(caught.value.details), ErrorInfo()
    assert status.details[0].Unpack(info)
    return caught.value.code, info.reason, caught.value.message


def lines(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    return [line_of(record) for record in caplog.records if record.name == name]


async def of_a_ledger(authorizer: Authorizer, call: AuthorizedCall) -> None:
    await authorizer.check_ledger(call.caller, Permission.WRITE, 7)


async def of_a_stream(authorizer: Authorizer, call: AuthorizedCall) -> None:
    authorizer.check_stream(call.caller, Permission.WRITE, "", "payments")


async def never(_authorizer: Authorizer, _call: AuthorizedCall) -> None:
    pytest.fail("it was let in")


@pytest.mark.parametrize("error", [DENIED, Unauthenticated("zookeeper:2281 refuses the user or the password")])
async def test_what_is_denied_to_the_gateway_is_no_client_s_fault(error: TallybookError, caplog):
    caplog.set_level(logging.INFO)
    code, reason, message = await failed(WRITER, error, of_a_ledger)
    assert (code, reason) == (UNAVAILABLE, "PeerError")
    assert message == f"this gateway was denied what it needs for the call: {error.message}"
    assert lines(caplog, "tallybook.audit") == []
    [line] = lines(caplog, "tallybook.gateway")
    assert f"error_type={type(error).__name__}" in line
    assert "principal=writers" in line
    assert "ledger_id=7" in line


@pytest.mark.parametrize(("principal", "serve"), [(READER, never), (WRITER, of_a_stream)], ids=["at once", "later"])
async def test_a_denial_is_reported_to_the_client_and_in_the_audit_log(principal, serve, caplog):
    caplog.set_level(logging.INFO)
    code, reason, _ = await failed(principal, DENIED, serve)
    assert (code, reason) == (PERMISSION_DENIED, "AccessDenied")
    [line] = lines(caplog, "tallybook.audit")
    assert line.startswith(f"refused principal={principal.name} ")
    assert lines(caplog, "tallybook.gateway") == []


async def test_a_call_that_is_looked_at_again_is_not_blamed_either(caplog):
    async def again(authorizer: Authorizer, call: AuthorizedCall) -> None:
        async def check(principal: Principal) -> None:
            raise DENIED

        call.caller.checks.append(check)
        await authorizer.reauthorize(METHOD, call, call.caller)

    caplog.set_level(logging.INFO)
    code, reason, _ = await failed(WRITER, DENIED, again)
    assert (code, reason) == (UNAVAILABLE, "PeerError")
    assert lines(caplog, "tallybook.audit") == []


async def test_a_cancelled_caller_is_logged_under_the_name_of_its_admission(caplog):
    async def cut_off(authorizer: Authorizer, call: AuthorizedCall) -> None:
        with call.caller.recording_denials():
            raise Unauthenticated("the token has expired", outcome=Outcome.UNKNOWN)

    caplog.set_level(logging.INFO)
    await failed(WRITER, DENIED, cut_off)
    [line] = lines(caplog, "tallybook.audit")
    assert line.startswith("refused principal=writers identity=tallybook://writer/x ")

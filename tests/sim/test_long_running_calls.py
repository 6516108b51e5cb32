"""Long-running gateway calls are re-authorized: tokens expire, and keys and rules change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.rpc import code_pb2

from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.core.access import LEDGER_NAME, UNRESTRICTED, Permission, Presented, Principal
from tallybook.core.errors import AccessDenied, Unauthenticated
from tallybook.core.settings import GatewaySettings
from tallybook.gateway.auth import Authorizer
from tallybook.gateway.context import GatewayContext
from tallybook.gateway.ledgers.service import LedgerService
from tallybook.gateway.limits import GatewayLimits
from tallybook.gateway.metrics import GatewayCounters
from tallybook.proto import ledger_pb2, stream_pb2
from tallybook.runtime.clock import Clock
from tallybook.runtime.security.denial_log import DenialLog
from tallybook.runtime.security.reauthorization import RECHECK_SECONDS

from ..simulated import scenario
from ..support.cancellation import each_cut
from ..support.gateway_calls import FakeCall
from ..support.gateways import AppendCall, gateways, opening, records, refusal
from ..support.ledger_scenario import SMALL, eventually
from ..support.memory_cluster import MemoryCluster

EVERYTHING = frozenset(Permission)


class Rules:
    """Accepts the name of a principal as token; without one, every caller. Both may change at any time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.known: dict[str, Principal] = {}
        self.until_us: dict[str, int] = {}
        self.asked = 0

    def admit(self, name: str, for_s: float | None = None, **limits: Any) -> Presented:
        """Admit a principal; return its token."""
        self.known[name] = Principal(name, limits.pop("permissions", EVERYTHING), **limits)
        if for_s is not None:
            self.until_us[name] = self._clock.wall_us() + round(for_s * 1e6)
        return Presented(authorization=(name,))

    def principal(self, presented: Presented) -> Principal:
        if not presented.authorization:
            return UNRESTRICTED
        self.asked += 1
        [name] = presented.authorization
        until_us = self.until_us.get(name)
        if until_us is not None and until_us <= self._clock.wall_us():
            raise Unauthenticated("the token has expired")
        if name not in self.known:
            raise AccessDenied(f"no principal is called {name}")
        return self.known[name].with_identity(name, until_us)


def reading(presented: Presented, **request: Any) -> FakeCall[stream_pb2.ReadStreamReply]:
    """A client that follows a stream."""
    call = FakeCall(stream_pb2.ReadStreamReply, presented=presented)
    call.say(stream_pb2.ReadStreamRequest(**{"name": "s", "follow": True, **request}))
    return call


def subscribing(presented: Presented) -> FakeCall[stream_pb2.SubscribeReply]:
    """A client that reads by a subscription."""
    call = FakeCall(stream_pb2.SubscribeReply, presented=presented)
    call.say(stream_pb2.SubscribeRequest(open=stream_pb2.SubscribeOpen(name="s", subscription="x")))
    return call


def appending(presented: Presented) -> AppendCall:
    """A client that appends and has not closed."""
    call = AppendCall(opening(), records([b"one", b"two"]))
    call.presented = presented
    return call


CALLS = {"Read": reading, "Subscribe": subscribing, "Append": appending}


@pytest.mark.parametrize("method", CALLS)
@scenario()
async def test_a_call_ends_when_its_token_does_and_comes_again_with_a_new_one(
    cluster: MemoryCluster, client: Client, *, method: str
) -> None:
    clock = cluster.world.clock
    rules = Rules(clock)
    async with gateways(cluster, access=rules, writer_idle_ms=10) as [gateway]:
        began = clock.monotonic()
        call = CALLS[method](rules.admit("app", 90.0))
        serving = gateway.call(method, call)
        await clock.sleep(89.0)
        assert not serving.done()
        if isinstance(call, AppendCall):
            assert call.acked() == 2
        code, reason, particulars = await refusal(serving)
        assert (code, reason) == (code_pb2.UNAUTHENTICATED, "Unauthenticated")
        assert particulars["outcome"] == "unknown"
        assert clock.monotonic() - began == pytest.approx(90.0, abs=0.5)
        await eventually(gateway.idle, cluster)
        assert (await refusal(gateway.call(method, CALLS[method](Presented(authorization=("app",))))))[0] == code
        again = gateway.call(method, CALLS[method](rules.admit("app", 1_000.0)))
        await clock.sleep(2 * RECHECK_SECONDS)
        assert not again.done()
        assert await gateway.payloads() == [b"one", b"two"] * (2 if method == "Append" else 0)
        assert gateway.counts.methods[f"StreamService/{method}"].cancelled == 0


@pytest.mark.parametrize("method", CALLS)
def test_a_call_ends_within_a_minute_of_a_change_of_the_rules_that_forbids_it(method: str, caplog: Any) -> None:
    @scenario(deadline_seconds=2_000)
    async def play(cluster: MemoryCluster, client: Client) -> None:
        clock = cluster.world.clock
        rules = Rules(clock)
        async with gateways(cluster, access=rules, writer_idle_ms=10) as [gateway]:
            others = gateway.call("Read", reading(rules.admit("other", streams=("s",))))
            for change in (
                lambda: rules.known.pop("app"),
                lambda: rules.admit("app", permissions=frozenset()),
                lambda: rules.admit("app", streams=("t",)),
                lambda: rules.admit("app", namespaces=("s",)),
            ):
                serving = gateway.call(method, CALLS[method](rules.admit("app")))
                await clock.sleep(1.5 * RECHECK_SECONDS)
                # It has the permissions that it needs, under any name.
                rules.admit("app", streams=("s",))
                await clock.sleep(RECHECK_SECONDS)
                assert not serving.done()
                change()
                changed = clock.monotonic()
                code, reason, _ = await refusal(serving)
                assert (code, reason) == (code_pb2.PERMISSION_DENIED, "AccessDenied")
                assert clock.monotonic() - changed <= RECHECK_SECONDS + 0.5
                await eventually(lambda: gateway.number("streams") == 1, cluster)
            assert not others.done()

    play()
    told = [record.tallybook_fields for record in caplog.records if record.getMessage() == "refused"]
    assert told
    assert {line["method"] for line in told} == {f"StreamService/{method}"}
    assert all(line["error"].startswith("the call was ended: ") for line in told)


@scenario()
async def test_nothing_is_asked_of_the_rules_for_messages(cluster: MemoryCluster, client: Client) -> None:
    clock = cluster.world.clock
    rules = Rules(clock)
    async with gateways(cluster, access=rules, writer_idle_ms=10) as [gateway]:
        call = appending(rules.admit("app"))
        serving = gateway.call("Append", call)
        for number in range(100):
            call.say(records([b"%d" % number]))
            await clock.sleep(0.3)
        assert (call.acked(), rules.asked) == (102, 1)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@scenario()
async def test_a_call_that_is_looked_at_and_cancelled_at_any_of_its_awaits_holds_nothing(
    cluster: MemoryCluster, client: Client
) -> None:
    rules = Rules(cluster.world.clock)
    async with gateways(cluster, access=rules, writer_idle_ms=10) as [gateway]:
        shown = rules.admit("app", 10_000.0)
        await gateway.call("Append", closing(appending(shown)))
        for begin in (
            lambda: gateway.service.handlers()["Read"](reading(shown, follow=False)),
            lambda: gateway.service.handlers()["Append"](closing(appending(shown))),
        ):
            cuts = [at async for at in each_cut(begin)]
            assert len(cuts) >= 3
            await eventually(gateway.idle, cluster)


def closing(call: AppendCall) -> AppendCall:
    call.say(stream_pb2.StreamAppendRequest(close=stream_pb2.StreamAppendClose()))
    return call


# --- ledgers ----------------------------------------------------------------------------------------------------------


@scenario()
async def test_a_tail_continues_under_its_own_principal_and_under_no_other(
    cluster: MemoryCluster, client: Client
) -> None:
    clock = cluster.world.clock
    rules, tasks, calls = Rules(clock), client_tasks("gateway"), client_tasks("calls")
    settings = GatewaySettings(metadata="memory:", client=SMALL.model_dump())
    authorizer = Authorizer(rules, client, DenialLog(clock, rules))
    service = LedgerService(
        GatewayContext(client, settings, GatewayLimits(settings), GatewayCounters(), clock, tasks, authorizer)
    )
    ledger = await client.create_ledger(custom={LEDGER_NAME: b"orders-1"})

    def tail(presented: Presented) -> asyncio.Task[None]:
        call = FakeCall(ledger_pb2.Entries, presented=presented)
        call.say(ledger_pb2.TailRequest(ledger_id=ledger.id))

        async def serve() -> None:
            await service.handlers()["Tail"](call)

        return calls.spawn(serve(), name="tail")

    kept = tail(rules.admit("kept"))
    lost = tail(rules.admit("lost"))
    await clock.sleep(1)
    rules.admit("kept", ledgers=("orders-",))
    rules.admit("lost", ledgers=("payments-",))
    code, reason, _ = await refusal(lost)
    assert (code, reason) == (code_pb2.PERMISSION_DENIED, "AccessDenied")
    await clock.sleep(2 * RECHECK_SECONDS)
    assert not kept.done()
    await calls.close()
    await tasks.close()
    await ledger.close()

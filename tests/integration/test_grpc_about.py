"""Health and reflection of gRPC ports: Check without authentication, long-running calls only for authorized callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from tallybook.core.access import Role
from tallybook.runtime.calls import Call
from tallybook.runtime.grpc import health_and_reflection as grpc_about
from tallybook.runtime.grpc.call_server import CallListener, bound_calls
from tallybook.runtime.grpc.load import GRPC_METRICS, GrpcLoad
from tallybook.runtime.security import reauthorization as allowed
from tallybook.runtime.security.authority import Authority, Subject
from tallybook.runtime.security.process_security import open_security
from tallybook.wire.bookie_transport import SERVICE as BOOKIE_SERVICE
from tallybook.wire.bookie_transport import bookie_transport

from .grpc_codes import DEADLINE_SECONDS, DENIED, EXHAUSTED, LATE, NOT_KNOWN

SOON_SECONDS = 3
MAX_CALLS, WATCHES, MOMENTS = 24, 3, 3
BOOKIE_STREAMS = 11
"""A stream limit with which the port of a bookie permits MAX_CALLS calls."""
SERVICE = "tallybook.api.v1.LedgerService"
HEALTH = "grpc.health.v1.Health"
STATUS = health_pb2.HealthCheckResponse
MORE_QUESTIONS = 3_000
"""Requests whose answers exceed the flow-control window of a client that reads none of them."""
QUESTION = reflection_pb2.ServerReflectionRequest(list_services="")

RULES = """
[[principal]]
name = "readers"
roles = ["reader"]
certificates = ["tallybook://reader/*"]
tokens = ["app"]

[[principal]]
name = "few"
roles = ["reader"]
certificates = ["tallybook://admin/*"]
max_requests = 2
"""


async def answer(call: Call) -> None:
    """The one call of the service."""
    await call.send(b"done")


async def never(_lane: Any, stream: Any) -> None:
    pytest.fail(f"{stream.peer} came through")


class Port:
    """A port, and its clients."""

    def __init__(self, place: Path, authority: Authority, security: Any, listener: Any, load: GrpcLoad) -> None:
        self.load = load
        self._security = security
        self.listener = listener
        self._place = place
        self._authority = authority

    def by_certificate(self, role: Role) -> grpc.aio.Channel:
        made = self._place / role.value
        if not made.exists():
            self._authority.issue(made, Subject(role, "somebody"), days=1)
        files = (made / "ca.crt", made / "tls.key", made / "tls.crt")
        credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
        return grpc.aio.secure_channel(self.listener.address, credentials)

    def forbid(self, certificates: str) -> None:
        """Stop accepting clients with such certificates."""
        rules = self._place / "server/access.toml"
        rules.write_text(rules.read_text().replace(certificates, "tallybook://writer/nobody"))
        self._security.refresh()

    def without(self) -> grpc.aio.Channel:
        trusted = (self._place / "authority/ca.crt").read_bytes()
        return grpc.aio.secure_channel(self.listener.token_address, grpc.ssl_channel_credentials(trusted))

    def token(self, subject: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self._authority.token(subject, lifetime=timedelta(hours=1))}"),)


@pytest.fixture
def served(authority: Authority, tmp_path: Path):
    """``async with served() as port``: one of calls, or a bookie's."""

    @asynccontextmanager
    async def opened(*, bookie: bool = False) -> AsyncIterator[Port]:
        (tmp_path / "authority/access.toml").write_text(RULES)
        authority.issue(tmp_path / "server", Subject(Role.BOOKIE, "server", ("127.0.0.1",)), days=1)
        security, load = open_security(str(tmp_path / "server"), serves=True), GrpcLoad()
        async with asyncio.timeout(DEADLINE_SECONDS):
            if bookie:
                transport = bookie_transport(
                    max_streams=BOOKIE_STREAMS, max_connections=MAX_CALLS, security=security, load=load
                )
                listener: Any = await transport.listen("127.0.0.1:0", never)
            else:
                listener = bound_calls(
                    "127.0.0.1:0", max_calls=MAX_CALLS, max_connections=MAX_CALLS, max_connection_calls=MAX_CALLS,
                    security=security, token_address="127.0.0.1:0", load=load,
                )  # fmt: skip
                await listener.serve({SERVICE: {"Describe": answer}})
            try:
                yield Port(tmp_path, authority, security, listener, load)
            finally:
                await listener.close(0)

    return opened


def watched(channel: grpc.aio.Channel, metadata: Any = (), service: str = "") -> Any:
    return health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service), metadata=metadata)


def asked(channel: grpc.aio.Channel, metadata: Any = ()) -> Any:
    return reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([QUESTION]), metadata=metadata)


def asking(channel: grpc.aio.Channel, metadata: Any = ()) -> Any:
    """Expect a refusal before the first request: for a request that comes too late gRPC may report INTERNAL instead."""
    return reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(metadata=metadata)


async def health(channel: grpc.aio.Channel, service: str = "") -> int:
    answered = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return answered.status


async def begun(channel: grpc.aio.Channel, method: str) -> Any:
    """A call that says nothing, and that the server may have ended already."""
    call: Any = channel.stream_stream(f"/{HEALTH}/{method}")()
    with suppress(grpc.aio.AioRpcError):
        # Raised if the denial arrives before this task continues; a read of the call raises it, too.
        await call.wait_for_connection()
    return call


async def refusal(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    return caught.value.code()


async def first(watch: Any) -> Any:
    """The first answer of a watch: the status, or the code of the error."""
    try:
        return (await watch.read()).status
    except grpc.aio.AioRpcError as error:
        return error.code()


async def keep_all(call: Any, kept: list[Any]) -> None:
    """Read to the end of a call."""
    while (answer := await call.read()) is not grpc.aio.EOF:
        kept.append(answer)


async def until_idle(load: GrpcLoad, calls: int) -> None:
    """Wait until no more calls are in flight: a client sees the end of a call before the server is done with it."""
    while GRPC_METRICS.readings(load)["calls"] != calls:  # noqa: ASYNC110 (the port sets no event)
        await asyncio.sleep(0.01)


async def until_one_more_is_let_in(channel: grpc.aio.Channel) -> None:
    """Wait until a call can be accepted again."""
    again: Any = EXHAUSTED
    for _ in range(100):
        again = await first(watched(channel))
        if again is not EXHAUSTED:
            break
        await asyncio.sleep(0.05)
    assert again == STATUS.SERVING


async def test_unauthenticated_callers_get_the_current_status_but_no_watch_and_no_reflection(served):
    async with served() as port, port.without() as channel:
        assert await health(channel) == STATUS.SERVING
        for metadata in ((), (("authorization", "Bearer x"),)):
            assert await refusal(watched(channel, metadata)) is NOT_KNOWN
            assert await refusal(asking(channel, metadata)) is NOT_KNOWN
        assert await refusal(watched(channel, port.token("stranger"))) is DENIED


@pytest.mark.parametrize("bookie", [False, True])
async def test_a_refused_caller_is_in_the_audit_log(served, bookie, caplog):
    async with served(bookie=bookie) as port, port.by_certificate(Role.WRITER) as channel:
        for _ in range(3):
            assert await refusal(watched(channel)) is DENIED
            assert await refusal(asking(channel)) is DENIED
    told = [record.tallybook_fields for record in caplog.records if record.name == "tallybook.audit"]
    assert [(line["method"], line["identity"]) for line in told] == [
        ("Health/Watch", "tallybook://writer/somebody"),
        ("ServerReflection", "tallybook://writer/somebody"),
    ]
    assert all(line["peer"].startswith("ipv4:127.0.0.1:") for line in told)


@pytest.mark.parametrize("bookie", [False, True])
async def test_a_caller_that_sends_no_request_leaves_the_calls_to_others(served, bookie):
    async with served(bookie=bookie) as port, port.by_certificate(Role.WRITER) as channel:
        others = port.by_certificate(Role.READER)
        held = [await begun(channel, method) for method in ("Check", "Watch") * MAX_CALLS]
        async with asyncio.timeout(SOON_SECONDS):
            # Wait for all: calls still on their way could arrive between the call and the message of a probe.
            await until_idle(port.load, MOMENTS)
            assert await health(others) == STATUS.SERVING
            assert (await watched(others).read()).status == STATUS.SERVING
            if not bookie:
                assert await others.unary_unary(f"/{SERVICE}/Describe")(b"") == b"done"
        waiting = [call for call in held if not call.done()]
        assert 0 < len(waiting) <= MOMENTS
        await others.close()


async def test_a_call_whose_request_does_not_arrive_in_time_ends(served, monkeypatch):
    monkeypatch.setattr(grpc_about, "MOMENT_SECONDS", 0.2)
    async with served() as port, port.without() as channel, port.by_certificate(Role.READER) as reader:
        assert await refusal(await begun(channel, "Check")) is LATE
        assert await refusal(await begun(reader, "Watch")) is LATE


async def test_what_is_no_question_has_no_answer(served):
    async with served() as port, port.by_certificate(Role.READER) as channel:
        for method in ("Check", "Watch"):
            for messages in ([], [b"\xff"]):
                call = channel.stream_stream(f"/{HEALTH}/{method}")(iter(messages))
                assert await refusal(call) is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("bookie", [False, True])
async def test_a_certificate_without_a_rule_gets_the_current_status_and_no_watch(served, bookie):
    async with served(bookie=bookie) as port, port.by_certificate(Role.WRITER) as channel:
        assert await health(channel) == STATUS.SERVING
        assert await refusal(watched(channel)) is DENIED
        assert await refusal(asking(channel)) is DENIED


@pytest.mark.parametrize("bookie", [False, True])
async def test_an_authorized_caller_watches_health_and_uses_reflection(served, bookie):
    async with served(bookie=bookie) as port, port.by_certificate(Role.READER) as channel:
        watch = watched(channel)
        assert (await watch.read()).status == STATUS.SERVING
        services = {each.name for each in (await asked(channel).read()).list_services_response.service}
        assert {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} < services
        for service in services - {"grpc.reflection.v1alpha.ServerReflection"}:
            assert await health(channel, service) == STATUS.SERVING


async def test_a_token_is_enough(served):
    async with served() as port, port.without() as channel:
        assert (await watched(channel, port.token("app")).read()).status == STATUS.SERVING
        assert await asked(channel, port.token("app")).read()


async def test_authenticated_callers_hold_a_part_of_the_calls_and_free_them(served):
    async with served() as port, port.by_certificate(Role.READER) as channel, port.without() as others:
        held = [watched(channel) for _ in range(WATCHES)]
        assert [(await watch.read()).status for watch in held] == [STATUS.SERVING] * WATCHES
        assert await refusal(watched(channel)) is EXHAUSTED
        assert await refusal(asking(channel)) is EXHAUSTED
        assert await health(others) == STATUS.SERVING
        assert await channel.unary_unary(f"/{SERVICE}/Describe")(b"") == b"done"
        for watch in held:
            watch.cancel()
        await until_one_more_is_let_in(channel)


@pytest.mark.parametrize("bookie", [False, True])
async def test_calls_about_a_port_and_the_connections_that_have_any_are_counted(served, bookie):
    async with served(bookie=bookie) as port, port.by_certificate(Role.READER) as channel:
        bounds = {"max_connections": MAX_CALLS, "max_calls": MAX_CALLS, "about_max_calls": WATCHES}
        assert {name: GRPC_METRICS.readings(port.load)[name] for name in bounds} == bounds
        held = [watched(channel) for _ in range(WATCHES)]
        assert [(await watch.read()).status for watch in held] == [STATUS.SERVING] * WATCHES
        for _ in range(2):
            assert await refusal(watched(channel)) is EXHAUSTED
        async with port.by_certificate(Role.WRITER) as stranger:
            assert await refusal(asking(stranger)) is DENIED
            assert await health(stranger) == STATUS.SERVING
        await until_idle(port.load, WATCHES)
        told = GRPC_METRICS.readings(port.load)
        assert (told["connections"], told["about_under_way_Health/Watch"]) == (1, WATCHES)
        assert (told["about_Health/Watch"], told["about_Health/Check"], told["about_ServerReflection"]) == (5, 1, 1)
        assert (told["about_failed_RESOURCE_EXHAUSTED"], told["about_failed_PERMISSION_DENIED"]) == (2, 1)
        for watch in held:
            watch.cancel()
        await until_idle(port.load, 0)
        told = GRPC_METRICS.readings(port.load)
        assert told["connections"] == told["about_under_way_Health/Watch"] == 0


@pytest.mark.parametrize("bookie", [False, True])
async def test_a_principal_with_a_limit_leaves_calls_to_others(served, bookie):
    async with (
        served(bookie=bookie) as port,
        port.by_certificate(Role.ADMIN) as bounded,
        port.by_certificate(Role.READER) as others,
    ):
        held = [watched(bounded) for _ in range(2)]
        assert [(await watch.read()).status for watch in held] == [STATUS.SERVING] * 2
        assert await refusal(watched(bounded)) is EXHAUSTED
        assert await refusal(asking(bounded)) is EXHAUSTED
        assert await health(bounded) == STATUS.SERVING
        assert (await watched(others).read()).status == STATUS.SERVING
        held[0].cancel()
        await until_one_more_is_let_in(bounded)


@pytest.mark.parametrize("bookie", [False, True], ids=["calls", "bookie"])
async def test_a_caller_that_is_no_longer_authorized_is_cut_off(served, bookie, monkeypatch):
    monkeypatch.setattr(allowed, "RECHECK_SECONDS", 0.1)
    async with served(bookie=bookie) as port, port.by_certificate(Role.READER) as channel:
        watch = watched(channel)
        assert (await watch.read()).status == STATUS.SERVING
        descriptions: Any = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await descriptions.write(QUESTION)
        assert (await descriptions.read()).list_services_response.service
        port.forbid("tallybook://reader/*")
        assert await refusal(watch) == DENIED
        assert await refusal(descriptions) == DENIED


async def test_a_reflection_call_without_further_requests_is_ended(served, monkeypatch):
    monkeypatch.setattr(grpc_about, "QUESTION_SECONDS", 0.2)
    async with served() as port, port.by_certificate(Role.READER) as channel:
        descriptions: Any = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await descriptions.write(QUESTION)
        assert (await descriptions.read()).list_services_response.service
        assert await refusal(descriptions) == LATE


@pytest.mark.parametrize("bookie", [False, True], ids=["calls", "bookie"])
async def test_a_reflection_call_that_reads_no_answers_is_ended(served, bookie, monkeypatch):
    monkeypatch.setattr(grpc_about, "MOMENT_SECONDS", 0.2)
    async with served(bookie=bookie) as port, port.by_certificate(Role.ADMIN) as bounded:
        flood: Any = reflection_pb2_grpc.ServerReflectionStub(bounded).ServerReflectionInfo()
        held = watched(bounded)
        assert (await held.read()).status == STATUS.SERVING
        for _ in range(MORE_QUESTIONS):
            await flood.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=BOOKIE_SERVICE))
        await until_one_more_is_let_in(bounded)
        # What was on its way comes first; the end is behind it.
        answers: list[Any] = []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await keep_all(flood, answers)
        assert caught.value.code() is LATE
        assert 0 < len(answers) < MORE_QUESTIONS


async def test_what_is_no_question_about_descriptions_has_no_answer(served):
    async with served() as port, port.by_certificate(Role.READER) as channel:
        call: Any = channel.stream_stream(f"/{reflection.SERVICE_NAME}/ServerReflectionInfo")()
        await call.write(b"\xff")
        assert await refusal(call) is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_watch_reports_that_the_port_is_about_to_stop(served):
    async with served() as port, port.by_certificate(Role.READER) as channel:
        assert isinstance(port.listener, CallListener)
        watch, unknown = watched(channel, service=SERVICE), watched(channel, service="nothing")
        assert (await watch.read()).status == STATUS.SERVING
        assert (await unknown.read()).status == STATUS.SERVICE_UNKNOWN
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health(channel, "nothing")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        port.listener.retire()
        assert (await watch.read()).status == STATUS.NOT_SERVING
        assert await health(channel) == STATUS.NOT_SERVING

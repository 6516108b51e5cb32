"""Errors of a gateway: a gRPC status for each class, with details that gRPC libraries decode."""

from base64 import b64encode
from urllib.parse import quote

import pytest
from google.rpc import code_pb2
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from tallybook.core.access import OpenAccess
from tallybook.core.errors import (
    Busy,
    CreditExceeded,
    EntryTooLarge,
    NoSuchLedger,
    Outcome,
    PositionMismatch,
    ReaderTooSlow,
    RequestTimeout,
    StreamGap,
    StreamOwned,
)
from tallybook.core.settings import GatewaySettings
from tallybook.gateway.auth import Authorizer
from tallybook.gateway.errors import MAX_MESSAGE_BYTES, STATUS_CODES, status_of
from tallybook.gateway.interceptor import intercepted
from tallybook.gateway.limits import GatewayLimits
from tallybook.gateway.metrics import GatewayCounters
from tallybook.runtime.calls import CallFailed
from tallybook.runtime.clock import RealClock
from tallybook.runtime.security.denial_log import DenialLog
from tallybook.stream import Gap, GapReason

from ..support.gateway_calls import FakeCall
from .test_errors import CLASSES


def details(error):
    """The status that a client decodes, its ErrorInfo, and its RetryInfo if there is one."""
    failed = status_of(error)
    status = Status.FromString(failed.details)
    assert (status.code, status.message) == (failed.code, failed.message)
    info, retry = ErrorInfo(), RetryInfo()
    assert status.details[0].Unpack(info)
    return status, info, retry if len(status.details) > 1 and status.details[1].Unpack(retry) else None


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_stands_in_the_table_and_is_reported_with_what_a_client_needs_to_decide(error):
    assert set(STATUS_CODES) == set(CLASSES), "say in gateway/errors.py what each class is to clients"
    status, info, _ = details(error("ledger 7 is there"))
    assert status.code == STATUS_CODES[error] != code_pb2.OK
    assert status.message == "ledger 7 is there"
    assert (info.reason, info.domain) == (error.__name__, "tallybook")
    assert dict(info.metadata) == {
        "fault": error.fault.value,
        "outcome": error.outcome.value,
        "retriable": "true" if error.retriable else "false",
        "wire_code": str(error.wire_code),
    } | ({"position": ""} if error is PositionMismatch else {})


def test_no_retriable_error_has_a_code_that_means_the_opposite():
    final = {code_pb2.INVALID_ARGUMENT, code_pb2.NOT_FOUND, code_pb2.ALREADY_EXISTS, code_pb2.PERMISSION_DENIED}
    assert not [error.__name__ for error, code in STATUS_CODES.items() if code in final and error.retriable]


def test_a_foreign_class_is_reported_as_its_base_class():
    class Special(EntryTooLarge):
        wire_code = 999_999

    status, info, _ = details(Special("too much"))
    assert status.code == code_pb2.INVALID_ARGUMENT
    assert info.reason == "Special"


@pytest.mark.parametrize("kind", [Busy, CreditExceeded])
@pytest.mark.parametrize(("given", "told"), [(250, 250), (0, 1)])
def test_overload_says_when_to_come_back(kind, given, told):
    status, _, retry = details(kind("full", retry_after_ms=given))
    assert status.code == code_pb2.RESOURCE_EXHAUSTED
    assert retry.retry_delay.ToMilliseconds() == told


def test_an_outcome_that_is_known_better_than_by_its_class_is_reported():
    _, info, retry = details(RequestTimeout("late", outcome=Outcome.NOT_DONE))
    assert (info.metadata["outcome"], retry) == ("not done", None)


def test_a_message_is_never_empty_and_never_too_long_for_a_header():
    assert status_of(NoSuchLedger()).message == "NoSuchLedger"
    failed = status_of(NoSuchLedger("x" * 100_000))
    assert len(failed.message) == MAX_MESSAGE_BYTES
    assert len(failed.details) < 8_000
    failed = status_of(NoSuchLedger("\N{DUCK}" * 100_000))
    assert len(quote(failed.message)) + len(b64encode(failed.details)) < 8_000
    assert set(failed.message) == {"\N{DUCK}"}


def test_errors_of_streams_say_to_programs_what_they_say_in_words():
    owned = details(StreamOwned("stream s is owned", owner="10.0.0.7:7450"))
    assert owned[1].metadata["owner"] == "10.0.0.7:7450"
    assert owned[2].retry_delay.ToMilliseconds() > 0
    assert details(PositionMismatch("no", position="1-2-3@5f0c9a21"))[1].metadata["position"] == "1-2-3@5f0c9a21"
    assert details(ReaderTooSlow("no", position="1-2-3@5f0c9a21"))[1].metadata["position"] == "1-2-3@5f0c9a21"
    told = details(StreamGap("gone", gap=Gap(GapReason.TRUNCATED, None, 7)))[1].metadata
    assert (told["gap_reason"], told["next_sequence"], "first_sequence" in told) == ("truncated", "7", False)


async def test_a_defect_is_named_to_clients_and_its_details_are_logged(caplog):
    async def broken(call):
        raise ValueError("/etc/somewhere holds xyzzy")

    settings, counts = GatewaySettings(metadata="memory:"), GatewayCounters()
    authorizer = Authorizer(OpenAccess(), None, DenialLog(RealClock(), OpenAccess()))
    serve = intercepted("LedgerService/Describe", broken, counts, RealClock(), authorizer, GatewayLimits(settings))
    with pytest.raises(CallFailed) as caught:
        await serve(FakeCall(Status))
    assert (caught.value.code, "internal error" in caught.value.message) == (code_pb2.INTERNAL, True)
    for secret in ("xyzzy", "ValueError"):
        assert secret not in caught.value.message
        assert secret.encode() not in caught.value.details
    (line,) = caplog.records
    assert "xyzzy" in str(line.exc_info)

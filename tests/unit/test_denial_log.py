"""The log of denied requests: principal and method, a bounded number of lines, and never a token."""

import json
import logging

import pytest

from tallybook.core.access import AccessFile, AccessRules, Credentials, Presented, Principal
from tallybook.core.certificate_names import CertificateName
from tallybook.core.errors import AccessDenied, NoSuchLedger, TallybookError, Unauthenticated, Unauthorized
from tallybook.runtime.security.denial_log import DENIAL_METRICS, HTTP, MAX_LINES, SPAN_SECONDS, DenialLog
from tallybook.sim.deterministic import SimClock

from ..support.log_lines import line_of

READER = Presented((CertificateName.parse("tallybook://reader/x"),))
DENIED = AccessDenied("readers may not write")
TOKEN = "a-token-that-may-be-good"
RULES = AccessRules(
    AccessFile.model_validate(
        {"principal": [{"name": "readers", "roles": ["reader"], "certificates": ["tallybook://reader/*"]}]}
    )
)


class Time(SimClock):
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Rules:
    """An ``Access`` that knows certificates."""

    def principal(self, presented: Presented) -> Principal:
        return RULES.principal(Credentials(presented.certificate))


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def denials(clock: Time, caplog: pytest.LogCaptureFixture) -> DenialLog:
    caplog.set_level(logging.INFO)
    return DenialLog(clock, Rules())


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line_of(record) for record in caplog.records if record.name == "tallybook.audit"]


def test_a_known_caller_is_logged_with_name_and_certificate(denials, caplog):
    denials.note(DENIED, READER, "ipv4:10.0.0.9:5", "LedgerService/Delete")
    [line] = lines(caplog)
    assert line == (
        "refused principal=readers identity=tallybook://reader/x peer=ipv4:10.0.0.9:5 method=LedgerService/Delete "
        'error_type=AccessDenied error="readers may not write"'
    )


def test_an_unknown_caller_is_logged_with_its_credentials_but_never_its_token(denials, caplog):
    stranger = Presented((CertificateName.parse("tallybook://nobody/x"),), (f"Bearer {TOKEN}",))
    denials.note(Unauthenticated("the token has expired"), stranger, "ipv4:10.0.0.9:5", "HTTP GET")
    [line] = lines(caplog)
    assert 'principal="" identity=tallybook://nobody/x' in line
    assert TOKEN not in json.dumps([vars(record) for record in caplog.records], default=str)


@pytest.mark.parametrize("error", [AccessDenied, Unauthorized])
def test_repeated_denials_are_reported_once_a_minute_with_their_number(denials, clock, caplog, error):
    for number in range(1000):
        denied = error(f"ledger {number % 7}: the password does not fit")
        denials.note(denied, READER, f"ipv4:10.0.0.9:{number}", "LedgerService/Close")
    [line] = lines(caplog)
    assert "principal=readers identity=tallybook://reader/x" in line
    assert line.endswith(f'error_type={error.__name__} error="ledger 0: the password does not fit"')
    clock.now = SPAN_SECONDS
    denials.note(denied, READER, "ipv4:10.0.0.9:5", "LedgerService/Close")
    assert lines(caplog)[1].endswith("untold_count=999")


def test_what_is_new_is_reported_at_once(denials, caplog):
    denials.note(DENIED, READER, "ipv4:10.0.0.9:5", "LedgerService/Delete")
    denials.note(DENIED, READER, "ipv4:10.0.0.9:5", "LedgerService/Close")
    denials.note(DENIED, READER, "ipv4:10.0.0.8:5", "LedgerService/Delete")
    denials.note(Unauthenticated("a certificate is wanted"), Presented(), "ipv4:10.0.0.9:5", "LedgerService/Delete")
    assert len(lines(caplog)) == 4


def test_callers_from_many_addresses_fill_neither_log_nor_memory(denials, clock, caplog):
    for minute in range(3):
        clock.now = minute * SPAN_SECONDS
        for host in range(1000):
            denials.note(DENIED, READER, f"ipv6:[{host:x}::1]:5", "LedgerService/Delete")
        assert len(denials._logged) == MAX_LINES
    assert len(lines(caplog)) == 3 * MAX_LINES


def test_each_denial_is_counted_by_error_and_port_also_without_a_line(denials, caplog):
    for host in range(1000):
        denials.note(DENIED, READER, f"ipv4:10.0.0.{host}:5", "LedgerService/Delete")
        denials.note(Unauthenticated("no token"), Presented(), "10.0.0.9:5", "HTTP GET /metrics", protocol=HTTP)
        for other in (NoSuchLedger("ledger 1"), TallybookError("x")):
            denials.note(other, READER, "ipv4:10.0.0.9:5", "LedgerService/Delete")
    assert len(lines(caplog)) == MAX_LINES
    counts = DENIAL_METRICS.readings(denials)
    assert counts["grpc_AccessDenied"] == counts["http_Unauthenticated"] == 1000
    assert sum(counts.values()) == 2000

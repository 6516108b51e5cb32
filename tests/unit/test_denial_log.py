"""Who was refused is told: who it was and what he wanted, in few lines, and never what a token was."""

import json
import logging

import pytest

from tallybook.core.access import AccessFile, AccessRules, Credentials, Presented, Principal
from tallybook.core.certificate_names import CertificateName
from tallybook.core.errors import AccessDenied, NoSuchLedger, TallybookError, Unauthenticated, Unauthorized
from tallybook.runtime.deterministic import SimClock
from tallybook.runtime.logging import line_of
from tallybook.runtime.refusals import HTTP, MOST_LINES, SPAN_SECONDS, Refusals

READER = Presented((CertificateName.written("tallybook://reader/x"),))
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
def refusals(clock: Time, caplog: pytest.LogCaptureFixture) -> Refusals:
    caplog.set_level(logging.INFO)
    return Refusals(clock, Rules())


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line_of(record) for record in caplog.records if record.name == "tallybook.audit"]


def test_who_is_known_is_told_by_his_name_and_his_certificate(refusals, caplog):
    refusals.note(DENIED, READER, "ipv4:10.0.0.9:5", "LedgerService/Delete")
    [line] = lines(caplog)
    assert line == (
        "refused principal=readers identity=tallybook://reader/x peer=ipv4:10.0.0.9:5 method=LedgerService/Delete "
        'error_type=AccessDenied error="readers may not write" untold_count=0'
    )


def test_who_is_not_is_told_by_what_he_has_shown_and_never_by_his_token(refusals, caplog):
    stranger = Presented((CertificateName.written("tallybook://nobody/x"),), (f"Bearer {TOKEN}",))
    refusals.note(Unauthenticated("the token has expired"), stranger, "ipv4:10.0.0.9:5", "HTTP GET")
    [line] = lines(caplog)
    assert 'principal="" identity=tallybook://nobody/x' in line
    assert TOKEN not in json.dumps([vars(record) for record in caplog.records], default=str)


@pytest.mark.parametrize("error", [NoSuchLedger("7"), TallybookError("x")])
def test_other_errors_are_no_refusals(refusals, caplog, error):
    refusals.note(error, READER, "ipv4:10.0.0.9:5", "LedgerService/Delete")
    assert lines(caplog) == []


def test_what_is_refused_again_and_again_is_told_once_a_minute_and_how_often(refusals, clock, caplog):
    for port in range(1000):
        refusals.note(DENIED, READER, f"ipv4:10.0.0.9:{port}", "LedgerService/Delete")
    assert len(lines(caplog)) == 1
    clock.now = SPAN_SECONDS
    refusals.note(DENIED, READER, "ipv4:10.0.0.9:5", "LedgerService/Delete")
    assert lines(caplog)[1].endswith("untold_count=999")


def test_wrong_passwords_are_told_once_a_minute_and_how_many_there_were(refusals, clock, caplog):
    for guess in range(1000):
        wrong = Unauthorized(f"ledger {guess % 7}: the password does not fit")
        refusals.note(wrong, READER, f"ipv4:10.0.0.9:{guess}", "LedgerService/Close")
    [line] = lines(caplog)
    assert "principal=readers identity=tallybook://reader/x" in line
    assert 'error_type=Unauthorized error="ledger 0: the password does not fit" untold_count=0' in line
    clock.now = SPAN_SECONDS
    refusals.note(Unauthorized("ledger 1: the password does not fit"), READER, "ipv4:10.0.0.9:5", "LedgerService/Close")
    assert lines(caplog)[1].endswith("untold_count=999")


def test_what_is_new_is_told_at_once(refusals, caplog):
    refusals.note(DENIED, READER, "ipv4:10.0.0.9:5", "LedgerService/Delete")
    refusals.note(DENIED, READER, "ipv4:10.0.0.9:5", "LedgerService/Close")
    refusals.note(DENIED, READER, "ipv4:10.0.0.8:5", "LedgerService/Delete")
    refusals.note(Unauthenticated("a certificate is wanted"), Presented(), "ipv4:10.0.0.9:5", "LedgerService/Delete")
    assert len(lines(caplog)) == 4


def test_nobody_fills_the_log_nor_the_memory_by_coming_from_everywhere(refusals, clock, caplog):
    for minute in range(3):
        clock.now = minute * SPAN_SECONDS
        for host in range(1000):
            refusals.note(DENIED, READER, f"ipv6:[{host:x}::1]:5", "LedgerService/Delete")
        assert len(refusals._told) == MOST_LINES
    assert len(lines(caplog)) == 3 * MOST_LINES


def test_each_is_counted_whether_it_is_told_or_not_by_its_error_and_by_what_he_came_to(refusals, caplog):
    for host in range(1000):
        refusals.note(DENIED, READER, f"ipv4:10.0.0.{host}:5", "LedgerService/Delete")
        refusals.note(Unauthenticated("no token"), Presented(), "10.0.0.9:5", "HTTP GET /metrics", face=HTTP)
        refusals.note(NoSuchLedger("ledger 1"), READER, "ipv4:10.0.0.9:5", "LedgerService/Delete")
    assert len(lines(caplog)) == MOST_LINES
    counts = refusals.readings()
    assert counts["grpc_AccessDenied"] == counts["http_Unauthenticated"] == 1000
    assert sum(counts.values()) == 2000

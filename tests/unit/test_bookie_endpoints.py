"""HTTP endpoints of a bookie behind the guard and access rules: every path, verb and role."""

import logging
from collections import defaultdict
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from tallybook.bookie.process.http_endpoints import BookieEndpoints
from tallybook.core.access import Role
from tallybook.core.answers import Incarnation
from tallybook.core.settings import BookieSettings
from tallybook.runtime.security.authority import Subject
from tallybook.runtime.security.process_security import open_security

from .http_parts import JSON, serving

ROLES = ("reader", "writer", "bookie", "admin")
RULES = "".join(f'\n[[principal]]\nname = "{role}"\nroles = ["{role}"]\ntokens = ["{role}"]\n' for role in ROLES)
LIMITED = '\n[[principal]]\nname = "few"\nroles = ["writer"]\ntokens = ["few"]\nstreams = ["few/"]\n'
ALL_ROLES, ADMINS = frozenset(ROLES), frozenset({"admin"})
MAY = {
    "state": {"GET": ALL_ROLES},
    "gc": {"GET": ALL_ROLES, "POST": ADMINS},
    "gc/approve_store": {"POST": ADMINS},
    "gc/approve_drop": {"POST": ADMINS},
    "gc/suspend_compaction": {"POST": ADMINS},
    "gc/resume_compaction": {"POST": ADMINS},
    "config": {"GET": ADMINS},
}
"""The roles that may use each verb of a path; no other path or verb exists."""
VERBS = ("GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS", "TRACE")
DONE = {
    ("POST", "gc"): "collect",
    ("POST", "gc/approve_store"): "approve store",
    ("POST", "gc/approve_drop"): "approve drop",
    ("POST", "gc/suspend_compaction"): "suspend",
    ("POST", "gc/resume_compaction"): "resume",
}


class Status(NamedTuple):
    read_only: bool = False
    directories: tuple[Any, ...] = ()


class Bookie:
    """A stand-in for a bookie behind its endpoints: it records their calls."""

    bookie_id = "b1"
    incarnation = Incarnation("uuid", 3)
    compaction_suspended = False

    def __init__(self) -> None:
        self.done: list[str] = []

    async def status(self) -> Status:
        return Status()

    def stats(self) -> dict[str, int]:
        return defaultdict(int)

    def request_collection(self) -> None:
        self.done.append("collect")

    async def approve_store(self) -> None:
        self.done.append("approve store")

    async def approve_drop(self) -> None:
        self.done.append("approve drop")

    def suspend_compaction(self, suspended: bool) -> None:
        self.done.append("suspend" if suspended else "resume")


@pytest.fixture
def tokens(authority: Any, tmp_path: Any) -> dict[str, str]:
    """The token of each role; the security directory ``bookie`` accepts them."""
    rules = tmp_path / "authority/access.toml"
    rules.write_text(rules.read_text() + RULES + LIMITED)
    authority.issue(tmp_path / "bookie", Subject(Role.BOOKIE, "bookie", ("127.0.0.1",)), days=1)
    who = (*ROLES, "few", "nobody")
    return {subject: f"Bearer {authority.token(subject, lifetime=timedelta(hours=1))}" for subject in who}


def expected(verb: str, path: str, who: str) -> int:
    """The expected status of an answer; a route that does not exist does not exist for any role."""
    roles = MAY[path].get("GET" if verb == "HEAD" else verb)
    if roles is None:
        return 405
    if not who or who == "forged":
        return 401
    return 200 if who in roles else 403


@pytest.mark.parametrize("path", MAY)
async def test_each_endpoint_serves_its_verbs_to_authorized_callers_only(tokens, tmp_path, path):
    bookie, settings = Bookie(), BookieSettings(data_directory="d", metadata="memory:")
    table = BookieEndpoints(settings, lambda: None, lambda: bookie)
    asking = {"": {}, "forged": {"authorization": "Bearer a.b.c"}}
    asking |= {who: {"authorization": token} for who, token in tokens.items()}
    async with serving(open_security(str(tmp_path / "bookie"), serves=True), more=table.table()) as served:
        for verb in VERBS:
            for who, shown in asking.items():
                bookie.done.clear()
                answer = await served(verb, f"/api/v1/bookie/{path}", **shown, **(JSON if verb != "GET" else {}))
                assert (verb, who, answer.status) == (verb, who, expected(verb, path, who))
                done = DONE.get((verb, path)) if answer.status == 200 else None
                assert bookie.done == ([done] if done else [])


def test_the_table_has_these_endpoints_and_no_others():
    table = BookieEndpoints(BookieSettings(data_directory="d", metadata="memory:"), lambda: None, Bookie).table()
    assert {(each.method, each.path.removeprefix("/api/v1/bookie/")) for each in table} == {
        (verb, path) for path, verbs in MAY.items() for verb in verbs
    }


async def test_changes_and_refusals_are_in_the_audit_log_with_their_caller(tokens, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    table = BookieEndpoints(BookieSettings(data_directory="d", metadata="memory:"), lambda: None, Bookie)
    async with serving(open_security(str(tmp_path / "bookie"), serves=True), more=table.table()) as served:
        for _, path in DONE:
            for who in ("admin", "bookie"):
                await served("POST", f"/api/v1/bookie/{path}", authorization=tokens[who], **JSON)
    lines = [record for record in caplog.records if record.name.endswith("audit")]
    done = [(line.getMessage(), line.tallybook_fields["identity"]) for line in lines if line.levelname == "INFO"]
    approved = "approve an older metadata store", "approve dropping deleted and missing ledgers"
    events = ("collect garbage", *approved, "suspend compaction", "resume compaction")
    assert done == [(event, "admin") for event in events]
    refused = [line.tallybook_fields for line in lines if line.getMessage() == "refused"]
    assert [(line["identity"], line["method"]) for line in refused] == [
        ("bookie", f"HTTP POST /api/v1/bookie/{path}") for _, path in DONE
    ]

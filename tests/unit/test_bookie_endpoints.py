"""A bookie's own HTTP endpoints behind the guard and the rules of a cluster: each by each verb, for each role."""

import logging
from collections import defaultdict
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from tallybook.bookie.endpoints import BookieEndpoints
from tallybook.core.access import Role
from tallybook.core.answers import Incarnation
from tallybook.core.config import BookieSettings
from tallybook.runtime.security import open_security
from tallybook.runtime.security.authority import Subject

from .http_parts import JSON, serving

ROLES = ("reader", "writer", "bookie", "admin")
RULES = "".join(f'\n[[principal]]\nname = "{role}"\nroles = ["{role}"]\ntokens = ["{role}"]\n' for role in ROLES)
LIMITED = '\n[[principal]]\nname = "few"\nroles = ["writer"]\ntokens = ["few"]\nstreams = ["few/"]\n'
EVERYBODY, ADMINS = frozenset(ROLES), frozenset({"admin"})
MAY = {
    "state": {"GET": EVERYBODY},
    "gc": {"GET": EVERYBODY, "POST": ADMINS},
    "gc/approve_store": {"POST": ADMINS},
    "gc/approve_drop": {"POST": ADMINS},
    "gc/suspend_compaction": {"POST": ADMINS},
    "gc/resume_compaction": {"POST": ADMINS},
    "config": {"GET": ADMINS},
}
"""Who gets which answer; whatever is not here there is not."""
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
    """As far as its endpoints know it: what it was told to do."""

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
    """What each of them shows; the security directory ``bookie`` knows them."""
    rules = tmp_path / "authority/access.toml"
    rules.write_text(rules.read_text() + RULES + LIMITED)
    authority.issue(tmp_path / "bookie", Subject(Role.BOOKIE, "bookie", ("127.0.0.1",)), days=1)
    who = (*ROLES, "few", "nobody")
    return {subject: f"Bearer {authority.token(subject, lifetime=timedelta(hours=1))}" for subject in who}


def expected(verb: str, path: str, who: str) -> int:
    """The status of an answer; what there is not, there is for nobody, whoever he is."""
    roles = MAY[path].get("GET" if verb == "HEAD" else verb)
    if roles is None:
        return 405
    if not who or who == "forged":
        return 401
    return 200 if who in roles else 403


@pytest.mark.parametrize("path", MAY)
async def test_each_endpoint_is_for_those_who_may_by_the_verbs_that_it_has_and_for_nobody_else(tokens, tmp_path, path):
    bookie, table = Bookie(), BookieEndpoints(BookieSettings(data_directory="d", metadata="memory:"), lambda: None)
    table.bookie = bookie
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
    table = BookieEndpoints(BookieSettings(data_directory="d", metadata="memory:"), lambda: None).table()
    assert {(each.method, each.path.removeprefix("/api/v1/bookie/")) for each in table} == {
        (verb, path) for path, verbs in MAY.items() for verb in verbs
    }


async def test_what_was_done_and_what_was_refused_is_in_the_audit_log_with_who_wanted_it(tokens, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    table = BookieEndpoints(BookieSettings(data_directory="d", metadata="memory:"), lambda: None)
    table.bookie = Bookie()
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

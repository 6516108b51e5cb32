"""A secured cluster from the command line: authority, certificates, tokens, and refused commands."""

import asyncio
import json
import os
import re
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from tallybook.client.client import Client
from tallybook.core.access import Role
from tallybook.core.errors import AccessDenied
from tallybook.core.settings import ClientSettings
from tallybook.runtime.security.authority import Authority, Subject

from .conftest import SMALL, TALLYBOOK, environment

DEMOTED = """
[[principal]]
name = "demoted"
roles = ["reader"]
certificates = ["tallybook://writer/demoted", "tallybook://bookie/demoted", "app.example.org"]
"""
"""Principals that may only read, with any role in their certificates."""


class HostOnly(Subject):
    """A certificate of a company's authority: with no name of ours in it."""

    def names(self) -> list[x509.GeneralName]:
        return [x509.DNSName("app.example.org")]


class Secured:
    """An authority, a cluster that runs with it, and commands with any security directory."""

    def __init__(self, cli: Any, root: Path) -> None:
        self.cli = cli
        self.root = root
        self.metadata = f"sqlite://{root}/data/metadata.db"
        assert cli.run("security", "init", self.authority).code == 0
        self.server = self.issued("bookie", "local", "--host", "127.0.0.1")
        rules = self.server / "access.toml"
        rules.write_text(rules.read_text().replace("[[principal]]", f"{DEMOTED}\n[[principal]]", 1))
        self.ready: dict[str, Any] = {}

    @property
    def authority(self) -> Path:
        return self.root / "authority"

    def issued(self, role: str, name: str, *more: object) -> Path:
        """A new security directory."""
        made = self.root / name
        found = self.cli.run("security", "issue", self.authority, made, "--role", role, "--name", name, *more, "--json")
        assert found.json["names"][0] == (f"tallybook://{role}/{name}" if role != "bookie" else found.json["names"][0])
        return made

    def __call__(self, directory: Path | None, *arguments: object, **more: Any) -> Any:
        """Run a command with this security directory."""
        who = {} if directory is None else {"TALLYBOOK_SECURITY": str(directory)}
        return self.cli.run(*arguments, TALLYBOOK_METADATA=self.metadata, **who, **more)


@pytest.fixture(scope="module")
def secured(cli, tmp_path_factory) -> Iterator[Secured]:
    """A cluster of three bookies and a gateway; every process has the one directory ``local``."""
    found = Secured(cli, tmp_path_factory.mktemp("secured"))
    more = {"TALLYBOOK_SECURITY": str(found.server), "TALLYBOOK_TOKEN_LISTEN": "127.0.0.1:0"}
    words = ["up", "--data", found.root / "data", "--bookies", 3, *SMALL, "--json"]
    process = subprocess.Popen(
        [*TALLYBOOK, *map(str, words)], env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        found.ready = json.loads(process.stdout.readline())
        yield found
        process.terminate()
        process.stdout.close()
        assert process.wait(cli.patience) == 0
    finally:
        process.kill()
        process.wait()


def test_a_writer_writes_and_a_reader_reads_and_no_other_role_does_either(secured):
    writer, reader = secured.issued("writer", "app"), secured.issued("reader", "dash")
    ledger = secured(writer, "ledger", "create", "--ensemble", 2, "--json").json["ledger_id"]
    assert secured(writer, "ledger", "append", ledger, "--close", stdin=b"a\nb\n").code == 0
    assert secured(reader, "ledger", "read", ledger).out == b"a\nb\n"
    other = secured(writer, "ledger", "create", "--ensemble", 2, "--json").json["ledger_id"]
    for words in (("ledger", "create", "--ensemble", 2), ("ledger", "append", other)):
        refused = secured(reader, *words, "--json", stdin=b"a\n")
        assert (refused.code, refused.error["type"]) == (4, "AccessDenied")
    plain = secured(None, "ledger", "read", ledger, "--json")
    assert plain.code != 0
    assert plain.out == b""


@pytest.mark.parametrize("who", ["writer", "bookie", "a host"])
def test_a_client_with_the_role_reader_changes_nothing_with_any_certificate(secured, tmp_path, who):
    """Neither with a command, nor with one that runs on, nor with a program."""
    if who == "a host":
        Authority.open(secured.authority).issue(tmp_path / "who", HostOnly(Role.WRITER, "app"), days=30)
    else:
        Authority.open(secured.authority).issue(tmp_path / "who", Subject(Role(who), "demoted"), days=30)
        (tmp_path / "who" / "access.toml").unlink(missing_ok=True)
    writer = secured.issued("writer", f"keeper-{who.replace(' ', '-')}")
    ledger = secured(writer, "ledger", "create", "--ensemble", 2, "--json").json["ledger_id"]
    for words in (("ledger", "rm", ledger), ("repair", "run"), ("offload", "run", "--once")):
        refused = secured(tmp_path / "who", *words, "--json")
        *_, told = refused.err.splitlines()
        assert (refused.code, json.loads(told)["error"]["type"]) == (4, "AccessDenied"), words

    async def program() -> None:
        async with Client(secured.metadata, ClientSettings(security=str(tmp_path / "who"))) as client:
            with pytest.raises(AccessDenied, match=r"permission to write is refused by .*: demoted may not write"):
                await client.delete_ledger(ledger)
            await client.ledger_metadata(ledger)

    asyncio.run(program())


def audited(secured) -> set[tuple[str, str, str]]:
    """The commands in the audit logs of bookies: caller, command, and arguments."""
    text = "".join(log.read_text() for log in (secured.root / "data").glob("bookie-*.log"))
    found = re.findall(r'audit: command .*identity=(\S+) .*command="(.*?)" arguments="?(.*?)"?$', text, re.MULTILINE)
    return set(found)


def test_unauthorized_changes_of_the_cluster_are_refused_and_authorized_ones_are_audited(secured):
    admin, writer = secured.issued("admin", "ada"), secured.issued("writer", "shop")
    analyst = secured.issued("reader", "analyst")
    assert secured(admin, "stream", "create", "ledger-of-orders").code == 0
    ledger = secured(writer, "ledger", "create", "--ensemble", 2, "--json").json["ledger_id"]
    mode = ("bookie", "readonly", "bookie-3")
    changes = (("cluster", "audit", "--pause"), mode, ("stream", "rm", "ledger-of-orders"), ("ledger", "rm", ledger))
    for words in changes:
        refused = secured(analyst, *words, "--json")
        assert (refused.code, refused.error["type"]) == (4, "AccessDenied"), words
        assert "tallybook://reader/analyst" in refused.error["message"]
        stranger = secured(None, *words, "--json")
        assert (stranger.code, stranger.error["type"]) == (4, "AccessDenied"), words
    for words in changes[:2]:
        assert secured(writer, *words, "--json").error["type"] == "AccessDenied", words
    assert secured(admin, "cluster", "status", "--json").json["copies"]["paused_since_ms"] is None
    assert secured(admin, *mode).code == 0
    assert secured(admin, *mode, "--off").code == 0
    assert secured(writer, "ledger", "rm", ledger).code == 0
    noted = audited(secured)
    assert ("tallybook://admin/ada", "bookie readonly", "bookie-3 --off") in noted
    assert ("tallybook://writer/shop", "ledger rm", str(ledger)) in noted
    assert not [line for line in noted if "analyst" in line[0]]
    assert {line[1] for line in noted if "shop" in line[0]} == {"ledger create", "ledger rm"}


def test_an_operator_sees_the_cluster_and_uses_it(secured):
    admin = secured.issued("admin", "root")
    assert secured(admin, "cluster", "status", "--json").json["bookies"]
    assert {row["bookie_id"] for row in secured(admin, "bookie", "ls", "--json").json} == {
        f"bookie-{number}" for number in (1, 2, 3)
    }
    seen = secured(admin, "cluster", "diagnose", "--seconds", 0.5, "--json").json
    assert (seen["silent"], len(seen["processes"])) == ({}, 4), "three bookies, and the metadata as the command sees it"
    stranger = secured(None, "cluster", "diagnose", "--seconds", 0.5, "--json")
    assert set(stranger.json["silent"]) == {"bookie-1", "bookie-2", "bookie-3"}
    stream = secured(admin, "stream", "create", "s", "--json")
    assert stream.code == 0, stream.err
    assert secured(admin, "stream", "append", "s", stdin=b"x\n").code == 0
    assert secured(admin, "stream", "read", "s").out == b"x\n"


def test_the_console_reads_all_metrics_of_bookies_and_polls_every_process(secured):
    admin = secured.issued("admin", "operator")
    context = ssl.create_default_context(cafile=admin / "ca.crt")
    context.load_cert_chain(admin / "tls.crt", admin / "tls.key")

    def ask(path: str) -> Any:
        url = f"{secured.ready['console']['url']}api/v1/{path}"
        with urllib.request.urlopen(url, timeout=secured.cli.patience, context=context) as answer:
            return json.load(answer)

    def seen() -> bool:
        bookies = ask("bookies")["bookies"]
        return len(bookies) == 3 and all(bookie["numbers"] and bookie["times"] for bookie in bookies)

    secured.cli.wait_until(seen, "it has the metrics of all bookies")
    for bookie in ask("bookies")["bookies"]:
        assert bookie["numbers"]["memory_bytes"] > 0
        assert len(bookie["times"]["adds"]) > 1
    # Three bookies, gateway, offloader, repair, and the metadata as the console sees it.
    secured.cli.wait_until(lambda: len(ask("diagnosis")["processes"]) == 7, "it has looked at every process twice")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(secured.ready["console"]["url"] + "api/v1/bookies", timeout=secured.cli.patience)


def test_a_token_is_printed_alone_so_that_it_can_be_taken(secured):
    found = secured.cli.run("security", "token", secured.authority, "app", "--days", 1)
    assert found.code == 0
    assert found.out.count(b"\n") == 1
    assert found.out.count(b".") == 2
    assert secured.cli.run("security", "token", secured.authority, "").code == 2


def test_a_directory_is_looked_at_without_its_secrets(secured):
    shown = secured.cli.run("security", "check", secured.server)
    assert b"tallybook://bookie/local" in shown.out
    secret = (secured.server / "tls.key").read_text().splitlines()[1]
    assert secret not in shown.out.decode() + shown.err
    (secured.root / "broken").mkdir(exist_ok=True)
    refused = secured.cli.run("security", "check", secured.root / "broken")
    assert refused.code == 2
    assert "ca.crt" in refused.err


def test_no_secret_is_in_what_processes_print_and_log_or_were_started_with(secured):
    secrets = [(secured.server / "tls.key").read_text().splitlines()[1]]
    password = "geheimnis-4711"
    file = secured.root / "password"
    file.touch(mode=0o600)
    file.write_text(password)
    writer = secured.issued("writer", "secretive")
    ledger = secured(writer, "ledger", "create", "--ensemble", 2, "--password-file", file, "--json").json["ledger_id"]
    assert secured(writer, "ledger", "append", ledger, "--password-file", file, "--close", stdin=b"x\n").code == 0
    token = secured.cli.run("security", "token", secured.authority, "app").out.decode().strip()
    secrets += [password, token]
    printed = secured.cli.run(
        "bookie", "run", "--print-config", "--metadata", "memory:", "--data", secured.root / "none",
        TALLYBOOK_SECURITY=str(secured.server), AWS_SECRET_ACCESS_KEY="aws-4711",
    )  # fmt: skip
    assert json.loads(printed.out)["security"] == str(secured.server)
    logs = b"".join(path.read_bytes() for path in (secured.root / "data").glob("*.log"))
    assert b"ready" in logs
    pids = [bookie["pid"] for bookie in secured.ready["bookies"]] + [secured.ready["gateway"]["pid"]]
    started = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
    for secret in [*secrets, "aws-4711"]:
        assert secret.encode() not in printed.out + printed.err.encode() + logs + started


def test_a_secured_cluster_can_be_measured(secured):
    writer = secured.issued("writer", "bench")
    options = ["--entry-bytes", 100, "--window", 100, "--seconds", 0.2, "--warm-up-seconds", 0]
    assert secured(writer, "bench", "write", *options, "--json").json["errors"] == 0
    told = secured(writer, "bench", "read", "--entry-bytes", 100, "--entries", 50, "--flush-seconds", 0, "--json").json
    assert told["warm"]["seq_entries_per_s"] > 0


def test_an_authority_is_not_made_twice_and_a_key_of_tokens_not_taken_away_alone(secured):
    again = secured.cli.run("security", "init", secured.authority)
    assert again.code == 2
    assert "already" in again.err
    keys = secured.cli.run("security", "rotate-token-key", secured.authority, "--json").json
    assert len(keys["counts"]) == 2
    left = secured.cli.run(
        "security", "rotate-token-key", secured.authority, "--drop", keys["counts"][0], "--json"
    ).json
    assert left["counts"] == [keys["signs"]]
    assert secured.cli.run("security", "rotate-token-key", secured.authority, "--drop", keys["signs"]).code == 2


def test_a_bookie_without_rules_or_with_an_open_key_does_not_start(secured, tmp_path):
    client = secured.issued("writer", "no-server")
    words = ["bookie", "run", "--data", tmp_path / "b", "--metadata", f"sqlite://{tmp_path}/m.db", "--json"]
    refused = secured.cli.run(*words, TALLYBOOK_SECURITY=str(client))
    assert (refused.code, refused.error["type"]) == (3, "AccessDenied")
    without = secured.issued("bookie", "no-rules")
    (without / "access.toml").unlink()
    refused = secured.cli.run(*words, TALLYBOOK_SECURITY=str(without))
    assert refused.code == 3
    assert "access.toml" in refused.err
    server = secured.issued("bookie", "open-key")
    os.chmod(server / "tls.key", 0o644)
    refused = secured.cli.run(*words, TALLYBOOK_SECURITY=str(server))
    assert refused.code == 3
    assert "accessible to every user" in refused.err
    assert not (tmp_path / "b").exists()

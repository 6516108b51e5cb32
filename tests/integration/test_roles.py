"""Roles, commands and metadata drivers: what docs/operate/security.md permits a role, and what the store enforces.

For each role, the tests open the client that a command would open, and make a change through it.
tests/unit/test_command_rights.py runs each command as each role. No bookie is alive, so the security directory of the
process decides; test_cli_security.py has commands that are authorized by bookies.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import typer.main
from cryptography import x509

from tallybook.bench.equipment.zookeeper_server import ZooKeeperServer
from tallybook.bookie.process.http_endpoints import BookieEndpoints
from tallybook.cli.app import COMMANDS, build
from tallybook.cli.cluster_client import cluster
from tallybook.cli.invocation import RUNNING, Invocation
from tallybook.cli.rights import REQUIRED_PERMISSIONS, required_permission
from tallybook.client.client import Client
from tallybook.core.access import Permission, Role
from tallybook.core.errors import AccessDenied, MetadataUnavailable
from tallybook.core.settings import BookieSettings, ClientSettings
from tallybook.gateway.console.routes import endpoints as console_endpoints
from tallybook.metadata.records.security_required import require_security
from tallybook.metadata.uri import open_metadata
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.security.authority import Authority, Subject

PAGE = Path(__file__).resolve().parents[2] / "docs/operate/access.md"
TREE = typer.main.get_command(build(COMMANDS))
NO_ROLE = "nobody"


def table() -> dict[str, set[str]]:
    """The roles that may run each command in the table of the page."""
    rows = PAGE.read_text().partition("### Which commands a role may run")[2].partition("\n\n`yes` means")[0]
    found: dict[str, set[str]] = {}
    for line in rows.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 5 or cells[1] not in ("yes", "no"):
            continue
        roles = {role.value for role, cell in zip(Role, cells[1:], strict=True) if cell == "yes"}
        found |= dict.fromkeys(re.findall(r"`([a-z][a-z -]+)`", cells[0]), roles)
    return found


TABLE = table()


def leaves(command: object, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command below a group."""
    below = getattr(command, "commands", None)
    if below is None:
        yield " ".join(path)
        return
    for name, each in below.items():
        yield from leaves(each, (*path, name))


def test_every_command_has_a_right_and_every_one_that_needs_some_is_in_the_table_of_the_page():
    assert set(leaves(TREE)) == set(REQUIRED_PERMISSIONS)
    named = {" ".join(word for word in words.split() if not word.startswith("-")) for words in TABLE}
    assert named == {command for command, needs in REQUIRED_PERMISSIONS.items() if needs is not None}


def options_of(words: str) -> list[str]:
    """Every option of a command."""
    command: Any = TREE
    for word in words.split():
        command = command.commands[word]
    return [name for each in command.params for name in (*each.opts, *each.secondary_opts) if name.startswith("--")]


@pytest.mark.parametrize("words", [words for words, needs in REQUIRED_PERMISSIONS.items() if needs is not None])
def test_no_option_but_those_of_the_table_changes_the_permission_of_a_command(words):
    def needs(*options: str) -> Permission:
        RUNNING.set(Invocation(words, options=frozenset(options)))
        found = required_permission()
        assert found is not None
        return found.permission

    differ = {option for option in options_of(words) if needs(option) is not needs()}
    told = {each.removeprefix(words).strip() for each in TABLE if each.startswith(f"{words} --")}
    if words == "stream policy":
        assert told <= differ, "one of them stands for all"
    else:
        assert told == differ


def test_over_http_reading_is_for_every_role_and_settings_and_changes_are_for_operators():
    settings = BookieSettings(data_directory="/d", metadata="memory:")
    served = BookieEndpoints(settings, lambda: None, lambda: None).table()
    served += console_endpoints(*(MagicMock() for _ in range(4)))
    operators = {each.path for each in served if each.method == "GET" and each.permission is not Permission.READ}
    assert operators == set(re.findall(r"`(/api/v1/[a-z/]*config)`", PAGE.read_text()))
    changes = {each.permission for each in served if each.method != "GET"}
    assert changes == {Permission.ADMINISTER}


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> dict[str, str]:
    """A security directory for each role, with the passwords of ZooKeeper that the page gives it."""
    root = tmp_path_factory.mktemp("roles")
    authority, places = Authority.create(root / "authority"), {NO_ROLE: ""}
    for role in Role:
        place = root / role.value
        authority.issue(place, Subject(role, "one", ("127.0.0.1",)), days=1)
        passwords = {"zookeeper-reader.auth": "tallyreader:weak"}
        if role is not Role.READER:
            passwords["zookeeper.auth"] = "tally:secret"
        for name, password in passwords.items():
            (place / name).touch(mode=0o600)
            (place / name).write_text(password)
        places[role.value] = str(place)
    return places


@pytest.fixture(scope="module", params=["sqlite", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def metadata(request, directories, tmp_path_factory) -> Iterator[str]:
    """The URI of a metadata store, for processes with one of the directories."""
    root = tmp_path_factory.mktemp(request.param)
    if request.param == "sqlite":
        yield f"sqlite://{root}/metadata.db"
        return
    with ZooKeeperServer(root, security=Path(directories["bookie"])) as server:
        yield f"zks://{server.secure_address}/tallybook"


def has_rules(directory: str) -> bool:
    """Whether a security directory has access rules of its own."""
    return Path(directory, "access.toml").exists()


async def outcome_of(words: str, metadata: str) -> str:
    """Open what a command opens, and change something: what becomes of it."""
    command = " ".join(word for word in words.split() if not word.startswith("-"))
    options = frozenset(words.split()) - frozenset(command.split())
    RUNNING.set(Invocation(command, options=options))
    try:
        client = await cluster(metadata).__aenter__()
    except AccessDenied:
        return "refused"
    try:
        found = await client.world.store.read_record("touched")
        await client.world.store.write_record("touched", b"", None if found is None else found.version)
    except AccessDenied:
        return "reads"
    except MetadataUnavailable:
        return "asks a bookie first"
    finally:
        await client.close()
    return "changes"


@pytest.mark.parametrize("role", [NO_ROLE, *(role.value for role in Role)])
async def test_a_role_runs_the_commands_that_the_page_says_and_only_readers_change_nothing(
    metadata, directories, role, monkeypatch
):
    if role == NO_ROLE and metadata.startswith("zks:"):
        pytest.skip("a ZooKeeper that speaks TLS lets nobody in who has no security directory")
    monkeypatch.setenv("TALLYBOOK_SECURITY", directories[role])
    clock, rng = RealClock(), SystemRng()
    async with await open_metadata(
        metadata, create=True, clock=clock, rng=rng, security=directories["bookie"]
    ) as bookie:
        await bookie.store.cluster_id()
        await require_security(bookie.store, clock, rng)
        found = {words: await outcome_of(words, metadata) for words in TABLE}
    reads = {words for words, roles in TABLE.items() if Role.READER.value in roles}
    may_change = role not in (NO_ROLE, Role.READER.value)
    expected = dict.fromkeys(TABLE, "changes" if may_change else "reads")
    expected |= {words: "refused" for words, roles in TABLE.items() if role not in {*roles, NO_ROLE}}
    if may_change and not has_rules(directories[role]):
        # Nothing but a bookie's word lets one change what it was not started to change.
        expected |= dict.fromkeys(reads, "asks a bookie first")
    assert found == expected


class HostOnly(Subject):
    """A subject with a certificate of a company's authority, without a role in its name."""

    def names(self) -> list[x509.GeneralName]:
        return [x509.DNSName("app.example.org")]


@pytest.mark.parametrize("subject", [HostOnly(Role.WRITER, "app"), Subject(Role.ADMIN, "app.example.org")])
async def test_a_program_reads_and_changes_nothing_before_a_bookie_has_allowed_it(directories, tmp_path, subject):
    authority = Authority.open(Path(directories["bookie"]).parent / "authority")
    authority.issue(tmp_path / "app", subject, days=1)
    (tmp_path / "app" / "access.toml").unlink(missing_ok=True)
    uri = f"sqlite://{tmp_path}/metadata.db"
    async with await open_metadata(uri, create=True, clock=RealClock(), rng=SystemRng()) as made:
        await made.store.write_record("name", b"value", None)
    async with Client(uri, ClientSettings(security=str(tmp_path / "app"))) as client:
        assert await client.world.store.read_record("name") is not None
        with pytest.raises(MetadataUnavailable, match=r"no bookie can say whether \S*app.example.org may change"):
            await client.world.store.delete_record("name", 1)
        assert await client.world.store.read_record("name") is not None

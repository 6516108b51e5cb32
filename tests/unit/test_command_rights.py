"""The permission that a command needs, from its parsed command line."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
from hypothesis import given
from hypothesis import strategies as st

from tallybook.cli.app import COMMANDS, _run, build
from tallybook.cli.exits import Exit
from tallybook.cli.invocation import PROGRAM, RUNNING, Invocation, invocation_of
from tallybook.cli.lines.stream_options import POLICY_OPTIONS
from tallybook.cli.rights import REQUIRED_PERMISSIONS, required_permission
from tallybook.core.access import Permission, Role, permissions_of_names
from tallybook.core.certificate_names import CertificateName
from tallybook.core.errors import InvariantViolation
from tallybook.runtime.security.authority import Authority, Subject

TREE = typer.main.get_command(build(COMMANDS))
RANKS = list(Permission)
ONLY_LOOKS = {"offload rekey": "--dry-run"}
"""The one option that lowers the right of its command."""


@pytest.fixture(autouse=True, scope="module")
def nothing_left() -> Iterator[None]:
    """Leave no command running behind, and the log as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    RUNNING.set(None)
    root.handlers[:] = handlers
    root.setLevel(level)


def parsed(words: list[str]) -> Invocation:
    """Parse a command line, without running the command."""
    context = TREE.make_context(PROGRAM, list(words))
    while hasattr(context.command, "commands"):
        name, command, rest = context.command.resolve_command(context, context._protected_args + context.args)
        context = command.make_context(name, rest, parent=context)
    return invocation_of(context)


def permission_of(words: list[str]) -> Permission:
    """The permission that a command needs with these words."""
    RUNNING.set(parsed(words))
    found = required_permission()
    assert found is not None
    return found.permission


def parameters(words: str) -> list[Any]:
    """The parameters of a command."""
    command: Any = TREE
    for word in words.split():
        command = command.commands[word]
    return list(command.params)


def least(words: str) -> list[str]:
    """The fewest words with which a command is understood."""
    found = words.split()
    for each in parameters(words):
        if each.required:
            found += ["7"] if each.param_type_name == "argument" else [each.opts[0], "7"]
    return found


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A command, and words that may be added to it."""
    words = draw(st.sampled_from([command for command, needs in REQUIRED_PERMISSIONS.items() if needs is not None]))
    options = sorted({name for each in parameters(words) for name in (*each.opts, *each.secondary_opts)})
    odd = st.sampled_from(["", "=", "==", "-", "--", "-=", "--=", "7", "x", *options])
    joined = st.tuples(st.sampled_from(options), st.sampled_from(["", "7", "=", *options])).map("=".join)
    return words, draw(st.lists(odd | joined, max_size=6))


@given(command_lines())
def test_no_word_that_a_command_takes_lowers_the_right_that_it_needs(line: tuple[str, list[str]]) -> None:
    words, added = line
    try:
        found = parsed([*least(words), *added])
    except (typer.TyperException, typer.Exit):
        return
    if ONLY_LOOKS.get(words) in found.options:
        return
    RUNNING.set(found)
    needs = required_permission()
    assert needs is not None
    assert RANKS.index(needs.permission) >= RANKS.index(permission_of(least(words)))


@pytest.mark.parametrize(
    ("words", "permission"),
    [
        ("bookie drain b1 --force --metadata= --metadata URI", Permission.ADMINISTER),
        ("fsck --metadata URI --json", Permission.READ),
        ("fsck --metadata URI --json --repair", Permission.ADMINISTER),
        ("fsck --metadata --repair", Permission.READ),
        ("stream policy orders --metadata URI", Permission.READ),
        ("stream policy orders --metadata URI --retention=7d", Permission.WRITE),
        ("stream policy orders --metadata URI --retention 7d", Permission.WRITE),
        ("ledger recover 7 --metadata URI", Permission.WRITE),
        ("ledger recover --accept-loss 7 --metadata URI", Permission.ADMINISTER),
        ("offload rekey --metadata URI", Permission.ADMINISTER),
        ("offload rekey --metadata URI --dry-run", Permission.READ),
        ("offload rekey --metadata --dry-run", Permission.ADMINISTER),
        ("offload rebuild-catalog -- --metadata", Permission.READ),
        ("offload rebuild-catalog URL --metadata=", Permission.ADMINISTER),
    ],
)
def test_a_command_needs_the_right_of_what_its_options_have_it_do(words: str, permission: Permission) -> None:
    assert permission_of(words.split()) is permission


@pytest.mark.parametrize("name", POLICY_OPTIONS)
def test_a_policy_is_changed_by_writers_only(name: str) -> None:
    words = ["stream", "policy", "orders", "--metadata", "URI", f"--{name.replace('_', '-')}", "7"]
    assert permission_of(words) is Permission.WRITE


def test_words_between_the_parts_of_a_command_do_not_hide_which_one_it_is() -> None:
    found = parsed(["--", "ledger", "--", "rm", "7", "--metadata", "URI"])
    assert found == ("ledger rm", ("7", "--metadata", "URI"), {"--metadata"})


@pytest.mark.parametrize("words", [["--", "ledger", "ls"], ["ledger", "--", "ls"]])
def test_a_command_with_such_words_runs(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    line = [*words, "--metadata", "sqlite:////none/metadata.db", "--json"]
    assert _run(line, as_json=True) == Exit.CALLER
    assert json.loads(capsys.readouterr().err)["error"]["type"] == "NoSuchCluster"


def test_a_command_whose_right_is_not_stated_is_a_defect() -> None:
    RUNNING.set(Invocation("ledger forge"))
    with pytest.raises(InvariantViolation, match="ledger forge"):
        required_permission()


# -- what its own directory does not allow a process -------------------------------------------------------------------


@pytest.fixture
def outcome(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command for a cluster that cannot be; what its error says."""
    (tmp_path / "file").touch()

    def of(*words: str) -> str:
        _run([*words, "--json"], as_json=True)
        told = capsys.readouterr().err.splitlines()
        return str(json.loads(told[-1])["error"]["message"])

    return of


def runnable(words: str, place: Path) -> list[str]:
    """A command with the fewest words with which it is understood, for a cluster that cannot be."""
    metadata = f"sqlite://{place}/file/metadata.db"
    values = {"metadata": metadata, "url": f"file://{place}/none", "directory": str(place / "none"), "to": "earliest"}
    found = [*words.split()]
    for each in parameters(words):
        if each.required or each.name in ("metadata", "data"):
            value = values.get(each.name, str(place / "data") if each.name == "data" else "7")
            found += [value] if each.param_type_name == "argument" else [each.opts[0], value]
    return [*found, "--replace", "--id", "b7"] if words == "bookie init" else found


@pytest.mark.parametrize("role", Role)
def test_a_command_that_the_own_certificate_does_not_allow_does_nothing(
    authority: Authority,
    tmp_path: Path,
    role: Role,
    monkeypatch: pytest.MonkeyPatch,
    outcome: Callable[..., str],
) -> None:
    authority.issue(tmp_path / "who", Subject(role, "one", ("127.0.0.1",)), days=1)
    monkeypatch.setenv("TALLYBOOK_SECURITY", str(tmp_path / "who"))
    allowed = permissions_of_names([CertificateName.parse(f"tallybook://{role.value}/one")]) or frozenset()
    commands = [command for command, needs in REQUIRED_PERMISSIONS.items() if needs is not None]
    lines = {command: runnable(command, tmp_path) for command in commands}
    expected = {command: permission_of(line) not in allowed for command, line in lines.items()}
    found = {command: outcome(*line).startswith(f"'{command}' needs the permission") for command, line in lines.items()}
    assert found == expected


@pytest.mark.parametrize("command", ["bookie run", "repair run", "offload run"])
def test_the_directory_that_a_setting_names_counts(
    authority: Authority, tmp_path: Path, command: str, outcome: Callable[..., str]
) -> None:
    authority.issue(tmp_path / "who", Subject(Role.WRITER, "one"), days=1)
    said = outcome(*runnable(command, tmp_path), "--set", f"security={tmp_path / 'who'}")
    assert said == f"'{command}' needs the permission to keep: tallybook://writer/one may not"

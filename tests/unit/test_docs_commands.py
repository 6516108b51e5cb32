"""Commands, make targets, metrics and links in the docs exist."""

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tallybook.cli.app import COMMANDS, build

ROOT = Path(__file__).parents[2]
METRIC = r"tallybook_(?:process|bookie|journal|offload|archive|repair|gateway|security)_[a-z_]+"
GENERATED = ("docs/reference/cli/", "docs/reference/metrics/", "docs/reference/configuration.md")
# Files whose first line is the name of the program and a kind: they look like commands.
TEXT_RECORDS = "docs/reference/formats/"
PAGES = {
    str(path.relative_to(ROOT)): path
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "tests/fixtures/*.md")
    for path in sorted(ROOT.glob(pattern))
}
WRITTEN = [name for name in PAGES if not name.startswith(GENERATED)]
each_page = pytest.mark.parametrize("page", [PAGES[name] for name in WRITTEN], ids=WRITTEN)
any_page = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
WITH_COMMANDS = [name for name in WRITTEN if not name.startswith(TEXT_RECORDS)]


@cache
def tree() -> Any:
    return typer.main.get_command(build(COMMANDS))


def code_lines(text: str) -> list[str]:
    """Lines of indented and of fenced blocks, without what a shell takes for a comment; a ``text`` is an output."""
    found, fence = [], ""
    for line in text.splitlines():
        if line.startswith("```"):
            fence = "" if fence else line
        elif fence != "```text" and (fence or line.startswith("    ")):
            found.append(re.sub(r"(^|\s)#.*", "", line).strip())
    return found


def commands_in(text: str) -> list[str]:
    """Every command line of ours: those in code, and those within a sentence."""
    blocks = [
        found for line in code_lines(text) for found in re.findall(r"(?:^|[|(;&] *|\$ +)(tallybook [^|)>;&]*)", line)
    ]
    return blocks + re.findall(r"`(tallybook [^`|]*)`", text)


def problem(line: str) -> str:
    """The error of a command line; empty for a valid one."""
    words = shlex.split(line)[1:]
    command, name = tree(), "tallybook"
    while words and hasattr(command, "commands"):
        name, word = f"{name} {words[0]}", words.pop(0)
        if word.startswith("-"):
            return "" if any(word in each.opts for each in command.params) else f"there is no option {word} of {name}"
        if word not in command.commands:
            return f"there is no command {name}"
        command = command.commands[word]
    if hasattr(command, "commands"):
        return ""
    options = {spelling: each for each in command.params for spelling in (*each.opts, *each.secondary_opts)}
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    given = 0
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            given += 1
            continue
        spelling, has_value, _ = word.partition("=")
        if spelling not in options:
            return f"{name} has no option {spelling}"
        if not options[spelling].is_flag and not has_value and words:
            words.pop(0)
    if given > len(arguments) and all(each.nargs == 1 for each in arguments):
        return f"{name} takes {len(arguments)} arguments, not {given}"
    return ""


@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_every_command_in_a_document_can_be_typed(name):
    found = {line: problem(line) for line in commands_in(PAGES[name].read_text())}
    assert {line: why for line, why in found.items() if why} == {}


@each_page
def test_every_target_of_make_in_a_document_is_there(page):
    text = page.read_text()
    named = {word for line in code_lines(text) for word in re.findall(r"(?:^|&& )make ([a-z][a-z0-9-]*)", line)}
    named |= set(re.findall(r"`make ([a-z][a-z0-9-]*)[^`]*`", text))
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named - targets == set()


@each_page
def test_every_metric_in_a_document_is_served(page):
    named = set(re.findall(rf"`({METRIC})(?:\{{[^`]*\}})?`", page.read_text()))
    pages = (ROOT / "docs" / "reference" / "metrics").glob("*.md")
    served = {metric for each in pages for metric in re.findall(rf"`({METRIC})`", each.read_text())}
    assert {each for each in named - served if not any(other.startswith(each) for other in served)} == set()


@any_page
def test_every_page_that_a_document_points_at_is_there(page):
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


@any_page
def test_every_heading_that_a_document_points_at_is_there(page):
    for target, heading in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text()):
        text = (page.parent / target).read_text() if target else page.read_text()
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        assert heading in {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}, target


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("tallybook cluster status --json", ""),
        ("tallybook ledger", ""),
        ("tallybook --version", ""),
        ("tallybook bookie drain BOOKIE --wait", ""),
        ("tallybook bookie run --set journal.segment_bytes=8MiB --set=scrub.period_s=0", ""),
        ("tallybook bookie empty BOOKIE", "there is no command tallybook bookie empty"),
        ("tallybook bookie drain BOOKIE --now", "tallybook bookie drain has no option --now"),
        ("tallybook bookie drain ONE TWO", "tallybook bookie drain takes 1 arguments, not 2"),
        ("tallybook --speed", "there is no option --speed of tallybook --speed"),
    ],
)
def test_a_command_that_cannot_be_typed_is_found(line, why):
    assert problem(line) == why


def test_commands_are_found_wherever_they_stand():
    page = (
        "Say `tallybook fsck` or\n\n    seq 9 | tallybook ledger append 7   # nine\n    id=$(tallybook ledger create)\n"
        "```text\ntallybook 0.1.0\n```\n"
    )
    assert commands_in(page) == ["tallybook ledger append 7", "tallybook ledger create", "tallybook fsck"]

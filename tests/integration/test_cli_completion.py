"""Completion of commands and options in a shell."""

import subprocess

import pytest


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tallybook led", ["ledger"]),
        ("tallybook ledger r", ["read", "recover", "rm"]),
        ("tallybook stream rm --if", ["--if-exists"]),
        ("tallybook completion ", ["bash", "fish", "zsh"]),
    ],
)
def test_the_words_that_fit_at_the_cursor_are_offered(cli, line, words):
    offered = cli.run(COMP_WORDS=line, COMP_CWORD=str(line.count(" ")), _TALLYBOOK_COMPLETE="complete_bash")
    assert (offered.code, sorted(offered.out.decode().split()), offered.err) == (0, words, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_names_the_command(cli, shell):
    assert "tallybook" in cli.run("completion", shell).out.decode()
    assert cli.run("completion", "csh").code == 2


def test_bash_accepts_its_script(cli):
    script = cli.run("completion", "bash").out
    found = subprocess.run(["bash", "-c", script + b"\ncomplete -p tallybook"], capture_output=True, check=True)
    assert b"_tallybook_completion" in found.stdout

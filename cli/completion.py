"""``tallybook completion``: prints the script with which a shell completes commands and options."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from enum import Enum
from typing import Annotated

import typer
import typer.main

from .app import answer_shell, build
from .options import Json
from .output import print_json


class Shell(Enum):
    """A shell with completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")], as_json: Json = False
) -> None:
    """Print the script that completes commands and options in a shell.

    bash: 'source <(tallybook completion bash)' in ~/.bashrc. zsh: the same with zsh in ~/.zshrc, after compinit. fish:
    'tallybook completion fish | source' in ~/.config/fish/config.fish.
    """
    with redirect_stdout(io.StringIO()) as printed:
        answer_shell(typer.main.get_command(build([])), f"source_{shell.value}")
    script = printed.getvalue().strip()
    if as_json:
        print_json({"script": script})
    else:
        print(script)

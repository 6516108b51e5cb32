"""Builds the command line, runs one command, and turns its errors into messages and exit codes.

``COMMANDS`` names the module of each command: to add one, write the module and add a line. Only the module of the
command that is run is loaded, because loading all of them takes longer than most commands.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Final, NoReturn

import typer
import typer.main

from tallybook.core.errors import Fault, TallybookError
from tallybook.runtime.extras import missing_extra
from tallybook.runtime.logging import set_up_logging

from .checked_command import CheckedCommand
from .exits import Exit, Interrupted, RefusedToStart, disk_failed, error_object, exit_code, sentence
from .invocation import PROGRAM
from .output import complain
from .standard_output import OutputFailed, guard

COMMANDS: Final = {
    "up": "tallybook.cli.commands.up",
    "demo": "tallybook.cli.demo.demo",
    "ledger": "tallybook.cli.commands.ledger",
    "stream": "tallybook.cli.commands.stream",
    "namespace": "tallybook.cli.commands.namespace",
    "subscription": "tallybook.cli.commands.subscription",
    "bookie": "tallybook.cli.commands.bookie",
    "cluster": "tallybook.cli.commands.cluster",
    "offload": "tallybook.cli.commands.offload",
    "repair": "tallybook.cli.commands.repair",
    "trace": "tallybook.cli.commands.trace",
    "fsck": "tallybook.cli.commands.fsck",
    "gateway": "tallybook.cli.commands.gateway",
    "console": "tallybook.cli.commands.console",
    "security": "tallybook.cli.commands.security",
    "health": "tallybook.cli.commands.health",
    "journal": "tallybook.cli.commands.journal",
    "entrylog": "tallybook.cli.commands.entrylog",
    "bench": "tallybook.cli.commands.bench",
    "completion": "tallybook.cli.completion",
}
"""The module of each command. It has ``app``, a group of commands, or a function with the command's name."""

SUMMARIES: Final = {
    "up": "Run a cluster on this machine until Ctrl-C.",
    "demo": (
        "Write real data while bookies and the writer are killed; archive it; stream it; wipe a disk; "
        "compare each time."
    ),
    "ledger": "Write, read and manage ledgers.",
    "stream": "Write, read and manage named streams of records.",
    "namespace": "Manage the namespaces that names of streams belong to.",
    "subscription": "Manage the stored positions of readers of streams.",
    "bookie": "Run, list and drain bookies.",
    "cluster": "Check the copies of a cluster, start an audit, and find its bottleneck.",
    "offload": "Move closed ledgers to an object store, and manage them there.",
    "repair": "Keep every ledger at its number of good copies.",
    "trace": "Show every copy of one entry: which bookies have it, where it is stored, and its checksum.",
    "fsck": "Check metadata, bookies and bucket against each other, and repair what can be repaired.",
    "gateway": "Serve ledgers and streams over gRPC, to programs in any language.",
    "console": "Show a cluster in a browser, and let operators change how it runs.",
    "security": "Make certificates and tokens, and check a security directory.",
    "health": "Check whether one process is ready. Exit code 1 if it is not.",
    "journal": "Inspect the journal of a stopped bookie.",
    "entrylog": "Inspect the entry logs of a stopped bookie.",
    "bench": "Measure a cluster, or the disk below a journal.",
    "completion": "Print the script that completes commands and options in a shell.",
}
"""Help texts for the list of all commands, which does not load their modules."""

COMPLETE: Final = "_TALLYBOOK_COMPLETE"
"""Environment variable with which the script of ``tallybook completion`` asks for the words that fit."""

_SILENT: Final = ("kazoo",)
"""Loggers that are switched off: they log retries, and the command's error says what failed."""


_NEGATIVE: Final = re.compile(r"-[0-9]+")


def build(names: Collection[str]) -> typer.Typer:
    """The command line with the commands ``names`` loaded. The others only appear in the list of commands."""
    root = typer.Typer(
        name=PROGRAM,
        help="Tallybook stores ledgers: append-only logs, replicated, and durable before they are acknowledged.",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    root.callback()(_root)
    for name in COMMANDS:
        if name not in names:
            root.command(name, help=SUMMARIES[name])(_not_loaded)
        else:
            module = importlib.import_module(COMMANDS[name])
            if hasattr(module, "app"):
                _prepare(module.app)
                root.add_typer(module.app, name=name)
            else:
                root.command(name)(getattr(module, name))
    _prepare(root)
    return root


def _prepare(commands: typer.Typer) -> None:
    """Make each command check its permission, and each paragraph of its help one line, for the terminal to wrap."""
    for command in commands.registered_commands:
        command.cls = CheckedCommand
        if command.help is not None:
            continue
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _not_loaded() -> None:
    """Placeholder for a command whose module is not loaded."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 (what it loads is for this option alone)

        print(f"tallybook {version('tallybook')}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options of ``tallybook`` itself."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Run one command and exit with its exit code."""
    as_json = "--json" in arguments
    guard()
    asked = os.environ.get(COMPLETE)
    try:
        code = _complete(asked) if asked else _run(arguments or ["--help"], as_json)
        sys.stdout.flush()
    except Interrupted as interrupted:
        code = interrupted.code
    except BrokenPipeError:
        code = Exit.BROKEN_PIPE
    except OutputFailed as error:
        complain(f"{error}; the command itself may have taken effect")
        code = Exit.OUTPUT_FAILED
    sys.stderr.flush()
    # Commands close what they open. A normal interpreter exit takes time, and after Ctrl-C it would wait for threads
    # that hang in a read or a write.
    os._exit(code)


def _run(arguments: Sequence[str], as_json: bool) -> int:
    # First, because modules that are imported from here on may log.
    set_up_logging("WARNING", "json" if as_json else "text", silent=_SILENT)
    meant = next((word for word in arguments if not word.startswith("-")), "")
    try:
        command = typer.main.get_command(build([meant]))
        # Calling the command would make click handle broken pipes and Ctrl-C itself.
        with command.make_context(PROGRAM, list(arguments)) as context:
            result = command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    except typer.TyperException as error:
        return _complain_of_usage(error, as_json)
    except RefusedToStart as refused:
        return _complain(refused.cause, Exit.REFUSED_TO_START, as_json)
    except TallybookError as error:
        return _complain(error, exit_code(error), as_json)
    except ModuleNotFoundError as error:
        absent = missing_extra(error, f"'tallybook {meant}'")
        if absent is None:
            raise
        return _complain(absent, Exit.USAGE, as_json)
    except BrokenPipeError:
        raise
    except OSError as error:
        return _complain(disk_failed(error), Exit.STORAGE, as_json)
    return result if isinstance(result, int) else Exit.OK


def _complete(asked: str) -> int:
    """Print the words that fit at the cursor of a shell, which has put its line into the environment."""
    _, *words = os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", "")).split() or [""]
    command = typer.main.get_command(build([next((word for word in words if not word.startswith("-")), "")]))
    return answer_shell(command, asked)


def answer_shell(command: Any, asked: str) -> int:
    """Print what a shell asks for: its script (``source_bash``), or words (``complete_bash``)."""
    # Imported here because only this needs it.
    from typer.completion import get_completion_inspect_parameters, shell_complete  # noqa: PLC0415

    # It makes the shells known. The function of typer that does nothing else is private.
    get_completion_inspect_parameters()
    return shell_complete(command, {}, PROGRAM, COMPLETE, asked)


def _complain(error: TallybookError, code: Exit, as_json: bool) -> int:
    if as_json:
        print(error_object(error, code), file=sys.stderr)
    else:
        complain(sentence(error))
    return code


def _complain_of_usage(error: typer.TyperException, as_json: bool) -> int:
    context = getattr(error, "ctx", None)
    message = error.format_message().rstrip(".")
    if _NEGATIVE.fullmatch(getattr(error, "option_name", "")):
        message = "an id must be in 0 .. 2^63-1; a word that begins with a dash is an option"
    if as_json:
        fields = {"type": "Usage", "message": message, "fault": Fault.CALLER.value, "retriable": False}
        print(json.dumps({"error": {**fields, "outcome": "not done", "exit_code": int(Exit.USAGE)}}), file=sys.stderr)
    else:
        complain(f"{message}; see '{context.command_path if context else 'tallybook'} --help'")
    return Exit.USAGE

"""All commands together, and what becomes of their errors.

Each file of commands is named in ``COMMANDS``: to add one, write the file and add a line.
Only the file of the command that is meant is loaded, because loading all of them takes
longer than most commands do.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Collection, Sequence
from typing import Annotated, Final, NoReturn

import typer
import typer.main

from tallybook.core.errors import Fault, TallybookError
from tallybook.runtime.logging import set_up_logging

from .exits import Exit, Interrupted, RefusedToStart, disk_failed, error_object, exit_code, sentence
from .invocation import PROGRAM, CheckedCommand
from .output import complain
from .standard_output import OutputFailed, guard

COMMANDS: Final = {
    "up": "tallybook.cli.up",
    "demo": "tallybook.cli.demo",
    "ledger": "tallybook.cli.ledger",
    "stream": "tallybook.cli.stream",
    "namespace": "tallybook.cli.namespace",
    "subscription": "tallybook.cli.subscription",
    "bookie": "tallybook.cli.bookie",
    "cluster": "tallybook.cli.upkeep",
    "offload": "tallybook.cli.offload",
    "repair": "tallybook.cli.repair",
    "trace": "tallybook.cli.trace",
    "fsck": "tallybook.cli.fsck",
    "gateway": "tallybook.cli.gateway",
    "console": "tallybook.cli.console",
    "security": "tallybook.cli.security",
    "health": "tallybook.cli.health",
    "journal": "tallybook.cli.journal",
    "entrylog": "tallybook.cli.entrylog",
    "bench": "tallybook.cli.bench",
}
"""Which module has a command: as ``app``, a group of commands, or as a function of the command's own name."""

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
    "bookie": "Run bookies, look at those of a cluster, and empty one.",
    "cluster": "Look at a cluster's copies, have them looked after, and see what it waits for.",
    "offload": "Move closed ledgers to an object store, and look after them there.",
    "repair": "Keep every ledger at its number of good copies.",
    "trace": "Show every copy of one entry: who has it, where it lies, and its checksum.",
    "fsck": "Check metadata, bookies and bucket against each other, and mend what can be mended.",
    "gateway": "Serve ledgers and streams over gRPC, to programs in any language.",
    "console": "Show a cluster in a browser, and let operators change how it runs.",
    "security": "Make certificates and tokens, and look at a security directory.",
    "health": "Ask one process whether it serves. Exit code 1 if it does not.",
    "journal": "Look into the journal of a stopped bookie.",
    "entrylog": "Look into the entry logs of a stopped bookie.",
    "bench": "Measure a cluster, or the disk below a journal.",
}
"""What the list of all commands says of each, so that it need not load them."""

_SILENT: Final = ("kazoo",)
"""Libraries whose remarks on what they retry are of no use to whoever runs a command; its error says what failed."""


_NEGATIVE: Final = re.compile(r"-[0-9]+")


def build(names: Collection[str]) -> typer.Typer:
    """The command line with the commands ``names``; of the others it knows only that they are there."""
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
    """Have each command check its right, and make each paragraph of its help one line, for the terminal to wrap."""
    for command in commands.registered_commands:
        command.cls = CheckedCommand
        if command.help is not None:
            continue
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _not_loaded() -> None:
    """Stand in for a command that was not meant."""


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
    """The options of the command itself."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Run one command and end the process with the exit code that says what became of it."""
    as_json = "--json" in arguments
    guard()
    try:
        code = _run(arguments or ["--help"], as_json)
        sys.stdout.flush()
    except Interrupted as interrupted:
        code = interrupted.code
    except BrokenPipeError:
        code = Exit.BROKEN_PIPE
    except OutputFailed as error:
        complain(f"{error}; the command itself may have taken effect")
        code = Exit.OUTPUT_FAILED
    sys.stderr.flush()
    # Commands close what they open. Taking the interpreter apart would cost time, and after Ctrl-C it would wait for
    # threads that hang in a read or a write which nobody will ever end.
    os._exit(code)


def _run(arguments: Sequence[str], as_json: bool) -> int:
    # Before anything else: what is imported from here on may have something to say.
    set_up_logging("WARNING", "json" if as_json else "text", silent=_SILENT)
    meant = next((word for word in arguments if not word.startswith("-")), "")
    command = typer.main.get_command(build([meant]))
    try:
        # Not by calling it: that would take broken pipes and Ctrl-C for its own business.
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
    except BrokenPipeError:
        raise
    except OSError as error:
        return _complain(disk_failed(error), Exit.STORAGE, as_json)
    return result if isinstance(result, int) else Exit.OK


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
        message = "an id must lie in 0 .. 2^63-1, not below; a word that begins with a dash is taken for an option"
    if as_json:
        told = {"type": "Usage", "message": message, "fault": Fault.CALLER.value, "retriable": False}
        print(json.dumps({"error": {**told, "outcome": "not done", "exit_code": int(Exit.USAGE)}}), file=sys.stderr)
    else:
        complain(f"{message}; see '{context.command_path if context else 'tallybook'} --help'")
    return Exit.USAGE

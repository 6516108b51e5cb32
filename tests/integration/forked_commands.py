"""Runs commands for conftest.py, each in a fork of one process that has loaded all of them.

Starting Python and importing a command takes longer than most commands themselves. A fork is still a separate process,
with its own descriptors, signals and exit code. Standard input is a socket: each message in is a command with its
descriptors; the answers are the process id and, later, the exit code.
"""

import importlib
import json
import os
import socket
import sys

from tallybook.cli import __main__ as program

MAX_REQUEST_BYTES = 1 << 20


def main() -> None:
    """Serve until the other side is gone."""
    program.prepare()
    for module in importlib.import_module("tallybook.cli.app").COMMANDS.values():
        importlib.import_module(module)
    for module in (
        "bookie.process.server",
        "bookie.directories.layout",
        "client.environment",
        "metadata.sqlite.client",
    ):
        importlib.import_module(f"tallybook.{module}")
    with socket.socket(fileno=os.dup(0)) as channel:
        while request := socket.recv_fds(channel, MAX_REQUEST_BYTES, 3):
            message, descriptors, _, _ = request
            if not message:
                return
            threads = os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else ["main"]
            assert len(threads) == 1, "a fork would lack the other threads"
            pid = os.fork()
            if pid == 0:
                channel.close()
                become(*json.loads(message), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            channel.send(str(pid).encode())
            _, status = os.waitpid(pid, 0)
            channel.send(str(os.waitstatus_to_exitcode(status)).encode())


def become(arguments: list[str], environment: dict[str, str], descriptors: list[int]) -> None:
    """Run a command in this process; does not return."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["tallybook", *arguments]
    try:
        program.main()
    finally:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        os._exit(1)


if __name__ == "__main__":
    main()

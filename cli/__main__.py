"""The ``tallybook`` command.

Nothing but the standard library is imported before Ctrl-C has been given its plain meaning:
loading everything takes a moment, and ending in that moment shows no traceback.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys


def main() -> None:
    """Run the command line of this process; does not return."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # gRPC would otherwise remark on standard error that child processes are started beside it.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # A missing standard stream would give its number to the next file or socket that is opened.
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    importlib.import_module("tallybook.cli.app").main(sys.argv[1:])


if __name__ == "__main__":
    main()

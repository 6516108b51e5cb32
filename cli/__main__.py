"""The ``tallybook`` command.

Nothing but the standard library is imported before Ctrl-C has been given its plain meaning:
loading everything takes a moment, and ending in that moment shows no traceback.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Final

_LAST_STREAM: Final = 2


def main() -> None:
    """Run the command line of this process; does not return."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    prepare()
    _open_missing_streams()
    importlib.import_module("tallybook.cli.app").main(sys.argv[1:])


def prepare() -> None:
    """Settings that gRPC asks for when it is loaded.

    What fails, the commands say: it writes nothing to standard error on its own.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _open_missing_streams() -> None:
    """Fill the numbers of closed standard streams: the next file or socket that is opened must not get them."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= _LAST_STREAM:
        pass
    os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (
        stream or os.fdopen(number, mode)
        for number, (stream, mode) in enumerate(((sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w")))
    )


if __name__ == "__main__":
    main()

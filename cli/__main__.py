"""Entry point of the ``tallybook`` command.

Restores the default action of SIGINT before it imports anything but the standard library, so that Ctrl-C while modules
are loading shows no traceback.
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
    try:
        app = importlib.import_module("tallybook.cli.app")
    except ModuleNotFoundError as error:
        sys.exit(_absent(error))
    app.main(sys.argv[1:])


def _absent(error: ModuleNotFoundError) -> int:
    """Report that the command line is not installed. The exit code is that of a wrong setting."""
    extras = importlib.import_module("tallybook.runtime.extras")
    message = extras.missing_extra(error, "the command line")
    if message is None:
        raise error
    print(f"tallybook: {message}; the extra 'server' has bookies and gateways, too", file=sys.stderr)
    return 2


def prepare() -> None:
    """Set the environment variables that gRPC reads when it is imported. It must not log to standard error itself."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _open_missing_streams() -> None:
    """Open /dev/null for closed standard streams, so that a file or socket opened later does not get their numbers."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= _LAST_STREAM:
        pass
    os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (
        stream or os.fdopen(number, mode)
        for number, (stream, mode) in enumerate(((sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w")))
    )


if __name__ == "__main__":
    main()

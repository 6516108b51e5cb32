"""Becomes another program, one that is asked to end when its starter does.

python -I -S tied.py STARTER COMMAND [ARGUMENT ...]

``STARTER`` is the process id of who starts it. That the kernel sends the request survives the
change of program. It is a program of its own, and not a function that the starter runs
between fork and exec: there gRPC, once it was used, wakes its threads in the child, which end
it when they meet the descriptors that were closed for the program to come.

It imports little and nothing of ours: it runs before each program that a benchmark starts.
"""

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_CANNOT_START: Final = 127
"""What a shell ends with where it finds no such program."""


def main() -> None:
    """Ask the kernel, and become the program."""
    starter, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != starter:
        sys.exit(f"who started {command[0]} has ended")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", file=sys.stderr)
        sys.exit(_CANNOT_START)


if __name__ == "__main__":
    main()

"""Executes another program that gets a signal to end when its starter ends.

python -I -S tied.py STARTER COMMAND [ARGUMENT ...]

``STARTER`` is the process id of the starter. The kernel's parent-death signal survives exec. This is a separate program
and not a function between fork and exec, because there gRPC wakes its threads in the child, which crash it when they
find their descriptors closed.

It imports little and nothing of Tallybook, since it runs before each program that a benchmark starts.
"""

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_CANNOT_START: Final = 127
"""Exit code of a shell for a program that is not found."""


def main() -> None:
    """Set the parent-death signal and execute the program."""
    starter, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != starter:
        sys.exit(f"the starter of {command[0]} has ended")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", file=sys.stderr)
        sys.exit(_CANNOT_START)


if __name__ == "__main__":
    main()

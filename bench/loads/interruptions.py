"""Stops and continues a process, again and again, until SIGTERM.

python -m tallybook.bench.loads.interruptions --pid PID --stopped-seconds 2 --running-seconds 3
"""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType
from typing import Annotated, NoReturn

import typer

from ..equipment.programs import print_json_line


def main(
    pid: Annotated[int, typer.Option(help="The process.")],
    stopped_seconds: Annotated[float, typer.Option(help="How long it is stopped each time.")],
    running_seconds: Annotated[float, typer.Option(help="How long it runs in between.")],
) -> None:
    """Print a line of JSON at the first stop; the process runs when this one has ended."""
    signal.signal(signal.SIGTERM, _terminated)
    reported = False
    try:
        while True:
            os.kill(pid, signal.SIGSTOP)
            if not reported:
                reported = True
                print_json_line({"ready": True})
            time.sleep(stopped_seconds)
            os.kill(pid, signal.SIGCONT)
            time.sleep(running_seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(0)


if __name__ == "__main__":
    typer.run(main)

"""Writes to a file of limited size, with an fsync after every few MiB, until it is ended by a signal.

python -m tallybook.bench.loads.busy_disk --file FILE
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from tallybook.core.limits import MIB
from tallybook.runtime.rng import SeededRng

from ..equipment.programs import print_json_line

FILE_BYTES: Final = 256 * MIB
SYNC_BYTES: Final = 4 * MIB


def main(file: Annotated[Path, typer.Option(help="The file that it writes; it stays.")]) -> None:
    """Write for ever; the line of JSON is printed after the first fsync."""
    block, offset, ready = SeededRng(1).token(SYNC_BYTES), 0, False
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        os.pwrite(descriptor, block, offset)
        os.fsync(descriptor)
        offset = (offset + SYNC_BYTES) % FILE_BYTES
        if not ready:
            ready = True
            print_json_line({"ready": True})


if __name__ == "__main__":
    typer.run(main)

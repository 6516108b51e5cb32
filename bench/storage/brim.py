"""Fills a disk completely, in a mount namespace of its own; ``brim_load`` is the load."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ..equipment.programs import module, run_json_lines
from ..gates import Figures

PROGRAM_SECONDS: Final = 900.0


def measure_brim(directory: Path, *, mib: int, turns: int) -> Figures:
    """Fill a small disk ``turns`` times.

    Raises:
        ProgramFailed: the load failed, or mounting a file system is not permitted.
    """
    # Without root, mount as the root of a user namespace, if the kernel permits it.
    namespace = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    command = [*namespace, *module("tallybook.bench.storage.brim_load", str(directory))]
    command += ["--mib", str(mib), "--turns", str(turns)]
    return run_json_lines(command, timeout_seconds=PROGRAM_SECONDS)[-1]

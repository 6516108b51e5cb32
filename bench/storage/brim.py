"""A disk that is filled to the brim, in a mount namespace of its own (``brim_load`` has the rest)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tallybook.bench.gates import Figures
from tallybook.bench.programs import module, run_json_lines

PROGRAM_SECONDS: Final = 900.0


def measure_brim(directory: Path, *, mib: int, turns: int) -> Figures:
    """Fill a small disk so often.

    Raises:
        ProgramFailed: it went wrong, or no file system may be mounted here.
    """
    # Whoever is not root may mount as the root of a user namespace, where the kernel allows that.
    namespace = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    command = [*namespace, *module("tallybook.bench.storage.brim_load", str(directory))]
    command += ["--mib", str(mib), "--turns", str(turns)]
    return run_json_lines(command, timeout_seconds=PROGRAM_SECONDS)[-1]

"""``scripts/ensure-azurite``: it prints the path of the program, or fails."""

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "ensure-azurite"


def test_it_fails_where_what_was_installed_cannot_be_put_in_its_place(tmp_path: Path) -> None:
    for name, does in {
        "node": "true", "npm": 'mkdir -p "$3/node_modules/.bin" && touch "$3/node_modules/.bin/azurite-blob"',
        "mv": "exit 1",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TALLYBOOK_CACHE": str(tmp_path / "cache"),
    }
    done = subprocess.run([SCRIPT], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"is not at {tmp_path}" in done.stderr

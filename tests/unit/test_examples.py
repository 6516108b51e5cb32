"""Examples report missing arguments, from any folder."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_flights_without_arguments_prints_its_usage(tmp_path):
    said = subprocess.run(
        [sys.executable, "-P", str(EXAMPLES / "flights.py")], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert said.returncode == 2
    assert "usage: flights.py [-h] metadata [target]" in said.stderr

"""Examples say what they want, from any folder."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_first_look_at_flights_says_what_it_wants(tmp_path):
    said = subprocess.run(
        [sys.executable, "-P", str(EXAMPLES / "flights.py")], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert said.returncode == 2
    assert "usage: flights.py [-h] metadata [target]" in said.stderr

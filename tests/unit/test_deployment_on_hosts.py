"""What docs/deployment.md says of hosts without containers: units and settings that a process can be started with."""

import configparser
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tallybook.bookie.bookie import PART_CLOSE_SECONDS

DEPLOYMENT = (Path(__file__).resolve().parents[2] / "docs/deployment.md").read_text()


def settings_in_force(words: list[str], **environment: str) -> dict[str, Any]:
    """What a process that is started so goes by; it is a mistake if the command line or a setting is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TALLYBOOK")}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tallybook.cli", *words, "--print-config"],
        check=False,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def told_block(language: str) -> str:
    """The only block of a language on the page."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", DEPLOYMENT, re.MULTILINE | re.DOTALL)
    return found


def test_the_unit_of_a_bookie_runs_it_with_its_settings_and_lets_it_stop(tmp_path):
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string(told_block("ini"))
    service = unit["Service"]
    (tmp_path / "bookie.toml").write_text(told_block("toml"))
    _, *words = service["ExecStart"].replace("/etc/tallybook/bookie.toml", f"{tmp_path}/bookie.toml").split()
    assert words[:2] == ["bookie", "run"]
    found = settings_in_force(words)
    assert service["ReadWritePaths"].split() == [found["data_directory"], *found["journal_directories"]]
    assert int(service["TimeoutStopSec"]) > PART_CLOSE_SECONDS
    assert service["Restart"] == "always"


def test_the_units_of_all_others_run_commands_that_there_are(tmp_path):
    row = re.compile(r"^\| \w+ \| `tallybook ((\w+ run) --config (\S+) --log-format json)` \|", re.MULTILINE)
    commands = row.findall(DEPLOYMENT)
    assert {run for _, run, _ in commands} == {"console run", "gateway run", "offload run", "repair run"}
    (tmp_path / "empty.toml").touch()
    for command, _, file in commands:
        words = command.replace(file, f"{tmp_path}/empty.toml").split()
        assert settings_in_force(words, TALLYBOOK_METADATA="zk://a:1/b", TALLYBOOK_ARCHIVE="s3://a/b")

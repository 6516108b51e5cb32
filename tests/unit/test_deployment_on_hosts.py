"""Hosts without containers, as in docs/operate/deployment.md: units and settings that start a process."""

import configparser
import re
from pathlib import Path

from tallybook.bookie.bookie import PART_CLOSE_SECONDS

from .test_deployment import settings_in_force

DEPLOYMENT = (Path(__file__).resolve().parents[2] / "docs/operate/deployment.md").read_text()


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
    found = settings_in_force(words, {})
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
        assert settings_in_force(words, {"TALLYBOOK_METADATA": "zk://a:1/b", "TALLYBOOK_ARCHIVE": "s3://a/b"})

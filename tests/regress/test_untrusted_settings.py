"""Settings that are nested too deep, or contradict each other, are refused with a clear message."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallybook.cli.options import assigned
from tallybook.core.errors import InvalidConfig
from tallybook.core.settings import OffloadSettings
from tallybook.runtime.settings import load_settings


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5_000,
        "a = " + "{a=" * 5_000,
        ".".join("a" * 5_000) + " = 1",
        "lease_s = " + "[" * 400 + "]" * 400,
    ],
)
def test_settings_too_deep_in_one_another_are_refused(text: str, tmp_path: Path):
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(InvalidConfig):
        load_settings(OffloadSettings, file=str(file), environment={})


@pytest.mark.parametrize("text", ["{} = 1", "[{}]", "a = {{ {} = 1 }}"])
def test_a_name_of_very_many_parts_is_refused_before_it_takes_their_square(text: str, tmp_path: Path):
    file = tmp_path / "settings.toml"
    file.write_text(text.format(".".join("a" * 10_000)))
    with pytest.raises(InvalidConfig, match="dots"):
        load_settings(OffloadSettings, file=str(file), environment={})


def test_a_variable_of_too_many_levels_is_refused():
    with pytest.raises(InvalidConfig):
        load_settings(OffloadSettings, environment={"TALLYBOOK_LEASE_S" + "__A" * 5_000: "1"})


@pytest.mark.parametrize("assignments", [["journal=1", "journal.segment_count=4"], ["a=1", "a.b.c=4"]])
def test_a_setting_that_is_a_value_has_no_others_in_it(assignments: list[str]):
    with pytest.raises(InvalidConfig, match="already has a value"):
        assigned(assignments)

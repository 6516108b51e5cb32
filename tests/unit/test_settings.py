"""Sources of settings, their priority, and errors for invalid ones."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tallybook.core.errors import InvalidConfig
from tallybook.core.settings import BookieSettings, ClientSettings, base
from tallybook.runtime.settings import describe, load_settings
from tallybook.stream import policy

REQUIRED = {"data_directory": "/data", "metadata": "memory:"}


def test_a_later_source_overrides_an_earlier_one_even_with_nothing(tmp_path: Path) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text('rack = "from file"\ndirect_io = true\n[storage]\nflush_interval_ms = 5\nread_threads = 7\n')
    environment = {"TALLYBOOK_RACK": "", "TALLYBOOK_DIRECT_IO": "false", "TALLYBOOK_STORAGE__FLUSH_INTERVAL_MS": "0"}
    settings = load_settings(BookieSettings, file=str(file), environment=environment, overrides=REQUIRED)
    assert settings.rack == ""
    assert settings.direct_io is False
    assert settings.storage.flush_interval_ms == 0
    assert settings.storage.read_threads == 7
    flags = {**REQUIRED, "storage": {"flush_interval_ms": 9}}
    settings = load_settings(BookieSettings, file=str(file), environment=environment, overrides=flags)
    assert (settings.storage.flush_interval_ms, settings.storage.read_threads) == (9, 7)


def test_directories_are_a_list_in_the_file_and_a_text_with_commas_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text('ledger_directories = ["/disk1/logs/", "/disk2/logs"]\n')
    for environment, directories in (
        ({}, ("/disk1/logs", "/disk2/logs")),
        ({"TALLYBOOK_LEDGER_DIRECTORIES": "/disk3/logs, /disk4"}, ("/disk3/logs", "/disk4")),
        ({"TALLYBOOK_LEDGER_DIRECTORIES": ""}, ()),
    ):
        settings = load_settings(BookieSettings, file=str(file), environment=environment, overrides=REQUIRED)
        assert settings.ledger_directories == directories


def test_sizes_have_units_that_mean_what_they_say() -> None:
    for text, value in (("1MiB", 2**20), ("1MB", 10**6), ("1048576", 2**20)):
        settings = load_settings(ClientSettings, environment={"TALLYBOOK_READ_BYTES": text})
        assert settings.read_bytes == value


@pytest.mark.parametrize(
    ("environment", "overrides", "complaint"),
    [
        ({"TALLYBOOK_JOURNAL__SEGMENT_CONT": "4"}, {}, "journal.segment_cont is not a setting"),
        ({"TALLYBOOK_JOURNAL__SEGMENT_CONT": "4"}, {}, r"\(did you mean journal.segment_count\?\)"),
        ({}, {"jornal": {}}, r"jornal is not a setting \(did you mean journal\?\)"),
        (
            {},
            {"journal": {"segment_bytes": "banana"}},
            "segment_bytes = 'banana': must be a size such as 64MiB",
        ),
        ({}, {"journal": {"segment_bytes": "64 miles"}}, "must be a size such as 64MiB"),
        ({}, {"colour": "red"}, "colour is not a setting"),
        ({"TALLYBOOK_STORAGE__READ_THREADS": "-1"}, {}, "storage.read_threads = '-1'"),
        ({"TALLYBOOK_STORAGE__READ_CACHE_BYTES": "lots"}, {}, "storage.read_cache_bytes = 'lots'"),
        ({"TALLYBOOK_LEDGER_DIRECTORIES": "/a,b"}, {}, "ledger_directories = '/a,b': expected absolute paths"),
        ({"TALLYBOOK_LEDGER_DIRECTORIES": "/a,,/b"}, {}, "expected absolute paths"),
        ({"TALLYBOOK_LEDGER_DIRECTORIES": "/with space"}, {}, "expected absolute paths"),
        ({}, {"ledger_directories": ["/a", "/b", "/a/"]}, "directories, each once"),
        ({}, {"ledger_directories": ["/a", "/b"], "journal_directories": ["/b/"]}, "either a journal directory or"),
        ({}, {"ledger_directories": [f"/{number}" for number in range(9)]}, "at most 8 directories"),
        ({}, {"collection": {"unnamed_delay_s": 0}}, "unnamed_delay_s must be at least 10 s more"),
        ({}, {"collection": {"unnamed_delay_s": 10}}, "unnamed_delay_s must be at least 10 s more"),
        (
            {"TALLYBOOK_ADMISSION__MAX_CACHE_WAIT_MS": "50001"},
            {"collection": {"unnamed_delay_s": 60}},
            "unnamed_delay_s must be at least 10 s more",
        ),
        ({}, {"journal": {"segment_count": 2}}, "segment_count must be at least 3"),
        ({}, {"storage": {"flush_interval_ms": float("nan")}}, "storage.flush_interval_ms"),
    ],
)
def test_a_bad_setting_is_named(environment: dict[str, str], overrides: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint.replace(".", r"\.")):
        load_settings(BookieSettings, environment=environment, overrides={**REQUIRED, **overrides})


def test_over_replicated_copies_may_be_kept_as_briefly_as_a_repair_needs_to_name_them() -> None:
    for delay_s, cache_wait_ms in ((11, 1_000), (10, 0), (60, 50_000)):
        chosen = {"collection": {"unnamed_delay_s": delay_s}, "admission": {"max_cache_wait_ms": cache_wait_ms}}
        settings = load_settings(BookieSettings, environment={}, overrides={**REQUIRED, **chosen})
        assert settings.collection.unnamed_delay_s == delay_s


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidConfig, match="data_directory must be set; metadata must be set"):
        load_settings(BookieSettings, environment={})


def test_variables_of_other_commands_are_left_alone() -> None:
    found = load_settings(ClientSettings, environment={"TALLYBOOK_METADATA": "memory:", "PATH": "/bin"})
    assert found == ClientSettings()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe", "not a TOML file"),
        (b"a = ", "not a TOML file"),
        (b"a = 1\na = 2", "TOML"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    file = tmp_path / "bookie.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidConfig, match=complaint) as caught:
        load_settings(BookieSettings, file=str(file), environment={}, overrides=REQUIRED)
    assert str(file) in str(caught.value)


def test_the_reference_has_every_setting_and_says_what_it_is_for() -> None:
    for model in (BookieSettings, ClientSettings):
        settings = list(describe(model))
        assert all(setting.description.endswith(".") for setting in settings)
    names = [setting.name for setting in describe(BookieSettings)]
    assert "journal.segment_bytes" in names
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "module", [*(Path(base.__file__).parent).glob("*.py"), Path(policy.__file__)], ids=lambda file: file.stem
)
def test_type_checkers_see_that_every_setting_has_a_default(module: Path) -> None:
    """pyright takes a field with ``Field(8)`` for a required argument, one with ``Field(default=8)`` for optional."""
    calls = (node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call))
    assert not [
        call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Field" and call.args
    ]

"""The Java that the demo chooses for Spark, and the error if there is none."""

from pathlib import Path

import pytest

from tallybook.cli.demo.query import missing_for_spark


@pytest.fixture
def java(tmp_path, monkeypatch):
    """``java(folder, version)``: a Java that says it is that; nothing else is on the path."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))

    def make(folder: str, version: str) -> Path:
        file = tmp_path / folder / "bin" / "java"
        file.parent.mkdir(parents=True)
        file.write_text(f"#!/bin/sh\n{version}\n")
        file.chmod(0o755)
        return file.parent.parent

    return make


def says(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2023-10-17' >&2"


@pytest.mark.parametrize("version", ["17.0.9", "17", "21.0.1", "25-ea"])
def test_a_java_that_spark_runs_on_is_found(java, version):
    java("path", says(version))
    assert missing_for_spark() == ""


@pytest.mark.parametrize(("version", "number"), [("1.8.0_392", 8), ("11.0.21", 11)])
def test_a_java_that_is_too_old_is_named_with_what_to_do(java, version, number):
    java("path", says(version))
    assert f"is Java {number}, and Spark needs 17 or later (JAVA_HOME names another one)" in missing_for_spark()


def test_without_a_java_it_says_which_one_is_wanted(java):
    assert missing_for_spark() == "java is not installed; Spark needs Java 17 or later"


def test_java_home_comes_before_the_path_as_it_does_for_spark(java, monkeypatch):
    java("path", says("1.8.0_392"))
    monkeypatch.setenv("JAVA_HOME", str(java("home", says("17.0.9"))))
    assert missing_for_spark() == ""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert missing_for_spark() == "JAVA_HOME is /nowhere, and has no bin/java; Spark needs Java 17 or later"


def test_a_java_that_does_not_run_or_does_not_say_what_it_is_will_not_do(java, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(java("broken", "exit 3")))
    assert missing_for_spark().startswith("java does not run")
    monkeypatch.setenv("JAVA_HOME", str(java("mute", "true")))
    assert "the version of" in missing_for_spark()

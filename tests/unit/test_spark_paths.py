"""Where Spark finds what we call an archive."""

from pathlib import Path

import pytest

from tallybook.core.errors import InvalidConfig
from tallybook.spark.native import spark_path


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("s3://bucket", "s3a://bucket"),
        ("s3://bucket/", "s3a://bucket"),
        ("s3://bucket/some/prefix", "s3a://bucket/some/prefix"),
        ("s3://bucket/some/prefix/", "s3a://bucket/some/prefix"),
        ("file:///srv/archive", "file:///srv/archive"),
    ],
)
def test_spark_has_its_own_name_for_the_place_of_an_archive(url: str, path: str) -> None:
    assert spark_path(url) == path


def test_a_relative_directory_is_told_to_spark_as_what_it_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert spark_path("file:///./archive") == f"file://{tmp_path}/archive"
    assert spark_path("file:///../archive") == f"file://{tmp_path.parent}/archive"


@pytest.mark.parametrize("url", ["memory:", "s3://user:secret@bucket", "gs://bucket", "bucket", ""])
def test_what_spark_cannot_reach_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig):
        spark_path(url)

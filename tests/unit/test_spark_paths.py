"""Archive paths as Spark understands them."""

from pathlib import Path

import pytest

from tallybook.core.errors import InvalidConfig
from tallybook.spark.native import AZURE_ACCOUNT, spark_path


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("s3://bucket", "s3a://bucket"),
        ("s3://bucket/", "s3a://bucket"),
        ("s3://bucket/some/prefix", "s3a://bucket/some/prefix"),
        ("s3://bucket/some/prefix/", "s3a://bucket/some/prefix"),
        ("gs://bucket", "gs://bucket"),
        ("gs://bucket/some/prefix/", "gs://bucket/some/prefix"),
        ("az://container", "abfss://container@someone.dfs.core.windows.net"),
        ("az://container/some/prefix", "abfss://container@someone.dfs.core.windows.net/some/prefix"),
        ("file:///srv/archive", "file:///srv/archive"),
    ],
)
def test_spark_has_its_own_name_for_the_place_of_an_archive(
    url: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "someone")
    assert spark_path(url) == path


def test_a_relative_directory_is_resolved_before_it_is_given_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert spark_path("file:///./archive") == f"file://{tmp_path}/archive"
    assert spark_path("file:///../archive") == f"file://{tmp_path.parent}/archive"


@pytest.mark.parametrize("url", ["memory:", "s3://user:secret@bucket", "az://container/prefix", "bucket", ""])
def test_what_spark_cannot_reach_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in AZURE_ACCOUNT:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidConfig):
        spark_path(url)

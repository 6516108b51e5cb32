"""``tallybook demo``, with fewer flights than by default."""

import pytest


@pytest.mark.parametrize("spark", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_the_demo_survives_its_crashes_and_finds_everything(cli, tmp_path, spark):
    options = ["--flights", 60_000, "--data", tmp_path / "demo", "--spark" if spark else "--no-spark", "--json"]
    # Other commands of the same shell may have a security directory; the demo's cluster is its own.
    result = cli.run("demo", *options, timeout=240, TALLYBOOK_SECURITY=str(tmp_path / "other"))
    assert result.code == 0, result.err
    told = result.json
    assert told["same"] is True
    assert told["flights"] == 60_000
    assert told["recovered"] >= told["acknowledged"] >= 51_000
    first, *others = told["fragments"]
    assert "SIGKILL to the writer" in result.err
    assert f"SIGKILL to {first['bookies'][1]} at" in result.err
    assert others, "nobody took the place of the bookie that was killed"
    for fragment in others:
        assert first["bookies"][1] not in fragment["bookies"]
        assert fragment["first_entry_id"] >= 30_000
    if spark:
        assert told["spark"] is True, "Spark and pandas differ"
        assert "FileScan parquet" in result.err
    assert "dropped their" in result.err
    assert list((tmp_path / "demo" / "archive").rglob("*.parquet"))
    stream = told["stream"]
    assert (stream["flights"], stream["same"], stream["fenced"]) == (60_000, True, True)
    assert stream["sent_again"] > 0
    if spark:
        assert stream["spark"] is True, "Spark has counted something else"
        assert stream["batches"] > 1, "they did not come as they arrived"
    assert "SIGSTOP to producer-1" in result.err
    assert "producer-1 was continued, and fenced" in result.err
    repair = told["repair"]
    wiped = repair["bookie_id"]
    assert (repair["before"][wiped], repair["between"][wiped], repair["after"][wiped]) == (
        "intact",
        "unknown",
        "intact",
    )
    assert (repair["same"], repair["batches"] > 0) == (True, True)
    assert f"{wiped} was stopped, and its disk wiped" in result.err
    act = result.err.partition("Repair: a bookie loses its disk")[2].splitlines()
    assert [line for line in act if len(line) > 80] == [], "it wraps in a usual terminal"
    assert len(list((tmp_path / "demo").glob("bookie-?"))) == 5
    assert not list((tmp_path / "demo").glob("*/run.json"))


def test_a_directory_that_holds_something_is_not_touched(cli, tmp_path):
    (tmp_path / "mine").touch()
    assert cli.run("demo", "--data", tmp_path).code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]

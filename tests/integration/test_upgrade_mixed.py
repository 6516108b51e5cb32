"""One cluster of the present code and that of the newest fixture: no entry confirmed by either is lost.

``make upgrade-test`` runs it for longer; see ``sim/upgrade/mixed.py``. The other code is taken from the git history. A
clone without history skips the test; continuous integration, where a skipped test would go unnoticed, fails.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tallybook.bench.compare.revisions import ROOT, Tree, unpack
from tallybook.bench.equipment.programs import ProgramFailed
from tallybook.sim.upgrade.fixture import names_in
from tallybook.sim.upgrade.mixed import MixedCluster

FIXTURES = Path(__file__).parents[1] / "fixtures"
HOLD_SECONDS = 0.5
UNKNOWN_REVISION = "0123456789abcdef"


def unpacked(repository: Path, revision: str, target: Path) -> str:
    """Put the code of a revision into ``target``; its short name. Skips the test, or fails it, where it is not here."""
    try:
        return unpack(repository, revision, target)
    except (ProgramFailed, FileNotFoundError) as error:
        missing = f"the code of revision {revision} is not here, as in a clone without history: {error}"
    # A source distribution has no history that could be fetched.
    if os.environ.get("CI") and (repository / ".git").exists():
        pytest.fail(f"{missing}. Fetch all of it before the tests: git fetch --unshallow")
    pytest.skip(missing)


@pytest.mark.nightly
def test_bookies_clients_gateways_an_offloader_and_a_repair_of_two_revisions_lose_nothing(tmp_path):
    revision = json.loads((FIXTURES / f"{names_in(FIXTURES)[-1]}.json").read_text())["revision"]
    name = unpacked(ROOT, revision, tmp_path / "code")
    said: list[str] = []
    directory = tmp_path / "cluster"
    directory.mkdir()
    old, new = Tree(name, tmp_path / "code", directory), Tree("working tree", ROOT, directory)
    for tree in (old, new):
        tree.check()
    MixedCluster(old, new, directory, said.append, HOLD_SECONDS).run_briefly()
    # One line says what was written, and one each what the ledgers and the streams are, to the old and to the new side.
    assert len(said) == 5, said


@pytest.mark.parametrize(
    ("integrates", "has_git", "outcome"),
    [(True, True, pytest.fail.Exception), (True, False, pytest.skip.Exception), (False, True, pytest.skip.Exception)],
    ids=["continuous integration", "continuous integration of a source distribution", "somebody's clone"],
)
def test_missing_history_is_a_failure_only_where_a_skipped_test_would_go_unnoticed(
    integrates, has_git, outcome, tmp_path, monkeypatch
):
    monkeypatch.setenv("CI", "true" if integrates else "")
    # What lies above is no part of it.
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    repository = tmp_path / "repository"
    repository.mkdir()
    if has_git:
        subprocess.run(["git", "init", "--quiet", repository], check=True)
    # Either of them would be the outcome of this test, were it not caught.
    with pytest.raises((pytest.fail.Exception, pytest.skip.Exception), match=UNKNOWN_REVISION) as caught:
        unpacked(repository, UNKNOWN_REVISION, tmp_path / "code")
    assert caught.type is outcome


def test_continuous_integration_says_that_it_is():
    assert "\nexport CI=" in (ROOT / ".ci/run").read_text()

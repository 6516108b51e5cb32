"""One cluster of this code and of what the newest fixture was made with: nothing that either confirms is lost.

``make upgrade-test`` runs it for longer; see ``sim/upgrade/mixed.py``.
"""

import json
from pathlib import Path

import pytest

from tallybook.bench.programs import ProgramFailed
from tallybook.bench.revisions import ROOT, Tree, unpack
from tallybook.sim.upgrade.fixture import names_in
from tallybook.sim.upgrade.mixed import MixedCluster

FIXTURES = Path(__file__).parents[1] / "fixtures"
HOLD_SECONDS = 0.5


def test_bookies_clients_gateways_an_offloader_and_a_repair_of_two_revisions_lose_nothing(tmp_path):
    revision = json.loads((FIXTURES / f"{names_in(FIXTURES)[-1]}.json").read_text())["revision"]
    try:
        name = unpack(ROOT, revision, tmp_path / "code")
    except (ProgramFailed, FileNotFoundError) as error:
        pytest.skip(f"the code of revision {revision} is not here, as in a clone without history: {error}")
    said: list[str] = []
    directory = tmp_path / "cluster"
    directory.mkdir()
    old, new = Tree(name, tmp_path / "code", directory), Tree("working tree", ROOT, directory)
    for tree in (old, new):
        tree.check()
    MixedCluster(old, new, directory, said.append, HOLD_SECONDS).run_briefly()
    # One line says what was written, and one each what the ledgers and the streams are, to the old and to the new side.
    assert len(said) == 5, said

"""Inspection of the files of a stopped bookie: ``journal`` and ``entrylog``, intact and damaged."""

import json
from pathlib import Path

import pytest

from tallybook.bookie.journal.format import BLOCK_MAGIC, FLAG_SEAL, VERSION
from tallybook.core.limits import MIB

LINES = b"".join(b"line %d\n" % number for number in range(1_000))


def flip(file: Path, needle: bytes) -> None:
    """Change one bit where ``needle`` is."""
    data = bytearray(file.read_bytes())
    data[data.index(needle)] ^= 1
    file.write_bytes(data)


def has_seal(journal: Path) -> bool:
    """Whether a segment of the journal has a seal near its start."""
    seal = BLOCK_MAGIC + bytes([VERSION, FLAG_SEAL])
    for segment in journal.glob("segment-*"):
        with segment.open("rb") as file:
            if seal in file.read(MIB):
                return True
    return False


@pytest.fixture(scope="module")
def killed(cli, tmp_path_factory) -> tuple[Path, int]:
    """The data directory of a bookie that was killed before its first checkpoint, and its only ledger."""
    data = tmp_path_factory.mktemp("offline") / "cluster"
    with cli.up(data, "--set", "storage.flush_interval_ms=600000", bookies=1) as running:
        ledger = running("ledger", "create", "--ensemble", 1, "--json").json["ledger_id"]
        assert running("ledger", "append", ledger, "--close", stdin=LINES).code == 0
        # Until then damage to its last block passes for a write that the crash cut off.
        cli.wait_until(lambda: has_seal(data / "bookie-1" / "journal"), "the journal vouches for its last block")
        in_use = cli.run("journal", "verify", data / "bookie-1", "--json")
        assert (in_use.code, in_use.error["type"]) == (4, "DirectoryInUse")
        running.process.kill()
        cli.wait_until(lambda: not any(map(cli.alive, running.pids)), "the bookie is gone")
    return data / "bookie-1", ledger


def test_the_journal_of_a_killed_bookie_is_sound_and_holds_what_was_confirmed(cli, killed):
    data, ledger = killed
    verified = cli.run("journal", "verify", data, "--json")
    [journal] = verified.json["journals"]
    assert (verified.code, journal["stopped_cleanly"], journal["damage"]) == (0, False, [])
    dumped = [json.loads(line) for line in cli.run("journal", "dump", data / "journal", "--json").out.splitlines()]
    batches = [line for line in dumped if line["kind"] == "batch"]
    assert {batch["ledger_id"] for batch in batches} == {ledger}
    assert sorted((batch["first_entry_id"], batch["last_entry_id"]) for batch in batches)[0][0] == 0
    assert max(batch["last_entry_id"] for batch in batches) == 999
    for_people = cli.run("journal", "dump", data).out.decode()
    assert f"batch ledger_id={ledger} first_entry_id=0 " in for_people
    assert len(for_people.splitlines()) == len(dumped)


def test_damage_in_the_journal_is_found_and_named(cli, killed, tmp_path):
    data, _ = killed
    copy = tmp_path / "copy"
    for name in ("journal", "ledgers"):
        (copy / name).mkdir(parents=True)
        for file in (data / name).iterdir():
            (copy / name / file.name).write_bytes(file.read_bytes())
    segment = next(file for file in (copy / "journal").iterdir() if b"line 500" in file.read_bytes())
    flip(segment, b"line 500")
    verified = cli.run("journal", "verify", copy, "--json")
    assert verified.code == 1
    assert any(segment.name in damage for damage in verified.json["journals"][0]["damage"])
    assert f"damaged: {segment}" in cli.run("journal", "verify", copy).out.decode()


def test_entry_logs_after_a_clean_stop_are_sound_until_a_bit_flips(cli, killed):
    data, ledger = killed
    with cli.up(data.parent, bookies=1) as running:
        assert running.stop() == 0
    sound = cli.run("entrylog", "verify", data, "--json")
    assert (sound.code, sound.json["damage"]) == (0, [])
    dumped = [json.loads(line) for line in cli.run("entrylog", "dump", data, "--json").out.splitlines()]
    batches = [line for line in dumped if line["kind"] == "batch"]
    assert sum(batch["last_entry_id"] - batch["first_entry_id"] + 1 for batch in batches) == 1_000
    assert {batch["ledger_id"] for batch in batches} == {ledger}
    log = next((data / "ledgers").glob("*.log"))
    flip(log, b"line 500")
    damaged = cli.run("entrylog", "verify", data / "ledgers", "--json")
    assert damaged.code == 1
    assert log.name in damaged.json["damage"][0]
    assert "damaged: " in cli.run("entrylog", "verify", data).out.decode()
    log.unlink()
    missing = cli.run("entrylog", "verify", data, "--json")
    assert missing.code == 1
    assert f"{log} is missing" in missing.json["damage"][0]


@pytest.mark.parametrize("command", ["journal", "entrylog"])
def test_a_directory_that_is_no_bookies_is_bad_usage(cli, tmp_path, command):
    result = cli.run(command, "verify", tmp_path / "nowhere")
    assert result.code == 2
    assert "not the data directory of a bookie" in result.err
    assert not list(tmp_path.iterdir())

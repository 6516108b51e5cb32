"""An encrypted archive of a real cluster: the objects in the bucket, who can read them, and key rotation."""

import json
from pathlib import Path
from typing import Any

LINES = b"".join(b"line %d\n" % number for number in range(20_000))
NOW = ("--set", "max_set_wait_s=0", "--set", "deletion_lag_s=0", "--set", "compact_below_bytes=0")


def secrets_of(keys: Path) -> list[str]:
    return list(json.loads(keys.read_text())["keys"].values())


def test_an_encrypted_archive_is_read_with_its_keys_and_rotated_and_refuses_writes_without_them(cli, tmp_path):
    bucket, keys = tmp_path / "bucket", tmp_path / "keys.json"
    bucket.mkdir()
    told: list[str] = []
    with cli.up(tmp_path / "data", "--no-offload") as cluster:

        def call(*args: str, with_keys: bool = True, **more: Any) -> Any:
            env = {"TALLYBOOK_ARCHIVE_KEYS": str(keys)} if with_keys else {}
            done = cluster(*args, **env, **more)
            told.append(done.err + done.out.decode(errors="replace"))
            return done

        def archived() -> str:
            ledger = cluster.create()
            assert cluster("ledger", "append", ledger, "--close", stdin=LINES).code == 0
            return ledger

        # From before there were keys: it stays readable.
        plain = archived()
        assert call("offload", "run", "--once", "--archive", f"file://{bucket}", *NOW, with_keys=False).code == 0
        assert len(list(bucket.glob("ledgers/*.parquet"))) == 1

        made = call("security", "archive-key", str(keys), "--json").json
        assert (keys.stat().st_mode & 0o777, made["plain"]) == (0o600, "read")
        first = made["current"]
        sealed = archived()
        done = call("offload", "run", "--once", *NOW, "--json")
        assert (done.code, done.json["ledgers_archived"], done.json["ledgers_released"]) == (0, 1, 1), done.err
        [frames] = bucket.glob("sealed/objects/ledgers/*.parquet")
        assert not any(sign in frames.read_bytes() for sign in (b"PAR1", b"payload", b"line 1"))
        for ledger in (plain, sealed):
            assert call("ledger", "read", ledger).out == LINES
        assert call("offload", "verify").code == 0
        assert call("fsck", "--json").code == 0
        assert call("trace", sealed, "7", "--json").json["archive"]["verdict"] == "intact"
        listed = call("offload", "rebuild-catalog", f"file://{bucket}", "--json").json
        assert {row["ledger_id"] for row in listed} == {int(plain), int(sealed)}

        # Without keys: nothing is called absent, and nothing is written.
        refused = call("ledger", "read", sealed, "--json", with_keys=False)
        assert (refused.code, refused.out) == (4, b"")
        assert json.loads(refused.err.splitlines()[-1])["error"]["type"] == "ArchiveKeyMissing"
        assert call("ledger", "read", plain, with_keys=False).out == LINES
        refused = call("offload", "run", "--once", *NOW, with_keys=False)
        assert (refused.code, "TALLYBOOK_ARCHIVE_KEYS" in refused.err) == (4, True)
        assert call("offload", "verify", with_keys=False).code == 1
        assert call("fsck", with_keys=False).code == 1

        # Rotation, as the runbook has it.
        second = call("security", "archive-key", str(keys), "--json").json["current"]
        before = frames.read_bytes()
        dry = call("offload", "rekey", "--seal-plain", "--dry-run", "--json").json
        assert (dry["rewrapped"], dry["sealed"], dry["keys_before"]) == (2, 1, [first]), "an object and the manifest"
        assert call("offload", "rekey", "--json").json["rewrapped"] == 2
        again = call("offload", "rekey", "--seal-plain", "--json").json
        assert (again["current"], again["sealed"], again["keys_before"]) == (2, 1, [second])
        assert frames.read_bytes() == before
        assert list(bucket.glob("ledgers/*.parquet")) == []
        assert not (bucket / "_manifest.parquet").exists()
        secrets = secrets_of(keys)
        assert call("security", "archive-key", str(keys), "--drop", first).code == 0
        assert call("security", "archive-key", str(keys), "--plain", "refuse").code == 0
        for ledger in (plain, sealed):
            assert call("ledger", "read", ledger).out == LINES
        assert call("offload", "run", "--print-config").json["archive_keys"] == str(keys)
    assert not any(secret in text for secret in secrets for text in told)

"""Keys: RFC 5869 test vectors, and what each derived value must and must not reveal."""

import contextlib
import re
from pathlib import Path

import pytest

from tallybook.bookie.ledgers import state as ledger_state
from tallybook.bookie.ledgers.state import Ledger, LedgerRow
from tallybook.core import batch, keys
from tallybook.core.batch import encode_batch, verify_batch
from tallybook.core.errors import InvalidArgument, InvalidBatch
from tallybook.core.keys import SALT_BYTES, _hkdf, digest_key, key_matches, key_verifier, ledger_key, same_secret
from tallybook.core.limits import KEY_BYTES, MAX_PASSWORD_BYTES

from ..support.damage import flips

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("archive", "bookie", "cli", "client", "core", "gateway", "metadata", "offload", "repair", "runtime", "spark",
           "stream")  # fmt: skip
SALT = bytes(range(SALT_BYTES))

# RFC 5869, appendix A, test cases 1 to 3 (SHA-256). We take 32 bytes, which is the first block of their output.
VECTORS = [
    (
        b"\x0b" * 22,
        bytes(range(0x0D)),
        bytes(range(0xF0, 0xFA)),
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf",
    ),
    (
        bytes(range(0x50)),
        bytes(range(0x60, 0xB0)),
        bytes(range(0xB0, 0x100)),
        "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c",
    ),
    (b"\x0b" * 22, b"", b"", "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"),
]


@pytest.mark.parametrize(("secret", "salt", "info", "expected"), VECTORS)
def test_derivation_is_hkdf_as_the_rfc_has_it(secret, salt, info, expected):
    assert _hkdf(secret, salt, info).hex() == expected


def test_the_derived_values_of_one_password_are_frozen():
    # Changing any of these would lock every owner out of the ledgers written before.
    key = ledger_key(b"correct horse", SALT)
    assert key.hex() == "6262e5af9728975e230ef8c4c2e6d8c83e55520fc5c477f1562173dbfb03abf7"
    assert (
        digest_key(b"correct horse", SALT).hex() == "d9fed83d4195a2e4422fda49886b8da4ac0c0d9e9d6d944ba3f0f09999d15695"
    )
    assert key_verifier(key).hex() == "685c48f6a31f38916dd9ef50a429b43b8d6bd42d503207a7a581f850ebbcb840"


def test_the_three_values_are_all_different_and_as_long_as_promised():
    key, digest = ledger_key(b"secret", SALT), digest_key(b"secret", SALT)
    values = {key, digest, key_verifier(key), key_verifier(digest)}
    assert len(values) == 4
    assert {len(value) for value in values} == {KEY_BYTES}


def test_another_password_or_another_salt_gives_other_keys():
    keys = {
        derive(password, salt)
        for derive in (ledger_key, digest_key)
        for password in (b"", b"a", b"a\0", b"b")
        for salt in (SALT, bytes(SALT_BYTES))
    }
    assert len(keys) == 16


def test_only_the_key_itself_fits_its_verifier():
    key = ledger_key(b"secret", SALT)
    verifier = key_verifier(key)
    assert key_matches(key, verifier)
    assert not key_matches(verifier, verifier)
    assert not key_matches(key, b"")
    assert not key_matches(b"", verifier)
    assert not any(key_matches(wrong, verifier) for wrong in flips(key))


@pytest.mark.parametrize("derive", [ledger_key, digest_key])
def test_a_password_may_be_as_long_as_the_limit_and_no_longer(derive):
    derive(bytes(MAX_PASSWORD_BYTES), SALT)
    with pytest.raises(InvalidArgument) as refusal:
        derive(b"hunter2" + bytes(MAX_PASSWORD_BYTES), SALT)
    assert "hunter2" not in str(refusal.value)


def test_what_is_secret_is_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr(keys.hmac, "compare_digest", lambda one, other: compared.append((one, other)) or False)
    verifier = key_verifier(b"k" * KEY_BYTES)
    assert not same_secret(verifier, verifier), "whether it fits is what the comparison says, and nothing else"
    assert not key_matches(b"k" * KEY_BYTES, verifier)
    assert compared == [(verifier, verifier)] * 2


@pytest.mark.parametrize("said", [True, False])
def test_whether_a_key_that_is_shown_again_or_a_digest_fits_is_what_that_comparison_says(monkeypatch, said):
    compared = []
    ledger, key = Ledger(1, LedgerRow(verifier=key_verifier(b"right"))), digest_key(b"secret", SALT)
    sealed = encode_batch(1, 0, [b"x"], lac=-1, ledger_length=1, written_at_us=0, digest_key=key)
    assert ledger.fits(b"right")
    for module in (ledger_state, batch):
        monkeypatch.setattr(module, "same_secret", lambda one, other: compared.append((one, other)) or said)
    for shown in (b"right", b"wrong", b""):
        assert ledger.fits_again(shown) is said
    assert compared == [(shown, b"right") for shown in (b"right", b"wrong", b"")]
    for tried in (key, b"another one"):
        with contextlib.nullcontext() if said else pytest.raises(InvalidBatch, match="digest"):
            verify_batch(sealed, digest_key=tried)


def test_nothing_is_compared_with_what_is_secret_elsewhere():
    places = {
        str(file.relative_to(ROOT))
        for folder in PRODUCT
        for file in (ROOT / folder).rglob("*.py")
        if re.search(r"compare_digest|\bfitting_key\b", file.read_text())
    }
    assert places == {"core/keys.py", "bookie/ledgers/state.py"}

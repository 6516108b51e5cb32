"""Keys: RFC 5869 test vectors, and what each derived value must and must not reveal."""

import pytest

from tallybook.core import keys
from tallybook.core.errors import InvalidArgument
from tallybook.core.keys import SALT_BYTES, _hkdf, digest_key, key_fits, key_verifier, ledger_key
from tallybook.core.limits import KEY_BYTES, MAX_PASSWORD_BYTES

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
    assert key_fits(key, verifier)
    assert not key_fits(verifier, verifier)
    assert not key_fits(key, b"")
    assert not key_fits(b"", verifier)
    for bit in range(8 * KEY_BYTES):
        wrong = bytearray(key)
        wrong[bit // 8] ^= 1 << bit % 8
        assert not key_fits(bytes(wrong), verifier)


@pytest.mark.parametrize("derive", [ledger_key, digest_key])
def test_a_password_may_be_as_long_as_the_limit_and_no_longer(derive):
    derive(bytes(MAX_PASSWORD_BYTES), SALT)
    with pytest.raises(InvalidArgument) as refusal:
        derive(b"hunter2" + bytes(MAX_PASSWORD_BYTES), SALT)
    assert "hunter2" not in str(refusal.value)


def test_keys_are_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr(keys.hmac, "compare_digest", lambda one, other: compared.append((one, other)) or False)
    verifier = key_verifier(b"k" * KEY_BYTES)
    assert not key_fits(b"k" * KEY_BYTES, verifier), "whether it fits is what the comparison says, and nothing else"
    assert compared == [(verifier, verifier)]

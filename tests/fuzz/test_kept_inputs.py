"""All kept fuzz inputs, for every decoder: only documented errors occur."""

from __future__ import annotations

import pytest

from .corpus import FOUND, INPUTS, kept_inputs, read
from .selection import MOST_BYTES
from .targets import TARGETS

MOST_REPOSITORY_BYTES = 2_000_000
"""The maximum size of all inputs in the repository."""


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_unexpected_comes_of_an_input_that_is_kept(name: str):
    target = TARGETS[name]
    for decoder, data in kept_inputs(target):
        try:
            target.run(decoder, data)
        except Exception as error:
            raise AssertionError(f"{decoder} of {data[:200]!r}") from error


@pytest.mark.parametrize("name", TARGETS)
def test_an_input_finds_its_decoder_as_a_fuzzer_hands_it_over(name: str):
    target = TARGETS[name]
    for decoder in target.decoders:
        assert target.taken_apart(target.input_of(decoder, b"data")) == (decoder, b"data")
    target.run_any(b"")


def test_what_is_kept_belongs_to_a_target_and_is_small():
    files = [*INPUTS.glob("*"), *FOUND.glob("*")]
    assert {file.stem for file in files} <= set(TARGETS)
    for file in files:
        target = TARGETS[file.stem]
        assert {decoder for decoder, _ in read(file)} <= set(target.decoders)
    assert all(len(data) <= MOST_BYTES for file in INPUTS.glob("*") for _, data in read(file))
    assert sum(file.stat().st_size for file in files) < MOST_REPOSITORY_BYTES

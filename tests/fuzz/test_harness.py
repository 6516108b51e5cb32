"""The fuzz harness: findings are detected, reported once, and kept; documented errors pass."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tallybook.core.errors import InvalidArgument
from tallybook.stream.position import Position

from . import harness
from .__main__ import noting
from .corpus import add, read, write
from .harness import MOST_MEMORY_BYTES, REFUSED, Finding, Target, attempt, finished, same
from .mutations import DEEP, spoiled, with_crc
from .selection import chosen, steps

A_POSITION = b"3-1842-7@5f0c9a21"


def a_target() -> Target:
    target = Target("some")

    @target.decoder(seeds=lambda: [b"seed"])
    def careless(data: bytes) -> None:
        if data.startswith(b"boom"):
            raise KeyError(data)

    @target.decoder(seeds=lambda: [A_POSITION])
    def careful(data: bytes) -> None:
        attempt(InvalidArgument, Position.parse, data.decode(errors="replace"))

    return target


def test_an_input_that_takes_much_memory_is_a_finding(monkeypatch: pytest.MonkeyPatch):
    # By the highest mark that the process has reached, which other tests may have set high.
    marks = iter([5, 5 + MOST_MEMORY_BYTES, 5, 6 + MOST_MEMORY_BYTES])
    monkeypatch.setattr(harness, "_peak_bytes", lambda: next(marks))
    a_target().run("careless", b"just so")
    with pytest.raises(Finding, match="4 bytes made the process grow by 256 MiB"):
        a_target().run("careless", b"bomb")


def test_the_first_byte_says_for_which_decoder_an_input_is():
    target = a_target()
    assert target.taken_apart(b"\x03x") == ("careful", b"x")
    assert target.taken_apart(target.input_of("careless", b"x")) == ("careless", b"x")
    with pytest.raises(KeyError):
        target.run_any(target.input_of("careless", b"boom"))


def test_only_what_is_promised_passes():
    assert attempt(InvalidArgument, Position.parse, "x") is REFUSED
    assert attempt(InvalidArgument, int, "5") == 5
    with pytest.raises(ValueError, match="invalid literal"):
        attempt(InvalidArgument, int, "x")
    with pytest.raises(Finding, match="a number: 1 became 2"):
        same(1, 2, "a number")


def test_a_decoder_that_waits_is_a_finding():
    async def at_once() -> int:
        return 5

    async def waiting() -> None:
        await asyncio.sleep(1)

    assert finished(at_once()) == 5

    async def looked_at() -> None:
        with pytest.raises(Finding, match="waits for something"):
            finished(waiting())

    asyncio.run(looked_at())


def test_a_search_goes_on_after_a_finding_and_reports_each_once(tmp_path: Path):
    target = a_target()
    run = noting(target.run_any, tmp_path)
    for data in (b"fine", b"boom1", b"boom2"):
        run(target.input_of("careless", data))
    [found] = [file for file in tmp_path.iterdir() if file.suffix != ".txt"]
    assert target.taken_apart(found.read_bytes()) == ("careless", b"boom1")
    assert "KeyError: b'boom1'" in found.with_name(f"{found.name}.txt").read_text()


def test_what_reaches_more_than_smaller_inputs_is_kept():
    target = a_target()
    assert steps(target, "careful", b"x") < steps(target, "careful", b"x") | steps(target, "careful", A_POSITION)
    candidates = [("careful", b"x"), ("careful", b"yy"), ("careful", A_POSITION), ("careful", b"4" + A_POSITION)]
    assert chosen(target, [], candidates) == [("careful", b"x"), ("careful", A_POSITION)]
    assert chosen(target, [("careful", b"z")], candidates) == [("careful", A_POSITION)]


def test_inputs_are_kept_as_lines(tmp_path: Path):
    file = tmp_path / "inputs" / "some.txt"
    assert read(file) == []
    write(file, [("b", b"\xff\n"), ("a", b"")])
    add(file, [("a", b"x"), ("b", b"\xff\n")])
    assert read(file) == [("a", b""), ("a", b"x"), ("b", b"\xff\n")]
    assert file.read_text() == "a \na eA==\nb /wo=\n"


def test_checksums_are_put_right_and_values_made_strange():
    assert with_crc(b"123456789....", 9, (0, 9)) == b"123456789" + (0xE3069283).to_bytes(4, "little")
    assert with_crc(b"12", 9, (0, 9)) == b"12"
    made = list(spoiled(b'{"a": [1]}'))
    assert {b'{"a": [1e999]}', b'{"a": null}', b'{"a": %s}' % (b"[" * DEEP + b"]" * DEEP)} <= set(made)

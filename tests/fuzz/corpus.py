"""Inputs that are kept in the repository: one file a target, one input a line.

    NAME BASE64     a decoder of the target, and the input

``inputs/TARGET.txt`` has what a fuzzer has found to be worth keeping, and is written anew by ``keep``.
``found/TARGET.txt`` has what once broke something, and is only ever added to.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from pathlib import Path

from .harness import Target

HERE = Path(__file__).parent
INPUTS, FOUND = HERE / "inputs", HERE / "found"

Input = tuple[str, bytes]
"""Name of a decoder, and what it is given."""


def kept_inputs(target: Target) -> Iterator[Input]:
    """All inputs of a target: what its encoders make, what was found worth keeping, and what once broke something."""
    for name, decoder in target.decoders.items():
        for data in decoder.seeds():
            yield name, data
    yield from read(INPUTS / f"{target.name}.txt")
    yield from read(FOUND / f"{target.name}.txt")


def read(file: Path) -> list[Input]:
    """The inputs in a file; none where there is no file."""
    if not file.exists():
        return []
    lines = (line.split(" ") for line in file.read_text().splitlines())
    return [(name, base64.b64decode(data, validate=True)) for name, data in lines]


def write(file: Path, inputs: Iterable[Input]) -> None:
    """Make a file of inputs."""
    lines = sorted({f"{name} {base64.b64encode(data).decode()}" for name, data in inputs})
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))


def add(file: Path, found: Iterable[Input]) -> None:
    """Add inputs to a file."""
    write(file, [*read(file), *found])

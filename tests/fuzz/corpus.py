"""Fuzz inputs kept in the repository: one file per target, one input per line.

    NAME BASE64     a decoder of the target, and the input

``inputs/TARGET.txt`` has inputs selected from a fuzzer's corpus, and is rewritten by ``keep``. ``found/TARGET.txt`` has
inputs that once broke something, and only grows.
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
    """All inputs of a target: those of its encoders, those kept, and those that once broke something."""
    for name, decoder in target.decoders.items():
        for data in decoder.seeds():
            yield name, data
    yield from read(INPUTS / f"{target.name}.txt")
    yield from read(FOUND / f"{target.name}.txt")


def read(file: Path) -> list[Input]:
    """The inputs in a file; none if the file does not exist."""
    if not file.exists():
        return []
    lines = (line.split(" ") for line in file.read_text().splitlines())
    return [(name, base64.b64decode(data, validate=True)) for name, data in lines]


def write(file: Path, inputs: Iterable[Input]) -> None:
    """Write a file of inputs."""
    lines = sorted({f"{name} {base64.b64encode(data).decode()}" for name, data in inputs})
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))


def add(file: Path, found: Iterable[Input]) -> None:
    """Add inputs to a file."""
    write(file, [*read(file), *found])

"""Fuzz targets: decoders that belong together, each with inputs made by its encoder.

A check takes any bytes, passes them to a decoder, and returns. It permits the errors that the decoder's docstring
documents for foreign bytes (``attempt``), and examines what was decoded: most often it has to encode to something that
decodes to the same. Any other exception is a finding, and so is an input that takes much memory.

The same function is run by a fuzzer (``__main__``) and by pytest, over all kept inputs (``test_kept_inputs.py``).
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tallybook.core.errors import NewerFormat

T = TypeVar("T")

MOST_MEMORY_BYTES = 256 * 1024 * 1024
"""The largest growth of the process at one input. An index part may have 64 MiB, a body of an envelope 8 MiB."""
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Finding(Exception):
    """A decoder violated its contract."""


@dataclass(frozen=True)
class Decoder:
    """One decoder, or a few that read the same bytes.

    Args:
        covers: functions of the product that it reaches with untrusted bytes, as ``folder/file.py:function``.
        seeds: inputs to begin with.
    """

    name: str
    covers: tuple[str, ...]
    check: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]


@dataclass
class Target:
    """Decoders that are fuzzed together: the first byte of an input says which of them it is for.

    Args:
        words: what a fuzzer does well to put into inputs.
    """

    name: str
    words: tuple[bytes, ...] = ()
    decoders: dict[str, Decoder] = field(default_factory=dict)

    def decoder(
        self, *covers: str, seeds: Callable[[], Iterable[bytes]]
    ) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
        """Make a function the check of a decoder."""

        def add(check: Callable[[bytes], None]) -> Callable[[bytes], None]:
            self.decoders[check.__name__] = Decoder(check.__name__, covers, check, seeds)
            return check

        return add

    def input_of(self, name: str, data: bytes) -> bytes:
        """The fuzzer input that stands for ``data`` of one of the decoders."""
        return bytes([list(self.decoders).index(name)]) + data

    def taken_apart(self, found: bytes) -> tuple[str, bytes]:
        """The inverse of ``input_of``, for any bytes."""
        number = found[0] if found else 0
        return list(self.decoders)[number % len(self.decoders)], found[1:]

    def run(self, name: str, data: bytes) -> None:
        """Check one input.

        Raises:
            Finding: it took too much memory; and all other findings of the check.
        """
        before = _peak_bytes()
        self.decoders[name].check(data)
        grown = _peak_bytes() - before
        if grown > MOST_MEMORY_BYTES:
            raise Finding(f"{name}: {len(data)} bytes made the process grow by {grown >> 20} MiB")

    def run_any(self, found: bytes) -> None:
        """Check one input of the fuzzer."""
        self.run(*self.taken_apart(found))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT


class Refused:
    """The result of a refused decoding."""


REFUSED = Refused()


def attempt(
    promised: type[Exception] | tuple[type[Exception], ...], call: Callable[..., T], *given: Any
) -> T | Refused:
    """Return the result of ``call``, or ``REFUSED`` if it raises a documented error.

    A decoder of a versioned format may always report a newer version.
    """
    try:
        return call(*given)
    except NewerFormat:
        return REFUSED
    except promised:
        return REFUSED


def same(one: object, other: object, what: str) -> None:
    """Compare a value with the result of encoding and decoding it."""
    if one != other:
        raise Finding(f"{what}: {one!r:.500} became {other!r:.500}")


def finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise Finding("a decoder waits for something")

"""What a fuzz target is: decoders that belong together, each with inputs that its encoder has made.

A check takes any bytes, hands them to a decoder, and returns. It lets pass what the decoder's docstring promises for
bytes that are not its own (``attempt``), and looks closer at what was decoded: most often it has to encode to something
that decodes to the same. Whatever else is raised is a finding, and so is an input that takes much memory.

One and the same function is run by a fuzzer (``__main__``) and by pytest, over all inputs that are kept
(``test_kept_inputs.py``).
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
"""That the process may grow by at one input. An index part may have 64 MiB, a body of an envelope 8 MiB."""
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Finding(Exception):
    """A decoder did what it must not do."""


@dataclass(frozen=True)
class Decoder:
    """One decoder, or a few that read the same bytes.

    Args:
        covers: functions of the product that it reaches with bytes of anybody, as ``folder/file.py:function``.
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
        """What a fuzzer is to find in place of ``data`` for one of the decoders."""
        return bytes([list(self.decoders).index(name)]) + data

    def taken_apart(self, found: bytes) -> tuple[str, bytes]:
        """The other way round, for any bytes."""
        number = found[0] if found else 0
        return list(self.decoders)[number % len(self.decoders)], found[1:]

    def run(self, name: str, data: bytes) -> None:
        """Check one input.

        Raises:
            Finding: it took too much memory; and whatever else the check finds.
        """
        before = _peak_bytes()
        self.decoders[name].check(data)
        grown = _peak_bytes() - before
        if grown > MOST_MEMORY_BYTES:
            raise Finding(f"{name}: {len(data)} bytes made the process grow by {grown >> 20} MiB")

    def run_any(self, found: bytes) -> None:
        """Check one input as a fuzzer makes it."""
        self.run(*self.taken_apart(found))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT


class Refused:
    """Stands for what was not decoded."""


REFUSED = Refused()


def attempt(
    promised: type[Exception] | tuple[type[Exception], ...], call: Callable[..., T], *given: Any
) -> T | Refused:
    """What ``call`` returns, or ``REFUSED`` where it raises what it promises to raise.

    Whatever has a format may always say that it is of a newer one.
    """
    try:
        return call(*given)
    except NewerFormat:
        return REFUSED
    except promised:
        return REFUSED


def same(one: object, other: object, what: str) -> None:
    """Hold what comes back after an encoding and a decoding against what went in."""
    if one != other:
        raise Finding(f"{what}: {one!r:.500} became {other!r:.500}")


def finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing but what is there."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise Finding("a decoder waits for something")

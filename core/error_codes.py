"""Error classes by their wire code."""

from __future__ import annotations

from .errors import Busy, Outcome, TallybookError, check


def _leaves(root: type[TallybookError]) -> list[type[TallybookError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _leaves(child))]


_BY_CODE = {error.wire_code: error for error in _leaves(TallybookError)}
check(len(_BY_CODE) == len(_leaves(TallybookError)), "two errors share a wire code")


def error_classes() -> tuple[type[TallybookError], ...]:
    """All classes of the tree, ordered by wire code."""
    return tuple(_BY_CODE[code] for code in sorted(_BY_CODE))


def error_class(wire_code: int) -> type[TallybookError]:
    """The class with this ``wire_code``; ``TallybookError`` for a code of a newer peer."""
    return _BY_CODE.get(wire_code, TallybookError)


def error_from_wire(wire_code: int, message: str, retry_after_ms: int = 0) -> TallybookError:
    """Rebuild the error that a peer reported."""
    found = error_class(wire_code)
    if found is Busy:
        return Busy(message, retry_after_ms=retry_after_ms)
    if found is TallybookError:
        return TallybookError(f"peer reported unknown error {wire_code}: {message}", outcome=Outcome.UNKNOWN)
    return found(message)

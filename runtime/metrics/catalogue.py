"""Catalogues of metrics: what each number is called outside, what kind it is and what it means. Pure.

Parts that count need nothing else; ``metrics`` shows what stands in catalogues to Prometheus.

Every label and every value of it stands in a catalogue, so a process shows as many series as its catalogues have
lines, whatever ledgers, streams and clients it meets: names that users choose are never labels.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from tallybook.core.errors import TallybookError, error_class, error_classes

from .meter import Reading

ERROR_LABEL: Final = "error"


class Kind(Enum):
    """How a number behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricInfo(NamedTuple):
    """One metric: which number it is, its public name, and what it means.

    The name of a counter ends in ``_total``. ``label`` is a name and a value, for numbers that
    share one metric.
    """

    stat: str
    name: str
    kind: Kind
    help: str
    label: tuple[str, str] | None = None


def meter_metrics(
    stat: str, name: str, what: str, *, label: tuple[str, str] | None = None
) -> tuple[MetricInfo, MetricInfo, MetricInfo]:
    """The metrics of a ``Meter``.

    Args:
        what: what is metered, in the plural: "Reads of entry logs".
    """
    return (
        MetricInfo(f"{stat}_seconds", f"{name}_seconds", Kind.HISTOGRAM, f"{what}: how long each took.", label),
        MetricInfo(
            f"{stat}_busy_seconds",
            f"{name}_busy_seconds_total",
            Kind.COUNTER,
            f"{what}: seconds in which any was under way.",
            label,
        ),
        MetricInfo(f"{stat}_under_way", f"{name}_under_way", Kind.GAUGE, f"{what}: under way now.", label),
    )


def error_metrics(stat: str, name: str, text: str) -> tuple[MetricInfo, ...]:
    """A counter for each error of ``core/errors.py``, by the name of its class."""
    return tuple(
        MetricInfo(f"{stat}_{error.__name__}", name, Kind.COUNTER, text, (ERROR_LABEL, error.__name__))
        for error in error_classes()
    )


class ErrorCounts:
    """How often each error was met."""

    def __init__(self) -> None:
        self._counts: dict[type[TallybookError], int] = dict.fromkeys(error_classes(), 0)

    def count(self, wire_code: int) -> None:
        """One more; of a newer peer's errors all that is known is that they are errors."""
        self._counts[error_class(wire_code)] += 1

    def readings(self, stat: str) -> dict[str, Reading]:
        """All of them, named as ``error_metrics`` does."""
        return {f"{stat}_{error.__name__}": count for error, count in self._counts.items()}

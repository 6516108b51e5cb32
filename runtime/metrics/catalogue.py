"""Catalogues of metrics: public name, kind and help text of each number. Pure.

Parts that have metrics need only this module; ``registry`` exports the catalogues to Prometheus.

Label values are in a catalogue, so the number of series of a process is fixed. The exception are metrics with
``labels``, such as the lag of each subscription: the part that has them limits their number.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from tallybook.core.error_codes import error_class, error_classes
from tallybook.core.errors import TallybookError

from .usage import MetricValue

ERROR_LABEL: Final = "error"


class MetricKind(Enum):
    """The Prometheus type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricInfo(NamedTuple):
    """One metric: the key of its number, its public name and its help text.

    The name of a counter ends in ``_total``. ``label`` is a label name and value, for numbers that
    share one metric. ``labels`` are names of labels whose values are known only when the metric is read.
    """

    stat: str
    name: str
    kind: MetricKind
    help: str
    label: tuple[str, str] | None = None
    labels: tuple[str, ...] = ()


def meter_metrics(
    stat: str, name: str, what: str, *, label: tuple[str, str] | None = None
) -> tuple[MetricInfo, MetricInfo, MetricInfo]:
    """The metrics of a ``Meter``.

    Args:
        what: the measured operations, in the plural: "Reads of entry logs".
    """
    return (
        MetricInfo(f"{stat}_seconds", f"{name}_seconds", MetricKind.HISTOGRAM, f"{what}: duration of each.", label),
        MetricInfo(
            f"{stat}_busy_seconds",
            f"{name}_busy_seconds_total",
            MetricKind.COUNTER,
            f"{what}: seconds in which at least one was in progress.",
            label,
        ),
        MetricInfo(f"{stat}_under_way", f"{name}_under_way", MetricKind.GAUGE, f"{what}: in progress now.", label),
    )


def error_metrics(stat: str, name: str, text: str) -> tuple[MetricInfo, ...]:
    """A counter for each error class of ``core/errors.py``, with the class name as label."""
    return tuple(
        MetricInfo(f"{stat}_{error.__name__}", name, MetricKind.COUNTER, text, (ERROR_LABEL, error.__name__))
        for error in error_classes()
    )


class ErrorCounts:
    """Counts errors by class."""

    def __init__(self) -> None:
        self._counts: dict[type[TallybookError], int] = dict.fromkeys(error_classes(), 0)

    def count(self, wire_code: int) -> None:
        """Count an error by its wire code. Unknown codes of a newer peer count for the base class."""
        self._counts[error_class(wire_code)] += 1

    def count_of(self, error: type[TallybookError]) -> int:
        """How often exactly this class was counted."""
        return self._counts[error]

    def readings(self, stat: str) -> dict[str, MetricValue]:
        """The counters, named as in ``error_metrics``."""
        return {f"{stat}_{error.__name__}": count for error, count in self._counts.items()}

"""Catalogs of metrics: public name, kind and help text of each number. Pure.

Parts that have metrics need only this module; ``registry`` exports the catalogs to Prometheus.

Label values are in a catalog, so the number of series of a process is fixed. The exception are metrics with
``labels``, such as the lag of each subscription: the part that has them limits their number.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from tallybook.core.error_codes import error_class, error_classes
from tallybook.core.errors import TallybookError

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

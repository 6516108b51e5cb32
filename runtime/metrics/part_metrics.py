"""Declares the metrics of a part beside the part: public name, help text, and how the value is read.

    METRICS: Final = (
        PartMetrics[ReadPath]()
        .counter("cached_total", "tallybook_bookie_cached_total", "Batches in memory.", lambda reads: reads.cached)
        .meter("reads", "tallybook_bookie_read", "Reads from memory and disk", lambda reads: reads.meter)
    )

The whole combines the metrics of its parts with ``of``. Catalog and values come from the same declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from tallybook.core.error_codes import error_classes

from .catalog import ERROR_LABEL, ErrorCounts, MetricInfo, MetricKind
from .histogram import Histogram
from .usage import Meter, MetricValue

P = TypeVar("P")
Q = TypeVar("Q")
V = TypeVar("V")

Label: TypeAlias = tuple[str, str] | None


class _Metric(NamedTuple, Generic[P]):
    info: MetricInfo
    read: Callable[[P], MetricValue | None]

    def of(self, part: Callable[[Q], P | None]) -> _Metric[Q]:
        """The metric of a whole that has the part, or may have it."""

        def read(whole: Q) -> MetricValue | None:
            found = part(whole)
            return None if found is None else self.read(found)

        return _Metric(self.info, read)


class PartMetrics(Generic[P]):
    """The metrics of a part of type ``P``. Every method returns a longer set.

    In all of them, ``stat`` is the key of the value in ``readings``, and ``read`` gets the value from the part, or
    ``None`` if this one does not have it.
    """

    def __init__(self, metrics: Iterable[_Metric[P]] = ()) -> None:
        self._metrics = tuple(metrics)
        self.catalog = tuple(metric.info for metric in self._metrics)
        """For ``registry.Metrics.add``, with ``readings``."""

    def counter(
        self, stat: str, name: str, text: str, read: Callable[[P], float | None], label: Label = None
    ) -> PartMetrics[P]:
        """Add a counter."""
        return self._with(_Metric(MetricInfo(stat, name, MetricKind.COUNTER, text, label), read))

    def gauge(
        self, stat: str, name: str, text: str, read: Callable[[P], float | None], label: Label = None
    ) -> PartMetrics[P]:
        """Add a gauge."""
        return self._with(_Metric(MetricInfo(stat, name, MetricKind.GAUGE, text, label), read))

    def histogram(self, stat: str, name: str, text: str, read: Callable[[P], Histogram]) -> PartMetrics[P]:
        """Add a histogram."""
        return self._with(_Metric(MetricInfo(stat, name, MetricKind.HISTOGRAM, text), read))

    def each(
        self,
        kind: MetricKind,
        stat: str,
        name: str,
        text: str,
        label: str,
        values: Iterable[str],
        read: Callable[[P, str], MetricValue | None],
    ) -> PartMetrics[P]:
        """Add a metric with one label, one line for each of its values, which replaces ``{}`` in ``stat``."""
        return self._with(
            *(
                _Metric(
                    MetricInfo(stat.format(value.replace(" ", "_")), name, kind, text, (label, value)),
                    partial(_read_value, read, value),
                )
                for value in values
            )
        )

    def meter(self, stat: str, name: str, what: str, read: Callable[[P], Meter]) -> PartMetrics[P]:
        """Add the three metrics of a ``Meter``.

        Args:
            what: the measured operations, in the plural: "Reads of entry logs".
        """
        return (
            self.histogram(
                f"{stat}_seconds", f"{name}_seconds", f"{what}: duration of each.", lambda part: read(part).seconds
            )
            .counter(
                f"{stat}_busy_seconds",
                f"{name}_busy_seconds_total",
                f"{what}: seconds in which at least one was in progress.",
                lambda part: read(part).in_flight.seconds,
            )
            .gauge(
                f"{stat}_under_way",
                f"{name}_under_way",
                f"{what}: in progress now.",
                lambda part: read(part).in_flight.count,
            )
        )

    def errors(self, stat: str, name: str, text: str, read: Callable[[P], ErrorCounts]) -> PartMetrics[P]:
        """Add a counter for each error class of ``core/errors.py``, with the class name as label."""
        classes = {error.__name__: error for error in error_classes()}
        return self.each(
            MetricKind.COUNTER,
            f"{stat}_{{}}",
            name,
            text,
            ERROR_LABEL,
            classes,
            lambda part, error: read(part).count_of(classes[error]),
        )

    def of(self, metrics: PartMetrics[Q], part: Callable[[P], Q | None]) -> PartMetrics[P]:
        """Add the metrics of ``part``, which returns ``None`` if this one does not have it."""
        return self._with(*(metric.of(part) for metric in metrics._metrics))

    def readings(self, part: P) -> dict[str, MetricValue]:
        """All values, for ``registry.Metrics.add``."""
        found = ((metric.info.stat, metric.read(part)) for metric in self._metrics)
        return {stat: value for stat, value in found if value is not None}

    def numbers(self, part: P) -> dict[str, float]:
        """All values but histograms."""
        found = ((m.info.stat, m.read(part)) for m in self._metrics if m.info.kind is not MetricKind.HISTOGRAM)
        return {stat: value for stat, value in found if isinstance(value, int | float)}

    def _with(self, *metrics: _Metric[P]) -> PartMetrics[P]:
        return PartMetrics((*self._metrics, *metrics))


def _read_value(read: Callable[[P, V], MetricValue | None], value: V, part: P) -> MetricValue | None:
    return read(part, value)

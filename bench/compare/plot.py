"""Plot of a comparison: ratios to the peer's rates, and latencies side by side.

matplotlib is a development dependency, so it is imported only here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from tallybook.cli.measure.latency import median

from ..gates import BOOKKEEPER, TALLYBOOK, Gate, Measurement, judge
from .gates import GATES

COLOURS: Final = {BOOKKEEPER: "#9a9a9a", TALLYBOOK: "#1f6f8b"}
NAMES: Final = {BOOKKEEPER: "Apache BookKeeper", TALLYBOOK: "Tallybook"}

RATES: Final = {
    "adds-100B": "adds\n100 B",
    "adds-1KiB": "adds\n1 KiB",
    "adds-1KiB-w1000": "adds 1 KiB,\nwindow 1,000",
    "adds-4KiB": "adds\n4 KiB",
    "adds-64KiB": "adds\n64 KiB",
    "reads": "reads\n1 KiB",
}
LATENCIES: Final = {
    "alone": "one at\na time",
    **{f"open-{percent}": f"{percent} % of\nthe peak" for percent in (25, 50, 75)},
}


def compared(names: Collection[str], measurements: Sequence[Measurement], *, rates: bool) -> list[Gate]:
    """The gates on these workloads that compare rates or latencies of both systems, and have figures."""
    chosen = [gate for gate in GATES if gate.ratio and gate.workload in names and gate.at_least is rates]
    return [gate for gate in chosen if judge(gate, measurements).pairs]


def draw(measurements: Sequence[Measurement], path: Path) -> bool:
    """Plot the results of both systems to ``path``; ``False``: there are none, or matplotlib is missing."""
    rates, latencies = (compared(names, measurements, rates=names is RATES) for names in (RATES, LATENCIES))
    try:
        import matplotlib as mpl  # noqa: PLC0415

        mpl.use("Agg")
        from matplotlib import pyplot as plt  # noqa: PLC0415
    except ImportError:
        return False
    if not rates and not latencies:
        return False
    figure, (left, right) = plt.subplots(1, 2, figsize=(14, 4), width_ratios=(6, 8))
    _ratios(left, rates, measurements)
    _latencies(right, latencies, measurements)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return True


def _ratios(axes: Any, gates: Sequence[Gate], measurements: Sequence[Measurement]) -> None:
    """A bar per ratio with its two rates; a dash marks the bound of the gate."""
    for place, gate in enumerate(gates):
        verdict = judge(gate, measurements)
        ratio = verdict.value or 0.0
        ours = median([pair.ours for pair in verdict.pairs])
        theirs = median([pair.peer for pair in verdict.pairs])
        axes.bar(place, ratio, 0.6, color=COLOURS[TALLYBOOK])
        axes.hlines(gate.bound, place - 0.36, place + 0.36, color="black", linewidth=1.2)
        text = f"{ratio:.1f}x\n{ours:,.0f}\n: {theirs:,.0f}"
        axes.annotate(text, (place, max(ratio, gate.bound)), ha="center", va="bottom", fontsize=8)
    axes.axhline(1, color=COLOURS[BOOKKEEPER], linewidth=1, linestyle="--")
    axes.set_xticks(range(len(gates)), [RATES[gate.workload] for gate in gates], fontsize=8)
    axes.margins(y=0.2)
    _finish(axes, f"entries a second: {NAMES[TALLYBOOK]} : {NAMES[BOOKKEEPER]}")


def _latencies(axes: Any, gates: Sequence[Gate], measurements: Sequence[Measurement]) -> None:
    for place, gate in enumerate(gates):
        pairs = judge(gate, measurements).pairs
        values = {BOOKKEEPER: median([pair.peer for pair in pairs]), TALLYBOOK: median([pair.ours for pair in pairs])}
        for side, (system, value) in enumerate(values.items()):
            label = NAMES[system] if not place else None
            at = place + (side - 0.5) * 0.4
            axes.bar(at, value, 0.38, color=COLOURS[system], label=label)
            axes.annotate(f"{value:.1f}", (at, value), ha="center", va="bottom", fontsize=8)
    names = [f"{LATENCIES[gate.workload]}\n{gate.what}" for gate in gates]
    axes.set_xticks(range(len(gates)), names, fontsize=8)
    # Logarithmic: one entry at a time and a loaded system differ by two orders of magnitude.
    axes.set_yscale("log")
    axes.margins(y=0.2)
    if gates:
        axes.legend(frameon=False, fontsize=8)
    _finish(axes, "latency of an add, ms (logarithmic)")


def _finish(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)

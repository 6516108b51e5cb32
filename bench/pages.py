"""Pages of benchmarks that have gates of their own: verdicts in words, results kept, a page in docs/."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from .gates import Figures, Gate
from .report import table


def least(figure: str, bound: float, what: str, part: str) -> Gate:
    """A figure that must not be lower.

    Args:
        part: what may be switched off, and this gate with it.
    """
    return Gate(part, figure, bound, at_least=True, ratio=False, what=what)


def most(figure: str, bound: float, what: str, part: str) -> Gate:
    """A figure that must not be higher; ``part`` as for ``least``."""
    return Gate(part, figure, bound, at_least=False, ratio=False, what=what)


def verdict(gate: Gate, figures: Figures) -> str:
    """A gate's verdict in words."""
    value = figures.get(gate.figure)
    if value is None:
        return f"MISSING           {gate.wanted:<7}  {gate.what}"
    return f"{'met    ' if gate.met_by(value) else 'NOT MET'}  {value:>8g}  {gate.wanted:<7}  {gate.what}"


def keep_results(path: Path, machine: Mapping[str, str], sizes: Mapping[str, int], figures: Figures) -> None:
    """Write the figures for whoever wants to compare runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    results = {"machine": dict(machine), "sizes": dict(sizes), "figures": dict(figures)}
    path.write_text(json.dumps(results, indent=2) + "\n")


def write_page(
    page: Path,
    head: str,
    gates: Sequence[Gate],
    machine: Mapping[str, str],
    sizes: Mapping[str, int],
    figures: Figures,
) -> Path:
    """Write the page; return where it is.

    Args:
        head: its title and what there is to say before the figures.
    """
    verdicts = [(gate, figures[gate.figure]) for gate in gates if gate.figure in figures]
    rows = [
        (gate.what, gate.wanted, f"**{value:g}**", "yes" if gate.met_by(value) else "**no**")
        for gate, value in verdicts
    ]
    parts = [
        head,
        table(("machine", ""), list(machine.items())),
        table(("size", ""), [(name.replace("_", " "), f"{value:,}") for name, value in sizes.items()]),
        "## Gates\n",
        table(("gate", "wanted", "measured", "met"), rows),
        "## Figures\n",
        table(("figure", "value"), [(f"`{name}`", f"{value:g}") for name, value in figures.items()]),
    ]
    page.write_text("\n".join(parts))
    return page

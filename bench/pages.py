"""Common parts of benchmarks with gates and a page: options, verdicts as text, results, and the page in docs/."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from tallybook.core.errors import InvalidArgument

from .compare.report import SHORT, table
from .equipment.programs import print_json_line
from .gates import Figures, Gate

RESULTS: Final = Path(__file__).resolve().parent / "results"
DOCS: Final = RESULTS.parent.parent / "docs" / "project"

Earlier: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--with", metavar="FILE", help="Results of an earlier run, for the parts that this one leaves out."),
]
ReportOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Write a page there; refused for docs/project/ if the run is shorter than the default."
    ),
]


def only_option(parts: Sequence[str]) -> Any:
    """The option that selects parts."""
    return typer.Option(metavar="PART[,PART...]", help=f"Parts: {', '.join(parts)}.")


def wanted_parts(only: str, parts: Sequence[str]) -> list[str]:
    """The parts that ``--only`` names, or all.

    Raises:
        typer.BadParameter: there is no such part.
    """
    wanted = only.split(",") if only else list(parts)
    if unknown := set(wanted) - set(parts):
        raise typer.BadParameter(f"no such part: {', '.join(sorted(unknown))}")
    return wanted


def read_results(earlier: Iterable[Path] | None) -> list[PageResults]:
    """Results in the files that ``--with`` names.

    Raises:
        typer.BadParameter: a file has no valid results.
    """
    try:
        return [PageResults.load(path) for path in earlier or ()]
    except InvalidArgument as error:
        raise typer.BadParameter(error.message) from error


def admit(report: Path | None, sizes: Mapping[str, float], minimum: Mapping[str, float], *, whole: bool = True) -> None:
    """Refuse a page for docs/project/ with a size below ``minimum``: it would replace a better one.

    Elsewhere such a page is marked as short.

    Args:
        whole: the run has all parts of the page, or takes the others from an earlier run.

    Raises:
        typer.BadParameter: a size is too small, or a part is missing.
    """
    if report is None or report.resolve() != DOCS:
        return
    if not whole:
        raise typer.BadParameter("docs/project/ takes pages with all parts: write this one to another directory")
    if _short(sizes, minimum):
        wanted = ", ".join(f"{bound:g} {name.replace('_', ' ')}" for name, bound in minimum.items())
        raise typer.BadParameter(f"docs/project/ takes pages of at least {wanted}: write this one to another directory")


def _short(sizes: Mapping[str, float], minimum: Mapping[str, float]) -> bool:
    return any(sizes[name] < bound for name, bound in minimum.items())


def lower_bound(figure: str, bound: float, what: str, part: str) -> Gate:
    """A gate with a lower bound.

    Args:
        part: the part of the benchmark, which an option can switch off.
    """
    return Gate(part, figure, bound, at_least=True, ratio=False, what=what)


def upper_bound(figure: str, bound: float, what: str, part: str) -> Gate:
    """A gate with an upper bound; ``part`` as for ``lower_bound``."""
    return Gate(part, figure, bound, at_least=False, ratio=False, what=what)


def verdict(gate: Gate, figures: Figures) -> str:
    """The verdict of a gate as text."""
    value = figures.get(gate.figure)
    if value is None:
        return f"MISSING           {gate.wanted:<7}  {gate.what}"
    return f"{'met    ' if gate.met_by(value) else 'NOT MET'}  {value:>8g}  {gate.wanted:<7}  {gate.what}"


def figure_list(figures: Figures) -> list[str]:
    """A section with all figures by name."""
    rows = [(f"`{name}`", f"{value:g}") for name, value in figures.items()]
    return ["## Figures\n", table(("figure", "value"), rows)]


@dataclass(frozen=True, slots=True)
class Topic:
    """A benchmark.

    Args:
        name: name of its page, ``benchmarks-NAME.md``, and of its results.
        head: title and introduction of the page.
        minimum: sizes below which a run is marked as short.
        sections: renders the figures; default: one list of them.
    """

    name: str
    head: str
    gates: Sequence[Gate]
    minimum: Mapping[str, float]
    sections: Callable[[Figures], Sequence[str]] = figure_list


def conclude(
    topic: Topic,
    machine: Mapping[str, str],
    sizes: Mapping[str, int],
    figures: Figures,
    *,
    off: Collection[str] = (),
    earlier: Iterable[PageResults] = (),
    report: Path | None = None,
) -> int:
    """Print the figures in one line of JSON, judge the gates, and keep the results.

    Args:
        off: parts that were not measured; their gates are skipped.
        earlier: results of earlier runs, for the page.
        report: directory for the page; ``None``: no page.

    Returns:
        The exit code: 0 if all measured gates are met.
    """
    print_json_line(figures)
    lines = [verdict(gate, figures) for gate in topic.gates if gate.workload not in off]
    print("\n".join(lines))
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")
    keep_results(RESULTS / when / f"{topic.name}.json", machine, sizes, figures)
    if report is not None:
        machine_facts, all_figures = with_earlier(machine, sizes, figures, topic.gates, earlier)
        page = report / f"benchmarks-{topic.name}.md"
        page.write_text(render_topic(topic, machine_facts, sizes, all_figures))
        print(f"written: {page}")
    return 0 if all(line.startswith("met") for line in lines) else 1


def keep_results(path: Path, machine: Mapping[str, str], sizes: Mapping[str, int], figures: Figures) -> None:
    """Write the figures to a file, to compare runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    results = {"machine": dict(machine), "sizes": dict(sizes), "figures": dict(figures)}
    path.write_text(json.dumps(results, indent=2) + "\n")


@dataclass(frozen=True, slots=True)
class PageResults:
    """Results written by ``keep_results``."""

    machine: Mapping[str, str]
    sizes: Mapping[str, int]
    figures: Figures

    @classmethod
    def load(cls, path: Path) -> PageResults:
        """Read results from a file.

        Raises:
            InvalidArgument: it cannot be read, or has no valid results.
        """
        try:
            found = json.loads(path.read_text())
            machine = {name: str(found["machine"][name]) for name in ("date", "tallybook")}
            return cls(machine, dict(found["sizes"]), dict(found["figures"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(f"{path} has no results of a benchmark: {error!r}") from error


def with_earlier(
    machine: Mapping[str, str],
    sizes: Mapping[str, int],
    figures: Figures,
    gates: Sequence[Gate],
    earlier: Iterable[PageResults],
) -> tuple[dict[str, str], Figures]:
    """Add results of earlier runs for parts that this run has not measured, with their date and machine.

    If several runs have measured a part, this run wins, else the earlier run named last.
    """
    machine_facts, all_figures = dict(machine), dict(figures)
    part_of = {gate.figure: gate.workload for gate in gates}
    taken = _parts(gates, figures)
    for results in reversed(list(earlier)):
        new = _parts(gates, results.figures) - taken
        if not new:
            continue
        for name, value in results.figures.items():
            if part_of.get(name) not in taken:
                all_figures.setdefault(name, value)
        taken |= new
        other = [
            f"{name.replace('_', ' ')} {value:,}" for name, value in results.sizes.items() if sizes.get(name) != value
        ]
        machine_facts[f"measured before: {', '.join(sorted(new))}"] = ", ".join(
            [results.machine["date"], results.machine["tallybook"], *other]
        )
    return machine_facts, all_figures


def _parts(gates: Sequence[Gate], figures: Figures) -> set[str]:
    return {gate.workload for gate in gates if gate.figure in figures}


def render_topic(topic: Topic, machine: Mapping[str, str], sizes: Mapping[str, int], figures: Figures) -> str:
    """The page of a topic."""
    rows = [_row(gate, figures.get(gate.figure)) for gate in topic.gates]
    gates = ["## Gates\n", table(("gate", "wanted", "measured", "met"), rows)] if rows else []
    parts = [
        topic.head,
        *([SHORT] if _short(sizes, topic.minimum) else []),
        table(("machine", ""), list(machine.items())),
        table(("size", ""), [(name.replace("_", " "), f"{value:,}") for name, value in sizes.items()]),
        *gates,
        *topic.sections(figures),
    ]
    return "\n".join(parts)


def _row(gate: Gate, value: float | None) -> tuple[str, str, str, str]:
    """The row of a gate on the page, also of a gate that was not measured."""
    if value is None:
        return gate.what, gate.wanted, "not measured", "-"
    return gate.what, gate.wanted, f"**{value:g}**", "yes" if gate.met_by(value) else "**no**"

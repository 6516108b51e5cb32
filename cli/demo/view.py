"""Output of the demo: steps, a rate line, and tables.

On a terminal the rate line is redrawn; elsewhere it is one plain line per second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, TextIO

from rich.console import Console
from rich.table import Table

from tallybook.runtime.clock import Clock

from ..progress import human_bytes

_BAR: Final = 28
_RATE_SECONDS: Final = 0.5
_REDRAW_SECONDS: Final = 0.08
_PLAIN_SECONDS: Final = 1.0


class DemoOutput:
    """Prints the output of the demo.

    Args:
        out: the stream to print to.
    """

    def __init__(self, clock: Clock, out: TextIO) -> None:
        self._clock = clock
        self._started = clock.monotonic()
        self._out = out
        self._terminal = out.isatty()
        self._console = Console(file=out, highlight=False, width=None if self._terminal else 110)
        self._points: deque[tuple[float, int]] = deque()
        self._next_draw = 0.0
        self._drawn = False

    def headline(self, text: str) -> None:
        """Print the title."""
        self._console.print(f"[bold]{text}[/bold]\n")

    def step(self, text: str) -> None:
        """Print a step that is done."""
        self._line("[green]done[/green] ", text)

    def detail(self, text: str) -> None:
        """Print a detail of the last step."""
        self._console.print(f"        {text}")

    def event(self, text: str) -> None:
        """Print a failure that the demo has caused."""
        self._line("[yellow]crash[/yellow]", text)

    def problem(self, text: str) -> None:
        """Print a failed comparison."""
        self._line("[bold red]wrong[/bold red]", text)

    def skipped(self, text: str) -> None:
        """Print a step that is skipped."""
        self._line("[dim]left[/dim] ", text)

    def part(self, text: str) -> None:
        """Print the title of a part."""
        self._console.print(f"\n[bold]{text}[/bold]\n")

    def waiting(self, text: str) -> None:
        """Show, on a terminal, that something takes a while."""
        if self._terminal:
            self._console.print(f"        [dim]{text} ...[/dim]", end="")
            self._drawn = True

    def rate(self, entries: int, total: int, size: int | None, note: str) -> None:
        """Show the rate line: ``entries`` of ``total`` are acknowledged, ``size`` bytes."""
        now = self._clock.monotonic()
        self._points.append((now, entries))
        while len(self._points) > 2 and self._points[0][0] < now - _RATE_SECONDS:
            self._points.popleft()
        if now < self._next_draw:
            return
        self._next_draw = now + (_REDRAW_SECONDS if self._terminal else _PLAIN_SECONDS)
        (before, first), (after, last) = self._points[0], self._points[-1]
        per_second = (last - first) / (after - before) if after > before else 0.0
        bytes_so_far = "" if size is None else f"{human_bytes(size):>8}  "
        text = f"{entries:>9,} flights  {bytes_so_far}{per_second:>9,.0f}/s  {note}"
        if self._terminal:
            filled = round(_BAR * entries / total)
            bar = "[cyan]" + "━" * filled + "[/cyan][dim]" + "━" * (_BAR - filled) + "[/dim]"
            self._erase()
            self._console.print(f"        {bar} {text}", end="", no_wrap=True, overflow="crop")
            self._drawn = True
        else:
            self._console.print(f"        {text}")

    def end_of_rate(self) -> None:
        """Remove the rate line and reset the rate."""
        self._erase()
        self._points.clear()
        self._next_draw = 0.0

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table. The first column is text, the others are numbers."""
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2))
        for position, column in enumerate(columns):
            table.add_column(column, justify="right" if position else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self._console.print()
        self._console.print(table)

    def verdict(self, text: str, *, good: bool) -> None:
        """Print the last line."""
        style = "bold green" if good else "bold red"
        self._console.print(f"\n[{style}]{text}[/{style}]")

    def _line(self, mark: str, text: str) -> None:
        self._erase()
        elapsed = self._clock.monotonic() - self._started
        self._console.print(f"[dim]{elapsed:5.1f} s[/dim] {mark} {text}")

    def _erase(self) -> None:
        if self._drawn:
            self._out.write("\r\x1b[2K")
            self._out.flush()
            self._drawn = False

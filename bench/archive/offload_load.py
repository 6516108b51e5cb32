"""Archives ledgers in a separate process, so that its memory is that of archiving only.

python -m tallybook.bench.archive.offload_load --metadata URI --archive DIRECTORY --warm-up N --ledger M
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from tallybook.runtime.tuning import tune_process

from ..equipment.programs import print_json_line


def main(
    metadata: Annotated[str, typer.Option(help="URI of the metadata store.")],
    archive: Annotated[Path, typer.Option(help="Directory of the archive.")],
    ledger: Annotated[list[int], typer.Option(help="A closed ledger; several times for several.")],
    warm_up: Annotated[int, typer.Option(help="A small closed ledger, which is archived first.")],
    only: Annotated[bool, typer.Option("--only", help="Archive, and measure nothing beside it.")] = False,
) -> None:
    """Archive ledgers, and print the figures."""
    tune_process()
    # Imported late: the Parquet library selects its memory allocator when it is loaded.
    from .offload_turns import measure_offload  # noqa: PLC0415

    print_json_line(asyncio.run(measure_offload(metadata, archive, warm_up, ledger, beside=not only)))


if __name__ == "__main__":
    typer.run(main)

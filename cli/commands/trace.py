"""``tallybook trace``: shows where every copy of one entry is stored, and whether it is intact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from ..cluster_client import cluster
from ..exits import Exit, reading_only
from ..options import Json, LedgerId, Metadata
from ..output import ResultFields, print_json, print_rows
from ..running import run

if TYPE_CHECKING:
    from tallybook.repair.status.entry_trace import ArchiveCopy, BookieCopy, EntryTrace

_COLUMNS: Final = ("copy", "alive", "verdict", "batch", "checksum", "where")


def trace(
    metadata: Metadata,
    ledger: LedgerId,
    entry: Annotated[int, typer.Argument(metavar="ENTRY", help="Id of the entry.", min=0)],
    as_json: Json = False,
) -> None:
    """Show every copy of one entry: which bookies have it, where it is stored, and its checksum.

    Every bookie of the entry's write set reads its copy from disk, and the archive's copy is read, if there is one.
    Exit code 1 if a copy that should exist is not intact, or if two copies differ.
    """
    with reading_only():
        found = run(_trace(metadata, ledger, entry))
    if as_json:
        from tallybook.repair.status.report import trace_json  # noqa: PLC0415

        print_json(trace_json(found))
    else:
        print_rows(rows(found), _COLUMNS, as_json=False)
        print()
        print("\n".join(f"wrong: {problem}" for problem in found.problems) or verdict(found))
    if found.problems:
        raise typer.Exit(Exit.FOUND_WRONG)


async def _trace(metadata: str, ledger_id: int, entry_id: int) -> EntryTrace:
    # Imported here because it takes long to load.
    from tallybook.repair.status.entry_trace import trace_entry  # noqa: PLC0415

    async with cluster(metadata) as client:
        return await trace_entry(client.world, ledger_id, entry_id)


def verdict(found: EntryTrace) -> str:
    """The sentence for a trace without problems."""
    places = f"{found.intact} bookies" if found.intact else "no bookie"
    archive = " and the archive" if found.archive is not None else ""
    return f"{places}{archive} have the same intact copy of entry {found.entry_id}"


def rows(found: EntryTrace) -> list[ResultFields]:
    """The copies as rows of a table."""
    lines: list[ResultFields] = [_row(copy) for copy in found.copies]
    if found.archive is not None:
        lines.append(_archive_row(found.archive))
    return lines


def _row(copy: BookieCopy) -> ResultFields:
    traced = copy.trace
    where = [f"{place.where}: {place.detail} ({place.size:,} bytes)" for place in traced.places] if traced else []
    return {
        "copy": copy.bookie_id,
        "alive": copy.alive,
        "verdict": copy.verdict,
        "batch": None if traced is None else _batch(traced.first_entry_id, traced.last_entry_id),
        "checksum": None if traced is None or not traced.batch_crc else f"{traced.batch_crc:08x}",
        "where": "; ".join([*where, *([copy.why] if copy.why else [])]),
    }


def _archive_row(copy: ArchiveCopy) -> ResultFields:
    place = copy.place
    where = [copy.object_key]
    if place is not None:
        where.append(
            f"row group {place.row_group} page {place.page} offset {place.page_offset} ({place.page_bytes:,} bytes)"
        )
    return {
        "copy": "archive",
        "alive": None,
        "verdict": copy.verdict,
        "batch": None if place is None else _batch(place.first_entry_id, place.last_entry_id),
        "checksum": None if place is None else f"{place.batch_crc:08x}",
        "where": "; ".join([*where, *([copy.why] if copy.why else [])]),
    }


def _batch(first: int, last: int) -> str | None:
    return None if last < first or first < 0 else f"{first} .. {last}"

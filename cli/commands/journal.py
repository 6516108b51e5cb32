"""``tallybook journal``: prints and verifies the journals of a stopped bookie."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from tallybook.bookie.journal.inspect import (
    BlockView,
    JournalView,
    RecordView,
    every_block,
    inspect_journal,
    live_blocks,
)
from tallybook.core.errors import NewerFormat
from tallybook.runtime.disk.port import Disk

from ..exits import Exit, refuse_later_formats
from ..offline import DirectoryArgument, stopped
from ..options import Json
from ..output import ResultFields, print_json, print_record
from ..running import run

app = typer.Typer(help="Inspect the journal of a stopped bookie.")

_LISTS = ("damage", "later_format")


@app.command()
def dump(
    directory: DirectoryArgument,
    everything: Annotated[
        bool, typer.Option("--all", help="Also print checkpointed blocks that are still in the files.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the records that the next start would replay, in order; several journals one after the other.

    Exit code 6 if some of them have a later format. Of a journal that has a later format itself, no records are shown.
    """

    async def work() -> list[str]:
        later = []
        async with stopped(directory, "journal") as (disk, paths):
            for path in paths:
                try:
                    view = await inspect_journal(disk, path)
                except NewerFormat as error:
                    later.append(error.message)
                    continue
                async for block in every_block(disk, view) if everything else live_blocks(disk, view):
                    later += _later_formats(block)
                    for line in _lines(block, as_json):
                        print(line)
        return later

    refuse_later_formats(run(work()))


@app.command()
def verify(directory: DirectoryArgument, as_json: Json = False) -> None:
    """Check every record that the next start would replay. Exit code 1 if anything is damaged.

    Each journal has a result of its own; with --json they are the list "journals". Data of a later format is listed
    separately from damage; if that is all that was found, the exit code is 6.
    """
    results = run(_verify(directory))
    if as_json:
        print_json({"journals": results})
    else:
        for result in results:
            print_record({name: value for name, value in result.items() if name not in _LISTS}, as_json=False)
            for found in _list(result["damage"]):
                print(f"damaged: {found}")
            for found in _list(result["later_format"]):
                print(f"of a later format: {found}")
    if any(result["damage"] for result in results):
        raise typer.Exit(Exit.FOUND_WRONG)
    refuse_later_formats([str(found) for result in results for found in _list(result["later_format"])])


async def _verify(directory: Path) -> list[dict[str, object]]:
    async with stopped(directory, "journal") as (disk, paths):
        return [await _verify_one(disk, path) for path in paths]


async def _verify_one(disk: Disk, path: str) -> dict[str, object]:
    blocks = records = size = 0
    try:
        view = await inspect_journal(disk, path)
    except NewerFormat as error:
        return {"directory": path, "damage": [], "later_format": [error.message]}
    damage, later = [str(found) for found in view.damage], list[str]()
    async for block in live_blocks(disk, view):
        blocks, records, size = blocks + 1, records + len(block.records), size + block.size_bytes
        damage += _problems(block)
        later += _later_formats(block)
    live = {"live_blocks": blocks, "live_records": records, "live_bytes": size}
    return {**_summary(view), **live, "damage": damage, "later_format": later}


def _summary(view: JournalView) -> ResultFields:
    facts = view.facts
    return {
        "directory": view.directory,
        "boot": facts.boot,
        "stopped_cleanly": facts.clean,
        "segments": facts.geometry.segment_count,
        "segment_bytes": facts.geometry.segment_bytes,
        "checkpointed_up_to": {"segment": facts.trim.segment, "block": facts.trim.block},
        "last_block": {"segment": view.end.segment, "block": view.end.block},
    }


def _problems(block: BlockView) -> Iterator[str]:
    place = f"{block.path} at {block.offset}"
    if block.problem:
        yield f"{place}: {block.problem}"
    for record in block.records:
        if record.problem:
            yield f"{place}: {record.kind}: {record.problem}"


def _later_formats(block: BlockView) -> Iterator[str]:
    place = f"{block.path} at {block.offset}"
    if block.later_format:
        yield f"{place}: {block.later_format}"
    for record in block.records:
        if record.later_format:
            yield f"{place}: {record.kind}: {record.later_format}"


def _lines(block: BlockView, as_json: bool) -> Iterator[str]:
    """One line for each record of a block, or one line for a block without records."""
    name = Path(block.path).name
    place: dict[str, object] = {"segment": name, "offset": block.offset, "block": block.mark.block}
    problem = block.problem or block.later_format
    if problem or not block.records:
        kind = "damaged" if block.problem else "later format" if block.later_format else "seal"
        line: dict[str, object] = {**place, "kind": kind, "problem": problem}
        yield json.dumps(line) if as_json else f"{name}@{block.offset} block {block.mark.block}: {kind} {problem}"
    for record in block.records:
        if as_json:
            yield json.dumps({**place, **_fields(record)})
        else:
            facts = " ".join(f"{key}={value}" for key, value in _fields(record).items() if key != "kind")
            yield f"{name}@{block.offset} block {block.mark.block}: {record.kind} {facts}"


def _fields(record: RecordView) -> dict[str, object]:
    """The fields of a record."""
    fields: dict[str, object] = {"kind": record.kind, "ledger_id": record.ledger_id}
    if record.first_entry_id is not None:
        fields |= {"first_entry_id": record.first_entry_id, "last_entry_id": record.last_entry_id}
        fields |= {"bytes": record.size_bytes, "recovery": record.recovery}
    if record.lac is not None:
        fields["lac"] = record.lac
    if record.problem:
        fields["problem"] = record.problem
    if record.later_format:
        fields["later_format"] = record.later_format
    return fields


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []

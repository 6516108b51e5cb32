"""Prints the records of a stream as lines or JSON objects, and reports gaps on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing

from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks
from tallybook.stream import Gap, Record
from tallybook.stream.reader.handle import RecordBatches

from ..output import complain
from .ledger_read import Output, as_text


def records_as_lines(records: Sequence[Record]) -> bytes:
    """Each payload and a newline."""
    return b"\n".join([*(record.payload for record in records), b""])


def records_as_json(records: Sequence[Record]) -> bytes:
    """One object per line; key, payload and id are in base64 if they are not UTF-8."""
    return b"".join(json.dumps(_fields(record)).encode() + b"\n" for record in records)


def _fields(record: Record) -> dict[str, object]:
    return {
        "position": str(record.position),
        "sequence": record.sequence,
        "timestamp_ms": record.timestamp_ms,
        **as_text("key", record.key),
        **as_text("payload", record.payload),
        **as_text("dedup_id", record.dedup_id),
        "txid": record.txid,
    }


class GapReporter:
    """Reports missing records on standard error, and counts the gaps.

    Args:
        name: name of the stream.
    """

    def __init__(self, name: str, *, as_json: bool) -> None:
        self._name = name
        self._as_json = as_json
        self.count = 0

    def report(self, gap: Gap) -> None:
        """Report a gap."""
        self.count += 1
        if not self._as_json:
            complain(f"stream {self._name}: {gap}")
            return
        fields = {
            "reason": gap.reason.value,
            "first_sequence": gap.first_sequence,
            "next_sequence": gap.next_sequence,
            "before": None if gap.before is None else str(gap.before),
            "message": f"stream {self._name}: {gap}",
        }
        print(json.dumps({"gap": fields}), file=sys.stderr, flush=True)


async def copy_records(
    pieces: RecordBatches,
    output: Output[Record],
    gaps: GapReporter,
    clock: Clock,
    *,
    count: int | None = None,
    end: Callable[[Record], bool] | None = None,
) -> None:
    """Write records as they come. Buffered records are written before it waits for more.

    Args:
        count: maximum number of records.
        end: stop before the first record for which this is true.

    Raises:
        As ``StreamReader.batches``.
    """
    tasks, left = Tasks("reading", lambda _name, _error: None), count
    async with aclosing(pieces):
        try:
            while left is None or left > 0:
                coming = tasks.spawn(_step(pieces), name="next")
                # If the next records are already in memory, the task is done after this.
                await clock.sleep(0)
                if not coming.done():
                    await output.flush()
                piece = await coming
                if piece is None:
                    break
                if isinstance(piece, Gap):
                    await output.flush()
                    gaps.report(piece)
                    continue
                records, last = _wanted(piece, left, end)
                await output.add(records)
                left = None if left is None else left - len(records)
                if last:
                    break
        finally:
            await tasks.close()
            # Records before an error are printed.
            await output.flush()


async def _step(pieces: RecordBatches) -> list[Record] | Gap | None:
    return await anext(pieces, None)


def _wanted(records: list[Record], left: int | None, end: Callable[[Record], bool] | None) -> tuple[list[Record], bool]:
    """The records to write, and whether ``end`` was reached."""
    stop = None if end is None else next((at for at, record in enumerate(records) if end(record)), None)
    return records[:stop][:left], stop is not None

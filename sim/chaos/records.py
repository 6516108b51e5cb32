"""Log of a load process: records what its clients did and were told, and survives SIGKILL.

One JSON line per fact, written at once, before anything follows from it. ``replay`` turns a log into operations and
readings of a ``History``; an operation without an outcome has an unknown one. An incomplete last line is ignored.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tallybook.bench.loads.payloads import Payloads, identify
from tallybook.core.errors import InvalidArgument

from ..workload.history import NO_ENTRY, History, LedgerEnd, Operation, Reading, Violation

STRANGE_BYTES: Final = 4096
"""Maximum bytes kept of an entry that no writer made."""


class Recorder:
    """Writes the log. Blocking, but each line is one small write to the page cache.

    ["append", op, actor, ledger, number, size]      begun; also create, close, recover
    ["ok", op, entry] ["end", op, last, length]      it succeeded
    ["made", op, ledger] ["failed", op]              a ledger was created; it was certainly not done
    ["reading", n, actor, ledger]                    a reader was opened
    ["saw", n, entry, number, size] ["lac", n, lac]  what it returned
    ["strange", n, entry, hex]                       an entry that no writer made
    ["done", n, last, length]                        it has read all of a closed ledger
    ["acked", bookie, ledger, first, count]          a bookie acked a batch (``watched``)
    ["fenced", bookie, ledger, 0, 0]                 a bookie acked a fence
    ["violation", invariant, ledger, detail]         a violation that the process found itself
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._last = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def begin(self, kind: str, actor: str, *words: int) -> int:
        """Record that an operation begins; return its number."""
        self._last += 1
        self.note(kind, self._last, actor, *words)
        return self._last

    def reading(self, actor: str, ledger_id: int) -> int:
        """Record that a reader was opened; return its number."""
        return self.begin("reading", actor, ledger_id)

    def saw(self, reading: int, ledger_id: int, entry_id: int, payload: bytes) -> None:
        """Record the next entry that a reader returned."""
        identified = identify(ledger_id, payload)
        if identified is None:
            self.note("strange", reading, entry_id, payload[:STRANGE_BYTES].hex())
        else:
            self.note("saw", reading, entry_id, *identified)

    def note(self, *words: str | int) -> None:
        """Write one line."""
        os.write(self._descriptor, json.dumps(words, separators=(",", ":")).encode() + b"\n")


@dataclass
class BookiePromises:
    """Adds and fences that bookies acknowledged."""

    acked: dict[tuple[int, str], dict[int, int]] = field(default_factory=dict)
    """By ledger and bookie: last entry of each acked batch, by its first entry."""
    fenced: set[tuple[int, str]] = field(default_factory=set)
    """Acked fences: ledger and bookie."""

    def highest_acked(self, ledger_id: int, ack_quorum: int) -> int:
        """The highest entry that ``ack_quorum`` bookies acked, -1 for none; no entry above it was ever confirmed."""
        batches = [acked for (ledger, _), acked in self.acked.items() if ledger == ledger_id]
        # The number of bookies that acked an entry changes only at batch ends.
        for entry_id in sorted({last for acked in batches for last in acked.values()}, reverse=True):
            holders = sum(any(first <= entry_id <= last for first, last in acked.items()) for acked in batches)
            if holders >= ack_quorum:
                return entry_id
        return NO_ENTRY

    def note(self, kind: str, bookie_id: str, ledger_id: int, first: int, count: int) -> None:
        """Add one promise."""
        if kind == "fenced":
            self.fenced.add((ledger_id, bookie_id))
        else:
            self.acked.setdefault((ledger_id, bookie_id), {})[first] = first + count - 1


def replay(path: Path, history: History, payloads: Payloads, promises: BookiePromises) -> list[Violation]:
    """Add one log to ``history`` and ``promises``; return the violations that the process found itself."""
    replayed = _Replay(history, payloads, promises)
    for line in path.read_bytes().split(b"\n")[:-1]:
        replayed.take(*json.loads(line))
    return replayed.violations


class _Replay:
    """Replays one log."""

    def __init__(self, history: History, payloads: Payloads, promises: BookiePromises) -> None:
        self._promises = promises
        self.violations: list[Violation] = []
        self._history = history
        self._payloads = payloads
        self._operations: dict[int, Operation] = {}
        self._readings: dict[int, Reading] = {}

    def take(self, kind: str, *words: Any) -> None:
        """Take one line."""
        if kind == "violation":
            self.violations.append(Violation(*words))
        elif kind in ("acked", "fenced"):
            self._promises.note(kind, *words)
        elif kind in ("create", "append", "close", "recover"):
            self._operations[words[0]] = self._begin(kind, *words[1:])
        elif kind == "reading":
            self._readings[words[0]] = self._history.reading(*words[1:])
        elif kind in ("ok", "made", "end", "failed"):
            self._outcome(kind, self._operations[words[0]], *words[1:])
        else:
            self._shown(kind, self._readings[words[0]], *words[1:])

    def _begin(self, kind: str, actor: str, *words: int) -> Operation:
        history = self._history
        if kind == "create":
            return history.create(actor)
        if kind == "append":
            return history.append(actor, words[0], self._payloads.of(*words))
        return history.close(actor, words[0]) if kind == "close" else history.recover(actor, words[0])

    def _outcome(self, kind: str, operation: Operation, *words: int) -> None:
        if kind == "failed":
            operation.failed()
        elif kind == "end":
            operation.ok(end=LedgerEnd(*words))
        elif kind == "made":
            operation.ledger_id = words[0]
            operation.ok()
        else:
            operation.ok(entry_id=words[0])

    def _shown(self, kind: str, reading: Reading, *words: Any) -> None:
        if kind == "saw":
            reading.saw(words[0], self._payloads.of(reading.ledger_id, *words[1:]))
        elif kind == "strange":
            reading.saw(words[0], bytes.fromhex(words[1]))
        elif kind == "lac":
            reading.lac(words[0])
        elif kind == "done":
            reading.done(LedgerEnd(*words))
        else:
            raise InvalidArgument(f"unknown kind of log line: {kind!r}")

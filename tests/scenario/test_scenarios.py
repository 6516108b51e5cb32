"""Golden dialogues with the writer and recovery machines.

Each ``*.txt`` file is a dialogue: lines that start with ``>`` are events, and the lines below are the answer of the
machine. A reviewer can read the protocol there. After a deliberate change, run
``TALLYBOOK_REWRITE=1 pytest tests/scenario`` and read the difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tallybook.client.recovery import machine as recovery
from tallybook.client.writer import actions as writer
from tallybook.client.writer.machine import WriterMachine
from tallybook.client.writer.policy import WriterPolicy
from tallybook.core import errors
from tallybook.core.answers import AddAnswer, AddNotSent, FenceAnswer
from tallybook.core.batch import decode_header, encode_batch
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState

HERE = Path(__file__).parent
LEDGER = 7
LAG_LIMIT_BYTES = 1000


def quorum_of(words: dict[str, str]) -> Quorum:
    return Quorum(int(words["E"]), int(words["Qw"]), int(words["Qa"]), int(words.get("stripe", "1024")))


def options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def ids(word: str) -> tuple[int, int]:
    first, _, last = word.partition("..")
    return int(first), int(last or first)


class WriterPlay:
    """Turns event lines into calls of a ``WriterMachine``."""

    def __init__(self, words: list[str]) -> None:
        given = options(words)
        quorum = quorum_of(given)
        bookies = [f"bookie-{position}" for position in range(quorum.ensemble)]
        rules = WriterPolicy(
            add_timeout_s=10,
            away_timeout_s=4,
            lag_limit_bytes=LAG_LIMIT_BYTES,
            max_changes=int(given.get("changes", 0)),
            delay_changes="delay" in words,
            deferred="deferred" in words,
        )
        self.now = 0.0
        self.pauses: dict[int, int] = {}
        self.machine = WriterMachine(LEDGER, quorum, bookies, rules, now=0.0)

    def event(self, words: list[str]) -> list[str]:
        name, rest = words[0], words[1:]
        handler: Callable[[list[str]], list[str]] = getattr(self, f"do_{name}")
        return handler(rest)

    def do_connected(self, words: list[str]) -> list[str]:
        return self.told(*(a for p in words for a in self.machine.connected(int(p), self.now)))

    def do_disconnected(self, words: list[str]) -> list[str]:
        return self.told(*self.machine.disconnected(int(words[0]), self.now))

    def do_gone(self, words: list[str]) -> list[str]:
        return self.told(*self.machine.gone(int(words[0])))

    def do_found(self, words: list[str]) -> list[str]:
        found = {int(position): bookie for position, bookie in options(words).items()}
        return self.told(*self.machine.begin_change(found, self.now))

    def do_changed(self, words: list[str]) -> list[str]:
        return self.told(*self.machine.changed(self.now))

    def do_unchanged(self, words: list[str]) -> list[str]:
        return self.told(*self.machine.unchanged())

    def do_fails(self, words: list[str]) -> list[str]:
        return self.told(*self.machine.die(getattr(errors, words[0])("told")))

    def do_append(self, words: list[str]) -> list[str]:
        first, last = ids(words[0])
        size = int(options(words).get("bytes", 100))
        return self.told(*self.machine.submit(first, last, (last - first + 1) * 10, bytes(size), self.now))

    def do_ack(self, words: list[str]) -> list[str]:
        position = int(words[0])
        bookie = options(words).get("by", self.machine.bookie_of(position))
        return self.told(*self.machine.acked(position, int(words[1]), bookie))

    def do_refuse(self, words: list[str]) -> list[str]:
        code = getattr(errors, words[2]).wire_code
        answer = (AddNotSent if "withheld" in words else AddAnswer)(LEDGER, int(words[1]), 1, code, 5)
        return self.told(*self.machine.refused(int(words[0]), answer, self.now))

    def do_resume(self, words: list[str]) -> list[str]:
        pause = int(options(words).get("pause", self.pauses.get(int(words[0]), 0)))
        return self.told(*self.machine.resume(int(words[0]), pause, self.now))

    def do_wait(self, words: list[str]) -> list[str]:
        self.now += float(words[0])
        return self.told(*self.machine.tick(self.now))

    def do_show(self, words: list[str]) -> list[str]:
        machine = self.machine
        members = " ".join(machine.member(p).value for p in range(machine.quorum.ensemble))
        lines = [f"lac {machine.lac} length {machine.confirmed_length} members {members}"]
        if machine.changes:
            lines.append(f"fragment from {machine.fragment.first_entry_id}: {' '.join(machine.fragment.bookies)}")
        wanted = machine.wanted(self.now)
        if wanted:
            lines.append(f"wanted {' '.join(map(str, wanted))}")
        lines += [f"missed {m.bookie_id} {m.first_entry_id}..{m.last_entry_id}" for m in machine.missed()]
        return lines

    def told(self, *actions: writer.WriterAction) -> list[str]:
        return [self.line(action) for action in actions]

    def line(self, action: writer.WriterAction) -> str:
        match action:
            case writer.Send():
                return f"send {action.first_entry_id} to {action.position}"
            case writer.SendLater():
                self.pauses[action.position] = action.pause
                return f"nothing to {action.position} for {action.delay_ms} ms"
            case writer.Confirmed():
                return f"confirmed through {action.last_entry_id}"
            case writer.Released():
                return f"released {action.size} bytes"
            case writer.Reconnect():
                return f"reconnect {action.position}{', breaking the connection' if action.breaking else ''}"
            case writer.Rejoin():
                return f"rejoin {action.position} after a pause"
            case writer.MissedChanged():
                return "missed changed"
            case writer.ReplacementWanted():
                return "replacement wanted"
            case writer.ChangeEnsemble():
                return f"write fragment from {action.wanted.first_entry_id}: {' '.join(action.wanted.bookies)}"
            case writer.Replaced():
                return f"connect to the new {' '.join(map(str, action.positions))}"
            case writer.Died():
                return f"died {type(action.error).__name__}, outcome {action.error.outcome.value}: {action.error}"


class RecoveryPlay:
    """Turns event lines into calls of a ``RecoveryMachine``."""

    def __init__(self, words: list[str]) -> None:
        given = options(words)
        quorum = quorum_of(given)
        firsts = [int(first) for first in given.get("fragments", "0").split(",")]
        count = len(firsts)
        fragments = tuple(
            Fragment(first, tuple(f"f{index}-b{p}" if count > 1 else f"b{p}" for p in range(quorum.ensemble)))
            for index, first in enumerate(firsts)
        )
        metadata = LedgerMetadata(LEDGER, quorum, fragments, "creator", 0, LedgerState.IN_RECOVERY)
        self.last_fragment = metadata.last_fragment
        self.machine = recovery.RecoveryMachine(metadata)

    def event(self, words: list[str]) -> list[str]:
        handler: Callable[[list[str]], list[recovery.RecoveryAction]] = getattr(self, f"do_{words[0]}")
        return [self.line(action) for action in handler(words[1:])]

    def batch(self, first: int, last: int, ledger: int = LEDGER) -> bytes:
        payloads = [b"0123456789"] * (last - first + 1)
        return encode_batch(ledger, first, payloads, lac=first - 1, ledger_length=(last + 1) * 10, written_at_us=0)

    def do_start(self, words: list[str]) -> list[recovery.RecoveryAction]:
        return self.machine.start()

    def do_fenced(self, words: list[str]) -> list[recovery.RecoveryAction]:
        return self.machine.fenced(int(words[0]), FenceAnswer(int(options(words)["lac"]), -1))

    def do_unfenced(self, words: list[str]) -> list[recovery.RecoveryAction]:
        return self.machine.fence_failed(int(words[0]), getattr(errors, words[1])("told"))

    def do_copy(self, words: list[str]) -> list[recovery.RecoveryAction]:
        first, last = ids(words[1])
        batch = bytearray(self.batch(first, last, int(options(words).get("ledger", LEDGER))))
        if "damaged" in words:
            batch[-1] ^= 1
        return self.machine.read(int(words[0]), int(options(words).get("for", first)), bytes(batch))

    def do_nocopy(self, words: list[str]) -> list[recovery.RecoveryAction]:
        return self.machine.read_failed(int(words[0]), int(words[1]), getattr(errors, words[2])("told"))

    def do_added(self, words: list[str]) -> list[recovery.RecoveryAction]:
        return self.machine.added(int(words[0]), int(words[1]))

    def do_notadded(self, words: list[str]) -> list[recovery.RecoveryAction]:
        return self.machine.add_failed(int(words[0]), int(words[1]), getattr(errors, words[2])("told"))

    def do_late(self, words: list[str]) -> list[recovery.RecoveryAction]:
        return self.machine.stragglers_late(int(words[0]))

    def do_spares(self, words: list[str]) -> list[recovery.RecoveryAction]:
        return self.machine.replacements_found({int(position): bookie for position, bookie in options(words).items()})

    def do_end(self, words: list[str]) -> list[recovery.RecoveryAction]:
        return self.machine.end_read(decode_header(self.batch(*ids(words[0]))))

    def do_noend(self, words: list[str]) -> list[recovery.RecoveryAction]:
        return self.machine.end_failed(getattr(errors, words[0])("told"))

    def line(self, action: recovery.RecoveryAction) -> str:
        match action:
            case recovery.FenceMember():
                return f"fence {action.position}"
            case recovery.ReadMember():
                return f"read {action.entry_id} from {action.position}, fencing"
            case recovery.WriteBack():
                return f"add {action.entry_id} again to {action.position}, {action.bookie_id}"
            case recovery.AwaitStragglers():
                return f"wait for stragglers, round {action.round_number}"
            case recovery.FindReplacements():
                return f"find others for {' '.join(map(str, action.positions))} of {' '.join(action.ensemble)}"
            case recovery.ReadEnd():
                return f"read the batch of {action.entry_id} for its length"
            case recovery.Close():
                missed = [f"{m.bookie_id} {m.first_entry_id}..{m.last_entry_id}" for m in action.missed]
                line = f"close at {action.last_entry_id}, length {action.length}, missed {missed}"
                if action.fragments != (self.last_fragment,):
                    line += "".join(f", from {f.first_entry_id}: {' '.join(f.bookies)}" for f in action.fragments)
                return line
            case recovery.Failed():
                return f"failed {type(action.error).__name__}: {action.error}"


PLAYS = {"writer": WriterPlay, "recovery": RecoveryPlay}


def perform(text: str) -> str:
    """Play a dialogue: keep comments and events, answer anew."""
    lines: list[str] = []
    play: WriterPlay | RecoveryPlay | None = None
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            lines.append(line)
        elif line.startswith("> "):
            lines.append(line)
            words = line[2:].split()
            if words[0] in PLAYS:
                play = PLAYS[words[0]](words[1:])
            elif play is not None:
                lines += [f"  {answer}" for answer in play.event(words)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", sorted(HERE.glob("*/*.txt")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_machine_answers_as_in_the_play(path: Path) -> None:
    written = path.read_text()
    performed = perform(written)
    if os.environ.get("TALLYBOOK_REWRITE") == "1":
        path.write_text(performed)
    assert performed == written

"""The kinds of metadata records besides ledgers, and how each is decoded.

The layer of streams adds its own kinds (``stream/record_kinds.py``).
"""

from __future__ import annotations

from typing import Final

from tallybook.core.errors import DamagedFile
from tallybook.metadata.records.bookie_modes import PREFIX as MODES
from tallybook.metadata.records.bookie_modes import RequestedMode
from tallybook.metadata.records.format import load_json
from tallybook.metadata.records.kinds import RecordKind, decoding
from tallybook.metadata.records.replaced_bookies import PREFIX as REPLACED
from tallybook.metadata.records.restored_store import RECORD as BEHIND
from tallybook.metadata.records.restored_store import REMEDY as BEHIND_REMEDY
from tallybook.metadata.records.restored_store import decode_restore_record
from tallybook.metadata.records.security_required import RECORD as SECURED
from tallybook.metadata.records.security_required import decode_required
from tallybook.metadata.transactions import ATTEMPTS, ATTEMPTS_ONCE, CLOCK, SINKS, SinkRecord, attempt_of

from ..tasks import PREFIX as TASKS
from ..tasks import decode_task


def _mode(name: str, value: bytes) -> None:
    if value.decode(errors="replace") not in {mode.value for mode in RequestedMode}:
        raise DamagedFile(f"record {name} has no valid mode of a bookie: {value[:40]!r}")


def _required(_name: str, value: bytes) -> None:
    decode_required(value)


def _attempt(name: str, _value: bytes) -> None:
    if attempt_of(name) is None:
        raise DamagedFile(f"record {name} does not have the name of an attempt of a sink")


def _number(name: str, value: bytes) -> None:
    if not value.isdigit():
        raise DamagedFile(f"record {name} is not a number")


def _anything(_name: str, _value: bytes) -> None:
    """For records that need no check: the next leader or session overwrites them."""


RECORD_KINDS: Final = (
    RecordKind(
        TASKS, "task of the repair", decoding(decode_task), "delete it: the auditor finds its ledgers again", True
    ),
    RecordKind("repair/auditor", "who audits", decoding(_anything), ""),
    RecordKind("repair/", "record of the repair", decoding(load_json), "delete it: the auditor writes it again"),
    RecordKind(
        BEHIND,
        "that the store was restored from an older copy",
        decoding(decode_restore_record),
        f"do not delete it: without it bookies drop what these metadata do not name; {BEHIND_REMEDY}",
    ),
    RecordKind(REPLACED, "that a bookie was replaced", decoding(_anything), ""),
    RecordKind(MODES, "mode of a bookie", decoding(_mode), "'bookie readonly --off' or 'bookie drain' writes it again"),
    RecordKind(
        SECURED,
        "whether the cluster requires security",
        decoding(_required),
        "'cluster require-security' writes it again",
    ),
    RecordKind("archive/leader", "who archives", decoding(_anything), ""),
    RecordKind(
        "archive/location",
        "location of the archive",
        decoding(load_json),
        "record the location: 'tallybook offload relocate URL'",
    ),
    RecordKind(
        "archive/sealed",
        "that the archive is encrypted",
        decoding(load_json),
        "delete it: an offloader with keys of the archive writes it again",
    ),
    RecordKind("archive/", "record of the archive", decoding(load_json), "delete it: the offloader writes it again"),
    RecordKind(ATTEMPTS, "attempt of a sink", decoding(_attempt), "the offloader removes what attempts have left"),
    RecordKind(ATTEMPTS_ONCE, "attempt of a sink", decoding(_attempt), "the offloader removes what attempts have left"),
    RecordKind(CLOCK, "clock of the sinks", decoding(_number), "restore the metadata from a copy"),
    RecordKind(
        SINKS,
        "sink",
        decoding(SinkRecord.decode),
        "restore the metadata from a copy; until then its writers cannot work",
    ),
)
"""The kinds of this layer and those below. The first kind with a matching prefix counts."""

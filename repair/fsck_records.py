"""Which records there can be beside the ledgers, and how each of them is understood.

Streams are of a layer above, and bring the kinds of theirs (``stream/record_kinds.py``).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple

from tallybook.core.errors import DamagedFile
from tallybook.metadata.behind import RECORD as BEHIND
from tallybook.metadata.behind import REMEDY as BEHIND_REMEDY
from tallybook.metadata.behind import decode_behind
from tallybook.metadata.bookie_modes import PREFIX as MODES
from tallybook.metadata.bookie_modes import WantedMode
from tallybook.metadata.record_format import check_format
from tallybook.metadata.record_json import NOT_UNDERSTOOD
from tallybook.metadata.replaced import PREFIX as REPLACED
from tallybook.metadata.secured import RECORD as SECURED
from tallybook.metadata.secured import decode_required
from tallybook.metadata.sink_record import ATTEMPTS, ATTEMPTS_ONCE, CLOCK, SINKS, SinkRecord, attempt_of
from tallybook.metadata.store import MetadataStore

from .tasks import PREFIX as TASKS
from .tasks import decode_task


class RecordKind(NamedTuple):
    """Records whose names begin alike.

    Attributes:
        understand: decodes one, and gives ids of ledgers that must be there, and what else is wrong in words; raises
            ``DamagedFile`` if it holds something else.
        remedy: what to do about one that cannot be understood.
        removable: whether one that cannot be understood may be deleted: nothing rests on it.
    """

    prefix: str
    what: str
    understand: Callable[[MetadataStore, str, bytes], AsyncIterator[int | str]]
    remedy: str
    removable: bool = False


class LedgerOwner(NamedTuple):
    """Records that name the ledgers which were made for them.

    Attributes:
        key: among a ledger's custom metadata, of whom it was made for.
        is_named: whether the record names the ledger, or cannot be understood; told the ledger's id and the value.
    """

    key: str
    what: str
    is_named: Callable[[MetadataStore, int, bytes], Awaitable[bool]]


_NAMED: Final[tuple[int, ...]] = ()
"""Ledgers that such a record names."""


def decoding(decode: Callable[[str, bytes], object]) -> Callable[[MetadataStore, str, bytes], AsyncIterator[int | str]]:
    """For records that name no ledgers: that they can be decoded is all."""

    async def understand(_store: MetadataStore, name: str, value: bytes) -> AsyncIterator[int | str]:
        decode(name, value)
        for each in _NAMED:
            yield each

    return understand


def _json(name: str, value: bytes) -> None:
    try:
        found = json.loads(value)
    except NOT_UNDERSTOOD as error:
        raise DamagedFile(f"the record {name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise DamagedFile(f"the record {name} holds {type(found).__name__}")
    check_format(name, found)


def _mode(name: str, value: bytes) -> None:
    if value.decode(errors="replace") not in {mode.value for mode in WantedMode}:
        raise DamagedFile(f"the record {name} names no mode of a bookie: {value[:40]!r}")


def _required(_name: str, value: bytes) -> None:
    decode_required(value)


def _attempt(name: str, _value: bytes) -> None:
    if attempt_of(name) is None:
        raise DamagedFile(f"the record {name} is not named as an attempt of a sink is")


def _number(name: str, value: bytes) -> None:
    if not value.isdigit():
        raise DamagedFile(f"the record {name} is not a number")


def _anything(_name: str, _value: bytes) -> None:
    """A leader's, or a session's: whoever comes next writes it anew."""


RECORD_KINDS: Final = (
    RecordKind(
        TASKS, "task of the repair", decoding(decode_task), "delete it: the auditor finds its ledgers again", True
    ),
    RecordKind("repair/auditor", "who audits", decoding(_anything), ""),
    RecordKind("repair/", "record of the repair", decoding(_json), "delete it: the auditor writes it anew"),
    RecordKind(
        BEHIND,
        "that the store was restored from an older copy",
        decoding(decode_behind),
        f"do not delete it: without it bookies drop what these metadata do not name; {BEHIND_REMEDY}",
    ),
    RecordKind(REPLACED, "that a bookie was replaced", decoding(_anything), ""),
    RecordKind(MODES, "mode of a bookie", decoding(_mode), "'bookie readonly --off' or 'bookie drain' writes it anew"),
    RecordKind(
        SECURED,
        "whether the cluster requires security",
        decoding(_required),
        "'cluster require-security' writes it anew",
    ),
    RecordKind("archive/leader", "who archives", decoding(_anything), ""),
    RecordKind(
        "archive/location",
        "place of the archive",
        decoding(_json),
        "say where it is: 'tallybook offload relocate URL'",
    ),
    RecordKind(
        "archive/sealed",
        "that the archive is sealed",
        decoding(_json),
        "delete it: an offloader with keys of the archive writes it anew",
    ),
    RecordKind("archive/", "record of the archive", decoding(_json), "delete it: the offloader writes it anew"),
    RecordKind(ATTEMPTS, "attempt of a sink", decoding(_attempt), "the offloader tidies up what attempts left"),
    RecordKind(ATTEMPTS_ONCE, "attempt of a sink", decoding(_attempt), "the offloader tidies up what attempts left"),
    RecordKind(CLOCK, "clock of the sinks", decoding(_number), "restore the metadata from a copy"),
    RecordKind(SINKS, "sink", decoding(SinkRecord.decode), "restore the metadata from a copy; its writers stand still"),
)
"""Those of the layers up to this one. The first kind whose prefix fits counts."""

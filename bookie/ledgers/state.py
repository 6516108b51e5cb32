"""The state of a ledger apart from its entries: as a row of the index, and in memory.

docs/reference/formats/ledger-state.md has the bytes of the row, and examples. Its checksum covers the ledger id, so the
row of another ledger is never accepted. If a row has no identity, as those of earlier versions, requests with any
identity are accepted for the ledger. The row of a deleted ledger, the *tombstone*, stays permanently.

There is at most one ``Ledger`` object for a ledger, and every decision about an add is made on it in one turn of the
event loop, so no add can miss a fence.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, replace
from typing import Final

from crc32c import crc32c

from tallybook.core.errors import (
    OK_CODE,
    DamagedFile,
    EntryUnknown,
    LedgerFenced,
    NewerFormat,
    NoSuchLedger,
    OtherLedger,
)
from tallybook.core.ids import IDENTITY_BYTES, NO_ENTRY, NO_IDENTITY
from tallybook.core.keys import key_matches, same_secret
from tallybook.core.limits import KEY_BYTES

VERSION: Final = 1
TOMBSTONE_VERSION: Final = 2
IDENTITY_VERSION: Final = 3
NEWEST_VERSION: Final = IDENTITY_VERSION

_FENCED: Final = 1
_LIMBO: Final = 2
_DELETED: Final = 4
_VERIFIER_KNOWN: Final = 8
_ALL_FLAGS: Final = _FENCED | _LIMBO | _DELETED | _VERIFIER_KNOWN

_ROW: Final = struct.Struct("<BBHqqqI")
_CRC: Final = struct.Struct("<I")
_LEDGER_ID: Final = struct.Struct("<q")
_FIXED_BYTES: Final = _CRC.size + _ROW.size
_TOMBSTONE_BODY: Final = bytes([TOMBSTONE_VERSION, _DELETED])


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """The durable state of one ledger.

    ``verifier`` is ``None`` while unknown, empty for no password; ``identity`` is empty while unknown.
    """

    verifier: bytes | None = None
    fenced: bool = False
    limbo: bool = False
    deleted: bool = False
    lac: int = NO_ENTRY
    explicit_lac: int = NO_ENTRY
    last_held: int = NO_ENTRY
    repaired_limbo: int = 0
    identity: bytes = NO_IDENTITY


TOMBSTONE: Final = LedgerRow(deleted=True)
"""The row of a deleted ledger."""


def encode_row(ledger_id: int, row: LedgerRow) -> bytes:
    """Encode a row."""
    if row == TOMBSTONE:
        return _checked(ledger_id, _TOMBSTONE_BODY)
    flags = (
        (_FENCED if row.fenced else 0)
        | (_LIMBO if row.limbo else 0)
        | (_DELETED if row.deleted else 0)
        | (_VERIFIER_KNOWN if row.verifier is not None else 0)
    )
    verifier = row.verifier or b""
    version = IDENTITY_VERSION if row.identity else VERSION
    fixed = _ROW.pack(
        version, flags, len(verifier), row.lac, row.explicit_lac, row.last_held, row.repaired_limbo
    )  # fmt: skip
    return _checked(ledger_id, fixed + verifier + row.identity)


def _checked(ledger_id: int, body: bytes) -> bytes:
    return _CRC.pack(crc32c(body, crc32c(_LEDGER_ID.pack(ledger_id)))) + body


def decode_row(ledger_id: int, data: bytes) -> LedgerRow:
    """Decode a row.

    Raises:
        DamagedFile: it fails its checks, or is the row of another ledger.
        NewerFormat: it has a later version.
    """
    name = f"state row of ledger {ledger_id}"
    if data == _checked(ledger_id, _TOMBSTONE_BODY):
        return TOMBSTONE
    intact = len(data) > _CRC.size and _CRC.unpack_from(data)[0] == crc32c(
        data[_CRC.size :], crc32c(_LEDGER_ID.pack(ledger_id))
    )
    if intact and data[_CRC.size] > NEWEST_VERSION:
        raise NewerFormat.of(name, data[_CRC.size], NEWEST_VERSION)
    if len(data) < _FIXED_BYTES:
        raise DamagedFile(f"{name}: {len(data)} bytes are too few, at least {_FIXED_BYTES} are needed")
    if not intact:
        raise DamagedFile(f"{name}: checksum mismatch")
    version, flags, verifier_bytes, lac, explicit_lac, last_held, repaired = _ROW.unpack_from(data, _CRC.size)
    if version not in (VERSION, IDENTITY_VERSION) or flags & ~_ALL_FLAGS:
        raise DamagedFile(f"{name}: version {version}, flags {flags:#x} are not of version {VERSION}")
    identity_at = len(data) - (IDENTITY_BYTES if version == IDENTITY_VERSION else 0)
    verifier = data[_FIXED_BYTES:identity_at]
    if identity_at < _FIXED_BYTES or len(verifier) != verifier_bytes or verifier_bytes not in (0, KEY_BYTES):
        raise DamagedFile(f"{name}: the verifier has {len(verifier)} bytes instead of {verifier_bytes}")
    return LedgerRow(
        verifier=verifier if flags & _VERIFIER_KNOWN else None,
        fenced=bool(flags & _FENCED),
        limbo=bool(flags & _LIMBO),
        deleted=bool(flags & _DELETED),
        lac=lac,
        explicit_lac=explicit_lac,
        last_held=last_held,
        repaired_limbo=repaired,
        identity=data[identity_at:],
    )


class Ledger:
    """One ledger in memory. Only the event loop touches it.

    ``refuses_add`` and ``refuses_recovery`` are the wire codes of the refusal of ordinary and of recovery adds, 0 for
    none. The methods keep them up to date, because the add path reads them for every batch.
    """

    __slots__ = (
        "deleted",
        "dirty",
        "doubted",
        "explicit_lac",
        "fenced",
        "fitting_key",
        "flushing",
        "identity",
        "lac",
        "lac_waiters",
        "last_flushed",
        "last_held",
        "last_record",
        "ledger_id",
        "limbo",
        "refuses_add",
        "refuses_recovery",
        "repair_events",
        "repair_fence",
        "repaired_limbo",
        "users",
        "verifier",
        "verifier_recorded",
    )  # fmt: skip

    def __init__(self, ledger_id: int, row: LedgerRow) -> None:
        self.ledger_id = ledger_id
        self.verifier = row.verifier
        """Verifier of the ledger key; ``None`` until it was read, empty for no password."""
        self.identity = row.identity
        """Tells the ledger from another one with the same id; empty while unknown. Learned with the verifier."""
        self.verifier_recorded = row.verifier is not None
        """A journal record or the row has the verifier, and the identity if it is known."""
        self.fitting_key: bytes | None = None
        """The last key that passed, so that the next check is one comparison."""
        self.fenced = row.fenced
        self.deleted = row.deleted
        self.limbo = row.limbo
        """Entries of the ledger, and its fence, may have been lost."""
        self.doubted = False
        """Its identity was lost as well, and its id may have been assigned twice: the entries may belong to another
        ledger. Only repair adds are accepted, which verify them (``verified_copies.py``)."""
        self.repaired_limbo = row.repaired_limbo
        self.repair_events: int | None = None
        """Number of limbo events that a repair made good, while that is not durable yet; else ``None``."""
        self.repair_fence = False
        """Whether the ledger becomes fenced together with that."""
        self.lac = max(row.lac, row.explicit_lac)
        self.explicit_lac = row.explicit_lac
        self.last_held = row.last_held
        self.last_flushed = row.last_held
        """No batch with a higher id has left the write cache, or leaves it with the running checkpoint, and no index
        row is about a higher one."""
        self.last_record = 0
        """Number of the last journal record about this ledger (``PendingAcks``)."""
        self.dirty = False
        """Differs from its row in the index since the last checkpoint began."""
        self.flushing = False
        """A running checkpoint is writing its row."""
        self.users = 0
        """Number of tasks that use it across a wait; it stays in memory meanwhile."""
        self.lac_waiters: dict[asyncio.Future[None], None] = {}
        self._settle()

    @property
    def was_met(self) -> bool:
        """Whether anything of this ledger is, or was, held here."""
        return self.verifier_recorded or self.fenced or self.last_held > NO_ENTRY or self.lac > NO_ENTRY

    def row(self) -> LedgerRow:
        """The current state as a row."""
        if self.deleted:
            return TOMBSTONE
        return LedgerRow(
            self.verifier, self.fenced, self.limbo, self.deleted,
            self.lac, self.explicit_lac, self.last_held, self.repaired_limbo, self.identity,
        )  # fmt: skip

    def row_to_write(self) -> LedgerRow:
        """The row that a checkpoint writes: the current state; an end of limbo is written before it takes effect."""
        if self.repair_events is None or self.deleted:
            return self.row()
        fenced = self.fenced or self.repair_fence
        return replace(self.row(), limbo=False, fenced=fenced, repaired_limbo=self.repair_events)

    def may_hold(self, entry_id: int) -> bool:
        """Whether a batch with ``entry_id`` or a higher id may be held; always true in limbo."""
        return entry_id <= self.last_held or self.limbo

    def may_be_flushed(self, entry_id: int) -> bool:
        """Whether a batch with ``entry_id`` or a higher id may be in the index, or soon. See ``may_hold``."""
        return entry_id <= self.last_flushed or self.limbo

    def fits(self, key: bytes) -> bool:
        """Whether ``key`` is right for this ledger, compared in constant time. The verifier must be known."""
        if self.fits_again(key):
            return True
        if self.verifier is None or not (key_matches(key, self.verifier) if self.verifier else not key):
            return False
        self.fitting_key = bytes(key)
        return True

    def fits_again(self, key: bytes) -> bool:
        """Whether ``key`` is the one that passed last; a single comparison."""
        return self.fitting_key is not None and same_secret(key, self.fitting_key)

    def is_identity(self, identity: bytes) -> bool:
        """Whether a request with ``identity`` may mean this ledger; true if either identity is unknown."""
        return self.identity == identity or not identity or not self.identity

    def check_identity(self, identity: bytes, *, for_repair: bool = False) -> None:
        """Check that a request with ``identity`` means this ledger.

        Args:
            for_repair: the request comes from a repair, which is accepted for a ledger in doubt.

        Raises:
            OtherLedger: the request means another ledger with the same id.
            EntryUnknown: the ledger is in doubt, so that cannot be decided.
        """
        if self.is_identity(identity):
            if self.doubted and identity and not for_repair:
                raise EntryUnknown(
                    f"ledger {self.ledger_id}: its id may have been reused, and the bookie cannot tell which ledger "
                    "it holds until it is repaired"
                )
            return
        if not self.was_met and self.users <= 1:
            # Learned from the metadata and not durable here; the metadata may have been restored since, so ask again.
            self.verifier, self.identity, self.fitting_key = None, NO_IDENTITY, None
        raise OtherLedger(f"ledger {self.ledger_id}: the bookie holds another ledger under this id")

    def learn_verifier(self, verifier: bytes, identity: bytes = NO_IDENTITY) -> None:
        """Set the verifier, and the identity if given, from a journal record."""
        self.verifier = verifier
        self.verifier_recorded = True
        self.identity = identity or self.identity

    def set_fenced(self) -> None:
        """Refuse ordinary adds from now on."""
        self.fenced = True
        self._settle()
        self.wake_lac_waiters()

    def set_deleted(self) -> None:
        """Refuse every add from now on."""
        self.deleted = True
        self._settle()
        self.wake_lac_waiters()

    def set_limbo(self) -> None:
        """Enter limbo: entries may be lost, so nothing is ABSENT, and no ordinary add is taken."""
        self.limbo = True
        self._settle()

    def unset_limbo(self) -> None:
        """Leave limbo: nothing was lost, since there was nothing to lose."""
        self.limbo = self.doubted = False
        self._settle()

    def doubt(self, reused_up_to: int) -> None:
        """Mark the ledger as doubted if ids up to ``reused_up_to`` may have been assigned twice."""
        unnamed = self.limbo and self.was_met and not self.identity
        self.doubted = unnamed and self.ledger_id <= reused_up_to
        self._settle()

    def prove(self, verifier: bytes, identity: bytes) -> None:
        """End the doubt: a repair has verified that the entries belong to this ledger."""
        self.verifier, self.identity, self.fitting_key, self.doubted = verifier, identity, None, False
        self._settle()

    def note_repaired(self, repaired: int, *, fence: bool) -> None:
        """Note that a repair restored what the first ``repaired`` limbo events lost; the next checkpoint writes that.

        Until it is durable, the ledger still reports limbo: a repair would not come back after a crash that restores
        the limbo.

        Args:
            fence: fence the ledger: a lost fence cannot be told from none. False for an open ledger that grows at other
                bookies, since a recovery changes the metadata before any bookie.
        """
        self.repair_events, self.repair_fence = repaired, fence

    def end_limbo(self) -> bool:
        """End limbo once the repair is durable; false if the ledger became doubted meanwhile.

        In that case its limbo must be written again.
        """
        if self.doubted:
            self.repair_events = None
            return False
        if self.repair_events is not None:
            self.limbo = False
            self.fenced = self.fenced or self.repair_fence
            self.repaired_limbo, self.repair_events = self.repair_events, None
            self._settle()
        return True

    def raise_lac(self, lac: int) -> None:
        """Raise the LAC to ``lac`` from a batch or a request; it never falls."""
        if lac > self.lac:
            self.lac = lac
            self.wake_lac_waiters()

    def wake_lac_waiters(self) -> None:
        """Wake every long poll of this ledger."""
        if self.lac_waiters:
            waiters, self.lac_waiters = self.lac_waiters, {}
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _settle(self) -> None:
        if self.deleted:
            self.refuses_recovery = NoSuchLedger.wire_code
        else:
            self.refuses_recovery = EntryUnknown.wire_code if self.doubted else OK_CODE
        if self.fenced:
            self.refuses_add = LedgerFenced.wire_code
        elif self.limbo and not self.deleted:
            self.refuses_add = EntryUnknown.wire_code
        else:
            self.refuses_add = self.refuses_recovery

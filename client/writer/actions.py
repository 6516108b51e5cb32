"""What the writer machine tells its driver to do, one value per action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tallybook.core.errors import TallybookError
from tallybook.metadata.model import Fragment


@dataclass(frozen=True, slots=True)
class Send:
    """Send a batch to a position now."""

    position: int
    first_entry_id: int
    batch: bytes


@dataclass(frozen=True, slots=True)
class SendLater:
    """Call ``resume`` after a pause: the bookie is busy, and is sent nothing until then."""

    position: int
    pause: int
    """Which pause it is, for ``resume``."""
    delay_ms: int


@dataclass(frozen=True, slots=True)
class SizesKnown:
    """Enough members have said how large a batch may be: seal what waited for that."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Every entry up to ``last_entry_id`` is confirmed; tell the callers."""

    last_entry_id: int


@dataclass(frozen=True, slots=True)
class Released:
    """``size`` bytes of batches are no longer held."""

    size: int


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Use the connection to a position no more, and keep trying to get a new one.

    ``breaking``: the bookie does not keep up, so the old one is to be broken, with all that is queued on it. Others
    who share it have to open another, too.
    """

    position: int
    breaking: bool = False


@dataclass(frozen=True, slots=True)
class Rejoin:
    """The bookie refuses adds: send it nothing, and call ``connected`` after a pause. Its connection is in order."""

    position: int


@dataclass(frozen=True, slots=True)
class MissedChanged:
    """``missed()`` reads differently: write it to the metadata when convenient."""


@dataclass(frozen=True, slots=True)
class ReplacementWanted:
    """``wanted()`` names positions that another bookie should take: look for one, then call ``begin_change``."""


@dataclass(frozen=True, slots=True)
class ChangeEnsemble:
    """Write the ``wanted`` fragment over the ``known`` one into the metadata, then call ``changed``.

    Nothing is confirmed until ``changed``, or ``unchanged`` if it certainly did not, and never will, take effect.
    """

    known: Fragment
    wanted: Fragment


@dataclass(frozen=True, slots=True)
class Replaced:
    """Other bookies hold these positions now: connect to them, and forget those before them.

    Those before at the ``silent`` ones owe acks: their connections are to be broken, with all that is queued on them.
    """

    positions: tuple[int, ...]
    silent: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Died:
    """The handle is dead: every unconfirmed append fails with ``error``."""

    error: TallybookError


Action: TypeAlias = (
    Send
    | SendLater
    | SizesKnown
    | Confirmed
    | Released
    | Reconnect
    | Rejoin
    | MissedChanged
    | ReplacementWanted
    | ChangeEnsemble
    | Replaced
    | Died
)

"""Actions that the writer machine returns for its driver to perform, one class per action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tallybook.core.errors import TallybookError
from tallybook.metadata.ledger.model import Fragment


@dataclass(frozen=True, slots=True)
class Send:
    """Send a batch to a position now."""

    position: int
    first_entry_id: int
    batch: bytes


@dataclass(frozen=True, slots=True)
class SendLater:
    """Call ``resume`` after a pause: the bookie is busy and gets nothing until then."""

    position: int
    pause: int
    """Number of the pause, for ``resume``."""
    delay_ms: int


@dataclass(frozen=True, slots=True)
class BatchLimitsKnown:
    """The batch limits of enough members are known: seal and send the waiting batches."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Every entry up to ``last_entry_id`` is confirmed; complete the appends."""

    last_entry_id: int


@dataclass(frozen=True, slots=True)
class Released:
    """``size`` bytes of batches are no longer retained."""

    size: int


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Drop the connection to a position, and reconnect.

    ``breaking``: the bookie does not keep up, so break the connection with everything queued on it. Other writers that
    share it must reconnect, too.
    """

    position: int
    breaking: bool = False


@dataclass(frozen=True, slots=True)
class Rejoin:
    """The bookie refuses adds: send nothing, and call ``connected`` after a pause. The connection is usable."""

    position: int


@dataclass(frozen=True, slots=True)
class MissedChanged:
    """``missed()`` has changed: update the metadata in the background."""


@dataclass(frozen=True, slots=True)
class ReplacementWanted:
    """``wanted()`` has positions to replace: find bookies, then call ``begin_change``."""


@dataclass(frozen=True, slots=True)
class ChangeEnsemble:
    """Write the ``wanted`` fragment, which follows the ``known`` one, to the metadata, then call ``changed``.

    Nothing is confirmed until ``changed``, or ``unchanged`` if the change certainly did not and will not take effect.
    """

    known: Fragment
    wanted: Fragment


@dataclass(frozen=True, slots=True)
class Replaced:
    """These positions have new bookies: connect to them, and detach from the replaced ones.

    The replaced bookies at ``silent`` positions owe acks: break their connections, with everything queued on them.
    """

    positions: tuple[int, ...]
    silent: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Died:
    """The writer has ended: every unconfirmed append fails with ``error``."""

    error: TallybookError


WriterAction: TypeAlias = (
    Send
    | SendLater
    | BatchLimitsKnown
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
